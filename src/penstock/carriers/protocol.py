"""The protocol between a parent and a worker process, and `serve`, the one function that a worker process runs.

The parent sends commands by one pipe, the worker sends answers by another. Tasks are numbered by the parent, over all
passes; each is answered once, in order, by a message of the same number:

| command | its value                                                    | answers                                 |
|---------|--------------------------------------------------------------|-----------------------------------------|
| `TASK`  | `Task.message`; of an iterable dataset (stream, given)       | `BATCH`, `ERROR`, `EXHAUSTED`, or none  |
| `PASS`  | the seed that all workers share; None: no DataPipe needs one | none: errors answer the next task       |
| `SET`   | attributes that the parent's dataset has other values of now | none                                    |
| `END`   | None                                                         | none: the process ends                  |

                   the process starts
                           |
                           v
                   +---------------+  signal handlers, generators, worker_init_fn, iter() of an iterable dataset:
                   |   STARTING    |  an exception is kept, and answers each task
                   +---------------+
                           |
                           v              TASK
                   +---------------+ ---------------> +---------------+
          PASS --> |    WAITING    |                  |    MAKING     |
       (iterable   +---------------+ <--------------- +---------------+
        datasets)    ^     |         BATCH, ERROR             |
                     |     |                                  | EXHAUSTED (iterable datasets)
                PASS |     |                                  v
                     |     | END                      +---------------+
                     +-----|------------------------- |   EXHAUSTED   |  a TASK is not answered
                           v                          +---------------+
                   +---------------+                          |
                   |     ENDED     | <------------------------+ END
                   +---------------+

A worker also ends when its parent is gone (nobody can write commands, or read answers), at a Ctrl-C, and with what the
user's code raises that is not an Exception. `Board.ending` has tasks skipped that lie before END. To the parent, an
answer that is not in the table ends the pass: WorkerDied names the worker.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from time import thread_time
from typing import Any, ClassVar, Protocol

import torch
import torch.multiprocessing
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling, worker as torch_worker

import penstock._native as _native
from penstock.call_counts import ThreadCalls
from penstock.carriers.board import Board, WorkerStage
from penstock.carriers.pipes import Receiver, Sender
from penstock.hooks.calls import natively_in_this_process
from penstock.system.limits import keep_freed_samples
from penstock.system.randomness import seed_worker
from penstock.system.tracebacks import shorten
from penstock.workers import changes
from penstock.workers.worker import Note

_BRIEF = 1e-3  # seconds of CPU
Signals = tuple[set[int | signal.Signals], Any]
"""Which signals are blocked, and the handler of SIGINT; None: it is not to be set."""


class Command(IntEnum):
    """What a parent sends to a worker process."""

    TASK = 0
    """Make a batch."""
    PASS = 1
    """Go through an iterable dataset once more, from its start."""
    END = 2
    """End the process."""
    SET = 3
    """Set attributes of the dataset and the collate_fn."""


class Status(IntEnum):
    """What a worker process sends to its parent, about the task of the same number."""

    BATCH = 0
    """The batch: as it is, or a `Delivered` with news."""
    ERROR = 1
    """The ExceptionWrapper of what was raised while the batch was made or sent."""
    EXHAUSTED = 2
    """The worker's part of an iterable dataset has come to its end, and this pass gives no batch of it any more. The
    value is the state of the dataset there, or None. A worker of several streams is EXHAUSTED with the last of them."""


@dataclass(frozen=True)
class Exhausted:
    """Comes from `Work.make` where an iterable dataset, or the stream that was asked for, has no more batch.

    whole: the worker has no other stream that has one.
    """

    state: Any = None
    whole: bool = True


class Work(Protocol):
    """Makes the batches of a worker process."""

    @property
    def dataset(self) -> Any:
        """The user's, for get_worker_info()."""

    @property
    def collate_fn(self) -> Any:
        """The user's, or torch's."""

    def start(self, number: int, note: Note, each: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        """Prepare to be worker process number `number`, before worker_init_fn. note, each: of `Board.report`."""

    def seed(self, shared: int | None) -> None:
        """Seed what all workers share, before a pass."""

    def begin(self) -> None:
        """Begin a pass, the first one behind worker_init_fn."""

    def make(self, value: Any) -> Any:
        """Return the batch of a task, or Exhausted. It is sent as it is."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker process is started with."""

    work: Work
    board: Board
    base_seed: int
    workers: int
    init: Callable[[int], Any] | None
    """The user's worker_init_fn."""
    composes: bool
    """Costly calls of the user's code are answered natively."""
    shared_seed: int | None
    """Of DataPipes."""
    signals: Signals | None = None
    """How signals are handled from the start of `serve` on; None: as they are."""


def serve(setup: WorkerSetup, worker: int, commands: Any, answers: Any) -> None:
    """Be a worker process: do what the commands say until END. See the diagram above.

    Args:
        commands, answers: its ends of the two pipes (multiprocessing.connection.Connection).
    """
    receiver, sender, ending = Receiver(commands), Sender(answers), setup.board.ending
    share = _native.CpuShare()
    try:
        if setup.signals is not None:
            blocked, handler = setup.signals
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        failure, exhausted, ran = _started(setup, worker), False, 0.0
        while not sender.broken:
            command, number, pickled = message = receiver.get()
            if command == Command.END:
                break
            if command == Command.PASS:
                exhausted, failure = False, _caught(worker, _begin, setup.work, message.value)
                continue
            if command == Command.SET:
                changes.apply((setup.work.dataset, setup.work.collate_fn), message.value)
                continue
            if exhausted or ending():
                continue
            status, value = Status.ERROR, failure
            if failure is None:
                status, value = _made(setup.work, message, worker)
                if status is Status.EXHAUSTED:
                    exhausted, value = value.whole, value.state
            # A batch that took far less than a millisecond is sent by this thread: waking another would cost a part of
            # that. Behind longer ones another thread sends, and keeps the process's share of the CPUs, too.
            share.look()
            before, ran = ran, thread_time()
            _send(sender, status, number, value, worker, at_once=ran - before < _BRIEF)
            del value, pickled, message
    except (KeyboardInterrupt, EOFError):
        pass  # the parent is interrupted too, or gone
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends by itself
        torch_worker._worker_info = None
        sender.close(unsent=not ending())


def _started(setup: WorkerSetup, worker: int) -> ExceptionWrapper | None:
    """Prepare the process as torch prepares its workers, and return what the user's code raised."""
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    torch.multiprocessing._set_thread_name("pt_data_worker")
    torch.set_num_threads(1)
    work, seed = setup.work, seed_worker(setup.base_seed, worker)
    keep_freed_samples()
    work.seed(setup.shared_seed)
    torch_worker._worker_info = WorkerInfo(id=worker, num_workers=setup.workers, seed=seed, dataset=work.dataset)
    if setup.composes:
        natively_in_this_process(ThreadCalls())
    note, each = setup.board.report(worker)
    note(WorkerStage.INIT, None)
    work.start(worker, note, each)
    WorkerInfo.asked = partial(setup.board.note_asked, worker)
    return _caught(worker, _begin_first, work, setup.init, worker)


class WorkerInfo(torch_worker.WorkerInfo):
    """torch's, which tells once that it is asked for."""

    asked: ClassVar[Callable[[], None] | None] = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers", "seed") and (tell := WorkerInfo.asked) is not None:
            WorkerInfo.asked = None
            tell()
        return super().__getattribute__(name)


def _begin_first(work: Work, init: Callable[[int], Any] | None, worker: int) -> None:
    if init is not None:
        init(worker)
    work.begin()


def _begin(work: Work, shared_seed: int | None) -> None:
    work.seed(shared_seed)
    work.begin()


def _caught(worker: int, do: Callable[..., None], *given: Any) -> ExceptionWrapper | None:
    """Return what a function raises, as it is sent; None: nothing."""
    try:
        do(*given)
    except Exception as error:
        return _wrapped(error, worker)
    return None


def _made(work: Work, message: Any, worker: int) -> tuple[Status, Any]:
    try:
        made = work.make(message.value)
    except Exception as error:  # what else is raised ends the process
        return Status.ERROR, _wrapped(error, worker)
    return Status.EXHAUSTED if type(made) is Exhausted else Status.BATCH, made


def _send(sender: Sender, status: Status, number: int, value: Any, worker: int, *, at_once: bool) -> None:
    try:
        sender.send(status, number, value, at_once=at_once)
    except Exception as error:  # it cannot be pickled
        wrapped = _wrapped(error, worker)
        if isinstance(value, ExceptionWrapper):  # whose class cannot be
            wrapped.exc_type, wrapped.exc_msg = RuntimeError, value.exc_msg
        sender.send(Status.ERROR, number, wrapped)


def _wrapped(error: Exception, worker: int) -> ExceptionWrapper:
    """Return an exception that is being handled as torch's workers send it."""
    shorten(error)
    return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]

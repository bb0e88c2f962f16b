"""The worker processes of an iterator: started, asked, waited for, watched and ended. No hang, no orphan.

The parent waits for answers and for the ends of processes at once: a worker that dies, or does not answer within
timeout=, becomes an error that says at which sample, in what and why.
"""

from __future__ import annotations

import multiprocessing.util
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

import torch.multiprocessing
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from penstock.carriers.answers import PinnedAnswers
from penstock.carriers.board import Board
from penstock.carriers.copy_trouble import not_picklable
from penstock.carriers.pipes import ENDED, Answer, Receivers, Sender, close_in_workers
from penstock.carriers.post_mortem import Identify, WorkerWatch, clear_away, end, main_guard
from penstock.carriers.protocol import Command, Signals, WorkerSetup, serve
from penstock.errors import InvalidOption, WorkerDied, WorkerStuck
from penstock.sample_notes import add_note
from penstock.system.warn_user import warn_user

_LOOK: float = MP_STATUS_CHECK_INTERVAL  # seconds between looks at the processes themselves
_SILENT = 30.0  # seconds without a first answer, after which workers that wait for a lock are told of
_DYING = 1.0  # seconds between a worker's connections and the worker itself being gone
_NOT_PICKLED = (  # in torch's words
    "Got pickle error when attempting to start a worker Process. This might be because the worker Process arguments "
    "are not picklable. Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms to "
    "'forkserver', which requires the worker Process arguments to be picklable. You can also try "
    "multiprocessing.set_start_method('fork')."
)


def context_of(given: Any, *, remote: bool) -> Any:
    """Return multiprocessing's context for the workers. given: multiprocessing_context=, or None.

    remote: they use the client of object stores, which has no threads in a forked process. Raises InvalidOption where
    they are to be forked.
    """
    if remote and given is None and torch.multiprocessing.get_start_method(allow_none=True) in (None, "fork"):
        return torch.multiprocessing.get_context("spawn")
    if remote and given is not None and given.get_start_method() == "fork":
        raise InvalidOption(
            "shards in an object store cannot be read by forked processes: give multiprocessing_context='spawn' or "
            "'forkserver', or worker_method='thread'"
        )
    return given or torch.multiprocessing


class WorkerProcesses:
    """The worker processes of an iterator.

    Args:
        context: multiprocessing's.
        identify: returns (ID, path) of a sample's index; for messages only.

    Attributes:
        processes, senders: of the workers, by their numbers.
        failure: the first sentence of what ended them all; empty: nothing did.
        sound: False: one may hold what others wait for, so that no other pass is made, and they are killed in the end.
    """

    def __init__(self, context: Any, workers: int, identify: Identify) -> None:
        self.board = Board(workers)
        self.processes: list[Any] = []
        self.senders: list[Sender] = []
        self.failure, self.sound, self.closed = "", True, False
        self._context, self._pid, self._pids = context, os.getpid(), list[int]()
        self._watch, self._receivers = WorkerWatch(self.board, identify), Receivers()
        self._answered, self._told = set[int](), False
        """Workers that have answered a task; a word of those that have not was said."""
        self._answers: Receivers | PinnedAnswers = self._receivers
        # At exit it comes after multiprocessing has ended the workers.
        self._clear_away = multiprocessing.util.Finalize(None, clear_away, (self.board, self._pids), exitpriority=-1)

    @property
    def forks(self) -> bool:
        return bool(self._context.get_start_method() == "fork")

    def start(
        self,
        setup: Callable[[Board, Signals | None], WorkerSetup],
        hooked: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Start the processes. Raises what starting one raises.

        Args:
            setup: returns what they are started with; called with the board and how signals are handled.
            hooked: returns what is held while they are forked.
        """
        if self.forks:
            with interrupts_held() as signals, hooked():
                self._start(setup(self.board, signals))
        else:
            self._start(setup(self.board, None))
        self._watch.begin(self.processes, self._receivers)
        self._started = monotonic()

    def _start(self, setup: WorkerSetup) -> None:
        for worker in range(setup.workers):
            commands, to_worker = self._context.Pipe(duplex=False)
            from_worker, answers = self._context.Pipe(duplex=False)
            close_in_workers(to_worker)
            close_in_workers(from_worker)
            process = self._context.Process(target=serve, args=(setup, worker, commands, answers))
            process.daemon = True
            try:
                process.start()
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                warn_user(_NOT_PICKLED)
                work = setup.work
                if why := not_picklable(dataset=work.dataset, collate_fn=work.collate_fn, worker_init_fn=setup.init):
                    add_note(error, why)
                raise
            except (ConnectionError, EOFError) as error:  # from Python 3.14 on the fork server imports the script, too
                guard = main_guard(self._context.get_start_method())
                raise WorkerDied(f"A worker, or the fork server, ended while a worker was started. {guard}") from error
            self.processes.append(process)
            self._pids.append(process.pid)
            close_in_workers(commands)
            answers.close()
            self.senders.append(Sender(to_worker, commands))
            self._receivers.add(from_worker, process.sentinel)

    def pin(self) -> Any:
        """Have a thread pin the batches, and return it."""
        self._answers = pinned = PinnedAnswers(self._receivers)
        return pinned.thread

    def release(self, worker: int) -> None:
        """End a worker that nothing is asked of any more."""
        self._watch.release(worker)
        self.senders[worker].send(Command.END, -1, None)

    def check(self) -> None:
        """Raise WorkerDied where a worker has."""
        if self._watch.notice():
            raise self.died()

    def answer(self, timeout: float, owing: Callable[[], set[int]]) -> Answer:
        """Wait for the next answer. Raises WorkerDied, WorkerStuck.

        Args:
            timeout: seconds; 0: for ever.
            owing: returns the workers that have not answered; empty: any of them.
        """
        deadline = monotonic() + timeout if timeout > 0 else None
        while not self.closed:
            seconds = _LOOK if deadline is None else max(0.0, min(_LOOK, deadline - monotonic()))
            answer = self._answers.get(seconds)
            if answer is not None and answer.kind != ENDED:
                self.sound = True
                self._answered.add(answer.worker)
                return answer
            if self.closed:
                break
            if self._watch.notice(by_pid=answer is None):  # a dead worker's children may hold its sentinel open
                raise self.died()
            if isinstance(self._answers, PinnedAnswers) and not self._answers.thread.is_alive():
                raise RuntimeError("Pin memory thread exited unexpectedly")
            if not self._told and self.forks and monotonic() > self._started + _SILENT:
                silent = (owing() or self._watch.watched) - self._answered
                if why := self._watch.why_silent(silent):
                    self._told = True
                    warn_user(why)
            if deadline is not None and monotonic() >= deadline:
                self.sound = False
                raise WorkerStuck(self._watch.why_stuck(timeout, owing() or self._watch.watched))
        raise RuntimeError("the loader's iterator was closed while it waited for a batch")

    def at_hand(self, tasks: Sequence[int]) -> bool:
        """Return whether the answer to one of these tasks has come, or word of the end of a process."""
        return self.closed or any(answer.kind == ENDED or answer.number in tasks for answer in self._answers.waiting())

    def is_dying(self) -> bool:
        """Return whether a worker has died, or does within a second."""
        return bool(self._watch.notice(_DYING, by_pid=True))

    def died(self) -> WorkerDied:
        """Return the error for the workers that have ended, and end the others."""
        text = self._watch.why_died(self._context.get_start_method())
        return self._fail(text, next(iter(self._watch.deaths.values())).as_torch_says())

    def rubbish(self, worker: int, what: str) -> WorkerDied:
        """Return the error for a worker that sent what no worker sends, and end all workers."""
        first = f"DataLoader worker {worker} (pid {self._pids[worker]}) sent {what}, which answers no task."
        return self._fail(f"{first} Look for code that writes to file descriptors which it has not opened.", first)

    def _fail(self, text: str, first: str) -> WorkerDied:
        self.failure, self.sound = first, False
        self.close(())
        return WorkerDied(text)

    @property
    def reusable(self) -> bool:
        """Whether they can make another pass."""
        if self.closed or not self.sound:
            return False
        return all((death.code or 0) < 0 for death in self._watch.notice().values())  # else they got a Ctrl-C, too

    def close(self, workers: Any) -> None:
        """End the processes: they are asked to, or killed where one is dead, stuck or interrupted.

        workers: those that were not released.
        """
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        try:
            if self.sound and not self._watch.notice():
                self.board.end()
                for worker in workers:
                    self.senders[worker].send(Command.END, -1, None)
                self._answers.close()  # a worker does not wait for a parent that reads no more
                deadline = monotonic() + _LOOK  # threads of a library may keep a worker from its end for ever
                for process in self.processes:
                    process.join(max(0.0, deadline - monotonic()))
        finally:
            with interrupts_held():
                end(self.processes)
                self._answers.close()
                for sender in self.senders:
                    sender.close()
                self._clear_away()


@contextmanager
def interrupts_held() -> Iterator[Signals]:
    """Hold a Ctrl-C back; yields how signals were handled before.

    In the middle of a fork Python would lose the Ctrl-C, or the child; in the middle of an end, the processes. The
    signal is blocked in this thread, and in the child. The kernel gives it to another thread then, where there is one,
    and Python would call the handler in this one all the same: only then another handler is set meanwhile.
    """
    before, came = signal.pthread_sigmask(signal.SIG_BLOCK, []), list[Any]()
    handler, here = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    handler = handler if here and callable(handler) and len(os.listdir("/proc/self/task")) > 1 else None
    try:
        if handler is not None:
            signal.signal(signal.SIGINT, lambda *given: came.append(given))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        yield before, handler
    finally:
        try:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if came and callable(handler):
        handler(*came[0])

"""Batches that worker processes make: torch's rules for who makes which batch, and processes that are watched.

workers/protocol.py says what parent and workers tell each other. The parent waits for answers and for the ends of
processes at once: a worker that dies, or does not answer within timeout=, becomes an error that says at which sample,
in what and why.
"""

from __future__ import annotations

import errno
import multiprocessing.util
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import torch.distributed
import torch.multiprocessing
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data.dataloader import _get_distributed_settings, _sharding_worker_init_fn, _share_dist_seed
from torch.utils.data.graph_settings import apply_random_seed

from penstock.errors import InvalidOption, WorkerDied, WorkerStuck
from penstock.executors.filler import Batch, Filler, PassInput
from penstock.executors.iterator import FillerExecutor
from penstock.executors.job import Job
from penstock.executors.staging import Staging
from penstock.executors.workers.answers import ENDED, Answer, Answers, PinnedAnswers
from penstock.executors.workers.pipes import Receivers, Sender, close_in_workers
from penstock.executors.workers.post_mortem import WorkerWatch, clear_away, end, note_space
from penstock.executors.workers.progress import Board
from penstock.executors.workers.protocol import Command, Status, Work, WorkerSetup, serve
from penstock.executors.workers.shared_memory import Lease
from penstock.executors.workers.work import BatchWork, StreamWork
from penstock.hooks.calls import ANSWERED
from penstock.observe import Delivery
from penstock.order.permutations import draw_seed
from penstock.recipe import patches
from penstock.sample_notes import add_note
from penstock.settings import Method, Settings
from penstock.showing import said
from penstock.sources.naming import name_of
from penstock.sources.tree import RemoteLeaves, remote_leaves
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Delivered, Task
from penstock.state.manifest import BadSample
from penstock.stats import samples_given, samples_in
from penstock.system.warn_user import warn_user

_OUT_OF_FILES = (  # in torch's words
    "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
    "`ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)
_NOT_PICKLED = (
    "Got pickle error when attempting to start a worker Process. This might be because the worker Process arguments "
    "are not picklable. Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms to "
    "'forkserver', which requires the worker Process arguments to be picklable. You can also try "
    "multiprocessing.set_start_method('fork')."
)
_LOOK: float = MP_STATUS_CHECK_INTERVAL  # seconds between looks at the processes themselves
_DYING = 1.0  # seconds between a worker's connections and the worker itself being gone


@dataclass(slots=True, eq=False)
class ProcessBatch(Batch):
    """A batch that a worker process makes."""

    number: int = -1
    """Of its task."""
    worker: int = -1
    came: bool = False
    """Its answer is here."""
    exhausted: bool = False
    """The worker has no batch in its place."""
    value: Any = None
    bad: list[BadSample] | tuple[()] = ()
    state: Any = None
    """Of the worker's dataset behind the batch."""
    lease: Lease | None = None
    """Of the memory that it is built in, until it comes."""

    def let_go(self) -> None:
        self.value = None


class ProcessFiller(Filler):
    """Has worker processes make the batches: each the next one in turn, as torch's loader does.

    After WorkerDied all workers are ended, and each next() raises WorkerDied again: a pass that has failed never looks
    finished. After WorkerStuck next() waits anew.

    Args:
        job: of the first pass; later ones may have other batches.
        context: multiprocessing's.
        base_seed: of the workers' generators.
        remote: the samples whose shards are brought here ahead of need; None: there are none.
        seeds: of DataPipes; None: the dataset is none.
        shared_seed: of the first pass.
    """

    profile_name = "_MultiProcessingDataLoaderIter"
    closes_at_exit = False  # multiprocessing ends its processes then

    # Over 15 attributes: the workers, what is on its way, and the pass.

    def __init__(
        self,
        job: Job,
        context: Any,
        base_seed: int,
        remote: RemoteLeaves | None,
        seeds: _SharedSeeds | None,
        shared_seed: int | None,
    ) -> None:
        settings, resources = job.settings, job.resources
        super().__init__(resources)
        self.in_order, self.reads_ahead = settings.in_order, True
        self._settings, self._context, self._pid = settings, context, os.getpid()
        self._fetch = None if settings.iterable else job.fetch(here=True)
        self._streams, self._pins = job.streams, job.pins
        strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        self._packs = strategy == "file_descriptor" and collates_as_torch()  # else somebody has replaced torch's ways
        batched = self._fetch is not None and self._fetch.batched
        self._shared = resources.shared if self._packs and batched else None
        self._remote = remote
        self._staging: Staging | None = None  # of the pass
        self._base_seed, self._seeds, self._shared_seed = base_seed, seeds, shared_seed
        self._prefetch = settings.prefetch_factor or 2
        self._most = self._prefetch * self.workers
        self._processes: list[Any] = []
        self._senders: list[Sender] = []
        self._pids: list[int] = []
        self._answers: Answers | PinnedAnswers
        self._board: Board | None = None
        self._watch: WorkerWatch
        self._clear_away: Callable[[], object]
        self._outstanding: dict[int, ProcessBatch] = {}  # by the numbers of their tasks
        self._tasks = 0  # that were ever sent
        self._loads = [0] * self.workers  # of these, without an answer
        self._exhausted: set[int] = set()  # workers, in this pass
        # The worker that is next: in a pass that goes on it may be another than the first.
        self._turn = self._streams.following if self._streams is not None and self._streams.given else 0
        self._began = self._closed = self._interrupted = self._stuck = False
        self._failure = ""  # the first sentence of what ended all workers
        self._yielded = 0  # batches of the pass
        self._promised: int | None = None  # of an iterable dataset, as len() of the loader said

    def work_for(self, job: Job) -> None:
        """Make the next pass of a job."""
        self._settings, self._streams = job.settings, job.streams
        self._shared_seed = None if self._seeds is None else self._seeds.draw()
        job.progress.drawn.setdefault("base", self._base_seed)

    # --- the workers ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes. Raises what starting one raises."""
        self._watch = WorkerWatch(board := Board(self.workers), partial(name_of, self._settings.dataset))
        self._answers = Answers(receivers := Receivers())
        self._board = board
        # At exit it comes after multiprocessing has ended the workers.
        self._clear_away = multiprocessing.util.Finalize(None, clear_away, (board, self._pids), exitpriority=-1)
        self.resources.meter.open(board.stages, board.calls)
        if self._shared is not None:
            self._shared.expect(self._most)
        with ExitStack() as held:
            blocked = None
            if self._context.get_start_method() == "fork":
                blocked = held.enter_context(interrupts_held())
                held.enter_context(self._hooked())
            setup = self._setup(board, blocked)
            for worker in range(self.workers):
                self._start_worker(setup, worker, receivers)
        self._watch.begin(self._processes, receivers)
        self.shown = {"_workers": self._processes, "_index_queues": self._senders}
        if self._pins:
            self._answers = PinnedAnswers(receivers)
            self.shown["_pin_memory_thread"] = self._answers.thread

    def _start_worker(self, setup: WorkerSetup, worker: int, receivers: Receivers) -> None:
        commands, to_worker = self._context.Pipe(duplex=False)
        from_worker, answers = self._context.Pipe(duplex=False)
        close_in_workers(to_worker)
        close_in_workers(from_worker)
        process = self._context.Process(target=serve, args=(setup, worker, commands, answers))
        process.daemon = True
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warn_user(_NOT_PICKLED)
            raise
        self._processes.append(process)
        self._pids.append(process.pid)
        close_in_workers(commands)
        answers.close()
        self._senders.append(Sender(to_worker, commands))
        receivers.add(from_worker, process.sentinel)

    def _hooked(self) -> AbstractContextManager[object]:
        """Hold what the workers answer set while they are forked.

        They would each search all modules for what to set, and have a copy of each page that they write to.
        """
        if self._fetch is not None:
            return self._fetch.lease()
        return patches.Lease(ANSWERED) if self._composes else nullcontext()

    @property
    def _composes(self) -> bool:
        return self._settings.method is not Method.PROCESS

    def _setup(self, board: Board, blocked: set[int | signal.Signals] | None) -> WorkerSetup:
        settings, states = self._settings, None if self._streams is None else self._streams.states()
        work: Work
        if self._fetch is not None:
            work = BatchWork(self._fetch, states, in_place=self._shared is not None)
        else:
            work = StreamWork(
                settings.dataset,
                settings.collate_fn,
                states,
                batched=settings.batched,
                drop_last=settings.drop_last,
                packs=self._packs,
            )
        init = settings.worker_init_fn
        if isinstance(settings.dataset, IterDataPipe | MapDataPipe):
            init = partial(_sharding_worker_init_fn, init, *_get_distributed_settings())  # type: ignore[no-untyped-call]
        return WorkerSetup(work, board, self._base_seed, self.workers, init, self._composes, self._shared_seed, blocked)

    @property
    def reusable(self) -> bool:
        if os.getpid() != self._pid or self._closed or self._stuck or self._interrupted:
            return False
        return all((death.code or 0) < 0 for death in self._watch.notice().values())  # else they got a Ctrl-C, too

    def interrupted(self) -> None:
        self._interrupted = True

    def rest(self) -> bool:
        self._let_shards_go()
        return not self._closed

    def close(self) -> None:
        """End the workers: they are asked to, or killed where one is dead, stuck or interrupted."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            if self._began and not (self._failure or self._stuck or self._interrupted or self._watch.notice()):
                self._ask_to_end()
        finally:
            with interrupts_held():
                end(self._processes)
                self._clear()

    def _ask_to_end(self) -> None:
        assert self._board is not None
        self._board.end()
        for worker, sender in enumerate(self._senders):
            if worker not in self._exhausted or self.resources.persistent:
                sender.send(Command.END, -1, None)
        self._answers.stop()  # a worker does not wait for a parent that reads no more
        for process in self._processes:
            process.join(_LOOK)

    def _clear(self) -> None:
        """Give back what the workers had, which are gone."""
        for sender in self._senders:
            sender.close()
        for batch in self._outstanding.values():
            batch.let_shards_go()
        self._outstanding.clear()  # their blocks are not used again
        self._let_shards_go()
        if self._board is not None:
            self._answers.stop()
            self._clear_away()
            self.resources.meter.close(self._board.stages, self._board.calls)
            self._board.close()

    def _let_shards_go(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def __repr__(self) -> str:
        return f"{self.workers} worker processes"

    # --- a pass -----------------------------------------------------------------------------------------------------

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        self._let_shards_go()
        if self._watch.notice():
            raise self._died()
        if self._began:
            self._turn = 0
            if self._settings.iterable:
                for sender in self._senders:
                    sender.send(Command.PASS, -1, self._shared_seed)
            while self._outstanding:  # of the pass before
                self._take(None)
            self._exhausted.clear()
        self._began, self._yielded, self._promised = True, 0, self._settings.noted_length
        if self._remote is not None:
            self._staging = Staging(self._remote, pass_input.coming, pass_input.samples, elsewhere=True)

    def new_batch(self) -> ProcessBatch:
        return ProcessBatch()

    def prepare(self, queue: deque[ProcessBatch]) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("the workers of this iterator belong to the parent process of this fork")
        if self._failure:
            raise WorkerDied(f"{self._failure} This iterator ended then: make a new one.")

    def depth(self, queue: deque[ProcessBatch]) -> int:
        return self._most - self._prefetch * len(self._exhausted)

    def begin(self, batch: ProcessBatch) -> None:
        assert batch.given is not None
        given, positions = batch.given
        number, worker = self._tasks, self._next_worker()
        message = given
        if self._fetch is not None:
            lease = batch.lease = None if self._shared is None else self._shared.reserve()
            if self._staging is not None:
                listed = given if self._fetch.batched else [given]
                batch.shards = self._staging.shards_of(listed if isinstance(listed, list | tuple) else ())
            block = None if lease is None else lease.sent()
            message = Task(given, self._input.seed, self._input.epoch, positions, block).message
        try:
            self._senders[worker].send(Command.TASK, number, message)
        except Exception as error:  # what the sampler gave cannot be pickled
            batch.error = error
            return
        batch.number, batch.worker = number, worker
        self._outstanding[number] = batch
        self._tasks += 1
        self._loads[worker] += 1

    def _next_worker(self) -> int:
        while True:
            worker, self._turn = self._turn, (self._turn + 1) % self.workers
            if worker in self._exhausted:
                continue
            if self.in_order or self._loads[worker] < self._most // (self.workers - len(self._exhausted)):
                return worker

    def ready(self, queue: deque[ProcessBatch]) -> ProcessBatch | None:
        while True:
            batch = queue[0]
            if not self.in_order:
                batch = next((one for one in queue if one.came or one.error is not None), batch)
            if batch.came or batch.error is not None:
                break
            if batch.worker in self._exhausted:  # it was asked for behind the worker's last batch
                queue.remove(batch)
                return None
            self._take(batch.worker if self.in_order else None)
        if batch.error is None and self._is_left_out(batch):
            queue.remove(batch)
            return None
        return batch

    def _is_left_out(self, batch: ProcessBatch) -> bool:
        """Return whether the user gets nothing in the place of a batch; of its worker's dataset the state is noted."""
        streams = self._streams
        if streams is None:
            return batch.exhausted
        if not batch.exhausted and streams.to_drop[batch.worker]:
            streams.dropped(batch.worker, batch.state)
            return True
        if batch.exhausted and batch.state is not None:
            streams.ended(batch.worker, batch.state)
        return batch.exhausted

    def assemble(self, batch: ProcessBatch) -> Any:
        out, batch.value = batch.value, None
        self._yielded += 1
        if self._promised is not None and self._yielded > self._promised:
            warn_user(  # in torch's words
                f"Length of IterableDataset {self._settings.dataset} was reported to be {self._promised}"
                f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. For "
                "multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
                "replica at each worker. Please see https://pytorch.org/docs/stable/data.html"
                "#torch.utils.data.IterableDataset for examples."
            )
        return out

    def delivery(self, batch: ProcessBatch, out: Any) -> Delivery:
        assert batch.given is not None
        samples = 1
        if self._settings.batched:
            samples = samples_given(batch.given[0])
            if self._fetch is None:
                stacks = self._settings.collate_fn is default_collate
                samples = samples_in(out, samples, iterable=True, stacks=stacks)
        return Delivery(out, samples, bad=batch.bad)

    def report(self, batch: ProcessBatch | None, *, came: bool) -> None:
        if self._streams is not None:
            if came and batch is not None:
                self._streams.read(batch.worker, batch.state)
            else:
                self._streams.failed()

    def drop(self, batch: ProcessBatch) -> None:
        batch.let_shards_go()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take(self, owing: int | None) -> None:
        """Wait for the next answer and note it. Raises WorkerDied, WorkerStuck.

        owing: the worker that is waited for; None: any of those that have not answered.
        """
        timeout = self.resources.timeout
        deadline = monotonic() + timeout if timeout > 0 else None
        while True:
            seconds = _LOOK if deadline is None else max(0.0, min(_LOOK, deadline - monotonic()))
            answer = None if self._closed else self._answers.get(seconds)
            if answer is not None and answer.kind != ENDED:
                self._stuck = False
                self._note(answer)
                return
            if self._closed:
                raise RuntimeError("the loader's iterator was closed while it waited for a batch")
            if self._watch.notice(by_pid=answer is None):  # a dead worker's children may hold its sentinel open
                raise self._died()
            if (thread := self._answers.thread) is not None and not thread.is_alive():
                raise RuntimeError("Pin memory thread exited unexpectedly")
            if deadline is not None and monotonic() >= deadline:
                self._stuck = True
                awaited = {one.worker for one in self._outstanding.values()} if owing is None else {owing}
                raise WorkerStuck(self._watch.why_stuck(timeout, awaited or self._watch.watched))

    def _note(self, answer: Answer) -> None:
        """Note an answer, and that its worker has finished with the memory of the task, or keeps some."""
        worker, kind, value, error = answer.worker, answer.kind, answer.value, answer.error
        batch = self._outstanding.get(answer.number)
        if batch is None or batch.worker != worker or kind not in self._statuses:
            raise self._rubbish(worker, f"a message of kind {kind} and number {answer.number}")
        if isinstance(error, OSError | EOFError) and self._watch.notice(_DYING, by_pid=True):
            raise self._died() from error  # it cannot be fetched from a worker that is dying
        if isinstance(error, pickle.UnpicklingError | EOFError):
            raise self._rubbish(worker, f"a truncated message ({said(error)})")
        if kind == Status.ERROR and error is None and not isinstance(value, ExceptionWrapper):
            raise self._rubbish(worker, f"an error that is a {type(value).__name__}")
        del self._outstanding[answer.number]
        self._loads[worker] -= 1
        batch.let_shards_go()
        kept = kind == Status.ERROR  # samples of a batch that failed may be kept by anybody
        if error is not None:
            batch.error = _out_of_files(error)
        elif kind == Status.ERROR:
            batch.error = _error_of(value)
        elif kind == Status.EXHAUSTED:
            batch.exhausted, batch.state = True, value
            self._exhaust(worker)
        elif type(value) is Delivered:
            if value.calls:
                assert self._board is not None
                self._board.counted[worker] = value.calls
            batch.value, batch.bad, batch.state, kept = value.batch, value.bad, value.state, value.kept
        else:
            batch.value = value
        if self._shared is not None and kind == Status.BATCH and error is None:
            self._shared.learn(value.needed if type(value) is Delivered else 0)
        if batch.lease is not None:
            batch.lease.received(kept=kept)
            batch.lease = None
        batch.came = True

    @property
    def _statuses(self) -> tuple[Status, ...]:
        return _OF_STREAMS if self._fetch is None else _OF_BATCHES

    def _exhaust(self, worker: int) -> None:
        """Ask no more of a worker in this pass. Its process ends, unless it makes the next pass, too."""
        self._exhausted.add(worker)
        for number in [number for number, batch in self._outstanding.items() if batch.worker == worker]:
            del self._outstanding[number]
        self._loads[worker] = 0
        if not self.resources.persistent:
            self._watch.release(worker)
            self._senders[worker].send(Command.END, -1, None)

    def _died(self) -> WorkerDied:
        """Return the error for the workers that have ended, and end the others."""
        text = self._watch.why_died(self._context.get_start_method())
        return self._fail(text, next(iter(self._watch.deaths.values())).as_torch_says())

    def _rubbish(self, worker: int, what: str) -> WorkerDied:
        """Return the error for a worker that sent what no worker sends, and end all workers."""
        first = f"DataLoader worker {worker} (pid {self._pids[worker]}) sent {what}, which answers no task."
        return self._fail(f"{first} Look for code that writes to file descriptors which it has not opened.", first)

    def _fail(self, text: str, first: str) -> WorkerDied:
        self._failure = first
        self.close()
        return WorkerDied(text)


_OF_BATCHES = Status.BATCH, Status.ERROR
_OF_STREAMS = (*_OF_BATCHES, Status.EXHAUSTED)


@contextmanager
def interrupts_held() -> Iterator[set[int | signal.Signals]]:
    """Hold a Ctrl-C back in this thread; yields the signals that it blocked before.

    In the middle of a fork Python would lose the Ctrl-C, or the child; in the middle of an end, the processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _out_of_files(error: Exception) -> Exception:
    """Return the error of a message that could not be read; where that lacks descriptors, in torch's words."""
    if getattr(error, "errno", None) != errno.EMFILE and "items of ancdata" not in said(error):
        return error
    made = RuntimeError(_OUT_OF_FILES)  # in the middle of a message, or before it
    made.__cause__ = error
    return made


def _error_of(sent: ExceptionWrapper) -> Exception:
    """Return torch's error for one of a worker's."""
    try:
        sent.reraise()  # type: ignore[no-untyped-call]
    except Exception as error:
        return _told(error, sent)
    raise AssertionError("it is an error")


def _told(error: Exception, sent: ExceptionWrapper) -> Exception:
    """Return torch's error; another where its class is lost, with a note where its words are."""
    kind: type[Exception] = sent.exc_type
    text: str = sent.exc_msg
    words = f"Caught {kind.__name__} {sent.where}.\nOriginal {text}"
    if isinstance(error, kind) and not isinstance(error, StopIteration):
        if not any(shown in said(error) for shown in (text, repr(text)[1:-1])):  # a KeyError has its repr()
            add_note(error, words)
    # Its class may take other arguments than torch gave, and a StopIteration would end the pass.
    elif isinstance(error, StopIteration) or text not in said(error):
        error = RuntimeError(words)
    note_space(error)
    return error


class _SharedSeeds:
    """Draws the seeds that all workers of an IterDataPipe share, and other ranks too, as torch's iterators do."""

    def __init__(self, settings: Settings) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._group = torch.distributed.new_group(backend="gloo") if distributed else None
        self._settings = settings

    def draw(self) -> int:
        settings = self._settings
        seed: int = _share_dist_seed(settings.draws_from, self._group)  # type: ignore[no-untyped-call]
        apply_random_seed(settings.dataset, torch.Generator().manual_seed(seed))
        return seed


def _context_of(settings: Settings, *, remote: bool) -> Any:
    """Return the multiprocessing context of the workers.

    remote: they use the client of object stores, which has no threads in a forked process. Raises InvalidOption where
    they are to be forked.
    """
    given = settings.multiprocessing_context
    if remote and given is None and torch.multiprocessing.get_start_method(allow_none=True) in (None, "fork"):
        return torch.multiprocessing.get_context("spawn")
    if remote and given is not None and given.get_start_method() == "fork":
        raise InvalidOption(
            "shards in an object store cannot be read by forked processes: give multiprocessing_context='spawn' or "
            "'forkserver', or worker_method='thread'"
        )
    return given or torch.multiprocessing


class ProcessExecutor(FillerExecutor):
    """Worker processes, where Python reads the dataset, unless worker_method= says threads."""

    def filler(self, job: Job, held: Filler | None, drawn: Callable[[], PassInput]) -> ProcessFiller:
        if isinstance(held, ProcessFiller):
            held.work_for(job)
            return held
        settings = job.settings
        job.loader().check_worker_number_rationality()
        remote = None if settings.iterable else remote_leaves(settings.dataset)
        context = _context_of(settings, remote=remote is not None)
        seeds = _SharedSeeds(settings) if isinstance(settings.dataset, IterDataPipe) else None
        shared_seed = None if seeds is None else seeds.draw()
        drawn()
        if seeds is not None:
            seeds.draw()  # torch's iterator draws one for each pass, and one more before the first
        base_seed = draw_seed(settings.draws_from) if settings.seed is not None else 0
        base_seed = job.progress.drawn.setdefault("base", base_seed)
        return ProcessFiller(job, context, base_seed, remote, seeds, shared_seed)

"""Batches that worker processes make: torch's rules for which worker makes which one, and what comes with them.

workers/protocol.py says what parent and workers tell each other.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed
import torch.multiprocessing
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate
from torch.utils.data.dataloader import _get_distributed_settings, _sharding_worker_init_fn, _share_dist_seed
from torch.utils.data.graph_settings import apply_random_seed

from penstock.carriers.answers import error_of, readable
from penstock.carriers.board import Board
from penstock.carriers.copy_trouble import warn_of_shared_handles
from penstock.carriers.process_work import BatchWork, StreamWork
from penstock.carriers.protocol import Command, Signals, Status, Work, WorkerSetup
from penstock.carriers.turns import Turns
from penstock.carriers.worker_processes import WorkerProcesses, context_of
from penstock.errors import WorkerDied
from penstock.hooks.calls import ANSWERED
from penstock.memory.shared_memory import Lease
from penstock.observe import Delivery
from penstock.order.permutations import draw_seed
from penstock.passes.carrier import Carrier
from penstock.passes.job import Job
from penstock.passes.staging import Staging
from penstock.passes.values import PassInput
from penstock.recipe import patches
from penstock.recipe.unseeded_generators import copies_before
from penstock.settings import Method, Settings
from penstock.showing import said
from penstock.sources.naming import name_of
from penstock.sources.stream_parts import RepeatWatch, part_of
from penstock.sources.tree import RemoteLeaves, remote_leaves
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Delivered, Task
from penstock.state.manifest import BadSample
from penstock.stats import samples_given, samples_in
from penstock.system.warn_user import warn_user
from penstock.workers.batch import Batch
from penstock.workers.changes import Copied


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
    lease: Lease | None = None
    """Of the memory that it is built in, until it comes."""

    def let_go(self) -> None:
        self.value = None


class ProcessCarrier(Carrier):
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
        self.reads_ahead = True
        self._settings, self._context = settings, context
        self._worker = None if settings.iterable else job.worker(here=True)
        self._streams, self._pins = job.streams, job.pins
        strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        self._packs = strategy == "file_descriptor" and collates_as_torch()  # else somebody has replaced torch's ways
        batched = self._worker is not None and self._worker.batched
        self._shared = resources.shared if self._packs and batched else None
        self._remote = remote
        self._staging: Staging | None = None  # of the pass
        self._base_seed, self._seeds, self._shared_seed = base_seed, seeds, shared_seed
        self._processes: WorkerProcesses
        self._outstanding: dict[int, ProcessBatch] = {}  # by the numbers of their tasks
        self._tasks = 0  # that were ever sent
        self._begin_turns()
        self._started = self._began = False
        self._yielded = 0  # batches of the pass
        self._copied: Copied | None = None  # of the dataset, as the workers know it
        self._earlier = copies_before(settings.dataset)
        alike = settings.iterable and settings.shard is None and settings.worker_init_fn is None and seeds is None
        alike = alike and self.workers > 1 and (self._streams is None or self._streams.split is None)
        self._repeats = RepeatWatch(settings.dataset, self.workers) if alike else None
        self._promised: int | None = None  # of an iterable dataset, as len() of the loader said

    def _begin_turns(self) -> None:
        settings = self._settings
        self._turns = Turns(self.workers, settings.prefetch_factor or 2, self._streams, in_order=settings.in_order)
        self.in_order = self._turns.in_order

    def work_for(self, job: Job) -> None:
        """Make the next pass of a job."""
        self._settings, self._streams = job.settings, job.streams
        self._shared_seed = None if self._seeds is None else self._seeds.draw()
        job.progress.drawn.setdefault("base", self._base_seed)

    # --- the workers ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes. Raises what starting one raises."""
        identify = partial(name_of, self._settings.dataset)
        self._processes = processes = WorkerProcesses(self._context, self.workers, identify)
        self._copied = Copied(self._settings.dataset, self._settings.collate_fn)
        if self.workers > 1 and not self._earlier and processes.forks and self._settings.worker_init_fn is None:
            warn_of_shared_handles(self._settings.dataset, self.workers)
        self._started = True
        self.resources.meter.open(processes.board.stages, processes.board.calls)
        if self._shared is not None:
            self._shared.expect(self._turns.depth)
        processes.start(self._setup, self._hooked)
        self.shown = {"_workers": processes.processes, "_index_queues": processes.senders}
        if self._pins:
            self.shown["_pin_memory_thread"] = processes.pin()

    def _hooked(self) -> AbstractContextManager[object]:
        """Hold what the workers answer set while they are forked.

        They would each search all modules for what to set, and have a copy of each page that they write to.
        """
        if self._worker is not None:
            return self._worker.lease()
        return patches.Lease(ANSWERED) if self._composes else nullcontext()

    @property
    def _composes(self) -> bool:
        return self._settings.method is not Method.PROCESS

    def _setup(self, board: Board, signals: Signals | None) -> WorkerSetup:
        settings, states = self._settings, None if self._streams is None else self._streams.states()
        work: Work
        if self._worker is not None:
            work = BatchWork(self._worker, states, in_place=self._shared is not None, earlier=self._earlier)
        else:
            work = StreamWork(
                settings.dataset,
                part_of(settings.dataset, settings.shard),
                settings.collate_fn,
                states,
                None if self._streams is None else self._streams.split,
                batched=settings.batched,
                drop_last=settings.drop_last,
                packs=self._packs,
            )
        init = settings.worker_init_fn
        if isinstance(settings.dataset, IterDataPipe | MapDataPipe):
            init = partial(_sharding_worker_init_fn, init, *_get_distributed_settings())  # type: ignore[no-untyped-call]
        return WorkerSetup(work, board, self._base_seed, self.workers, init, self._composes, self._shared_seed, signals)

    @property
    def reusable(self) -> bool:
        return os.getpid() == self.pid and self._processes.reusable and not self._outgrown()

    def _outgrown(self) -> bool:
        """Return whether the workers cannot be told of what has changed in the dataset."""
        large = self._copied.changes().large if self._copied is not None else ""
        if large:
            _warn_of_change(large)
        return bool(large)

    def rest(self) -> bool:
        self._let_shards_go()
        return not self._processes.closed

    def close(self) -> None:
        if os.getpid() != self.pid or not self._started:
            return
        if self.interrupted:
            self._processes.sound = False
        try:
            self._end_processes()
        finally:
            self._let_shards_go()

    def _end_processes(self) -> None:
        try:
            ended = () if self.resources.persistent else self._turns.exhausted
            self._processes.close([worker for worker in range(self.workers) if worker not in ended])
        finally:
            for batch in self._outstanding.values():
                batch.let_shards_go()
            self._outstanding.clear()  # their blocks are not used again
            board = self._processes.board
            self.resources.meter.close(board.stages, board.calls)
            board.close()

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
        self._processes.check()
        if self._began:
            if self._copied is not None:
                self._send_changes(self._copied)
            self._begin_again()
        self._began, self._yielded, self._promised = True, 0, self._settings.noted_length
        if self._remote is not None:
            self._staging = Staging(self._remote, pass_input.coming, pass_input.samples, elsewhere=True)

    def _begin_again(self) -> None:
        """Have workers that have begun a pass begin another, and forget what they were asked for."""
        if self._settings.iterable:
            for sender in self._processes.senders:
                sender.send(Command.PASS, -1, self._shared_seed)
        while self._outstanding:
            self._take(None)
        self._begin_turns()

    def _send_changes(self, copied: Copied) -> None:
        if small := copied.changes().small:
            for sender in self._processes.senders:
                sender.send(Command.SET, -1, small)
        copied.sent()

    def new_batch(self) -> ProcessBatch:
        return ProcessBatch()

    def prepare(self, queue: deque[ProcessBatch], *, first: bool) -> bool:
        if os.getpid() != self.pid:
            super().prepare(queue, first=first)  # which raises
        if failure := self._processes.failure:
            raise WorkerDied(f"{failure} This iterator ended then: make a new one.")
        return first and self._copied is not None and self._send_or_restart(self._copied)

    def _send_or_restart(self, copied: Copied) -> bool:
        """Have the workers know what has changed in the dataset since the pass began; False: nothing has."""
        small, large = copied.changes()
        if not self.resources.persistent:
            self._copied = None  # no later pass has these workers
        if not (small or large) or self._staging is not None or (self._settings.iterable and self._streams is not None):
            return False
        if large:
            self._end_processes()
            self.start()
            self._begin_turns()
        else:
            self._send_changes(copied)
            self._begin_again()
        return True

    def depth(self, queue: deque[ProcessBatch]) -> int:
        return self._turns.depth

    def begin(self, batch: ProcessBatch) -> None:
        assert batch.given is not None
        given, positions = batch.given
        number, stream = self._tasks, self._turns.take()
        worker = stream % self.workers
        message: Any = (stream, given)
        if self._worker is not None:
            lease = batch.lease = None if self._shared is None else self._shared.reserve()
            if self._staging is not None:
                listed = given if self._worker.batched else [given]
                batch.shards = self._staging.shards_of(listed if isinstance(listed, list | tuple) else ())
            block = None if lease is None else lease.sent()
            message = Task(given, self._input.seed, self._input.epoch, positions, block).message
        try:
            self._processes.senders[worker].send(Command.TASK, number, message)
        except Exception as error:  # what the sampler gave cannot be pickled
            batch.error = error
            return
        batch.number, batch.worker, batch.stream = number, worker, stream
        self._outstanding[number] = batch
        self._tasks += 1
        self._turns.loads[worker] += 1

    def ready(self, queue: deque[ProcessBatch]) -> ProcessBatch | None:
        while True:
            batch = queue[0]
            if not self.in_order:
                batch = next((one for one in queue if one.came or one.error is not None), batch)
            if batch.came or batch.error is not None:
                break
            if batch.worker in self._turns.exhausted:  # it was asked for behind the worker's last batch
                queue.remove(batch)
                return None
            self._take(batch.worker if self.in_order else None)
        if batch.error is None and self._is_left_out(batch):
            queue.remove(batch)
            return None
        return batch

    def at_hand(self, queue: deque[ProcessBatch]) -> bool:
        batches = queue if not self.in_order else [queue[0]]
        there = any(batch.came or batch.error is not None or batch.worker in self._turns.exhausted for batch in batches)
        return there or self._processes.at_hand([batch.number for batch in batches])

    def _is_left_out(self, batch: ProcessBatch) -> bool:
        """Return whether the user gets nothing in the place of a batch; of its worker's dataset the state is noted."""
        streams = self._streams
        if streams is None:
            return batch.exhausted
        if not batch.exhausted:
            return streams.leaves_out(batch.stream, batch.state)
        if batch.state is not None:
            streams.ended(batch.stream, batch.state)
        return True

    def delivery(self, batch: ProcessBatch) -> Delivery:
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
        assert batch.given is not None
        samples = 1
        if self._settings.batched:
            samples = samples_given(batch.given[0])
            if self._worker is None:
                stacks = self._settings.collate_fn is default_collate
                samples = samples_in(out, samples, iterable=True, stacks=stacks)
        return Delivery(out, samples, bad=batch.bad)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take(self, owing: int | None) -> None:
        """Wait for the next answer and note it. Raises WorkerDied, WorkerStuck.

        owing: the worker that is waited for; None: any of those that have not answered.
        """
        answer = self._processes.answer(self.resources.timeout, partial(self._owing, owing))
        worker, kind, value, error = answer.worker, answer.kind, answer.value, answer.error
        batch = self._outstanding.get(answer.number)
        if batch is None or batch.worker != worker or kind not in self._statuses:
            raise self._processes.rubbish(worker, f"a message of kind {kind} and number {answer.number}")
        if isinstance(error, OSError | EOFError) and self._processes.is_dying():
            raise self._processes.died() from error  # what it sent cannot be fetched from it
        if isinstance(error, pickle.UnpicklingError | EOFError):
            raise self._processes.rubbish(worker, f"a truncated message ({said(error)})")
        if kind == Status.ERROR and error is None and not isinstance(value, ExceptionWrapper):
            raise self._processes.rubbish(worker, f"an error that is a {type(value).__name__}")
        del self._outstanding[answer.number]
        self._turns.loads[worker] -= 1
        batch.let_shards_go()
        # Samples of a batch that failed may be kept by anybody; of one that could not be read it is not known.
        needed, kept = 0, kind == Status.ERROR or error is not None
        if error is not None:
            batch.error = readable(error)
        elif kind == Status.ERROR:
            batch.error = error_of(value)
        elif kind == Status.EXHAUSTED:
            batch.exhausted, batch.state = True, value
            if self._turns.end(batch.stream):
                self._exhaust(worker)
        elif type(value) is Delivered:
            if value.calls:
                self._processes.board.counted[worker] = value.calls
            batch.value, batch.bad, batch.state, needed, kept = (
                value.batch, value.bad, value.state, value.needed, value.kept,
            )  # fmt: skip
        else:
            batch.value = value
        if self._repeats is not None and kind == Status.BATCH:
            self._repeats.came(worker, asked=self._processes.board.has_asked(worker))
        if self._shared is not None and batch.error is None:
            self._shared.learn(needed)
        if batch.lease is not None:  # the worker has finished with the memory of its task, or keeps some
            batch.lease.received(kept=kept)
            batch.lease = None
        batch.came = True

    def _owing(self, worker: int | None) -> set[int]:
        return {one.worker for one in self._outstanding.values()} if worker is None else {worker}

    @property
    def _statuses(self) -> tuple[Status, ...]:
        return _OF_STREAMS if self._worker is None else _OF_BATCHES

    def _exhaust(self, worker: int) -> None:
        """Ask no more of a worker in this pass. Its process ends, unless it makes the next pass, too."""
        self._turns.exhaust(worker)
        if self._repeats is not None and len(self._turns.exhausted) == self.workers:
            self._repeats.ended(asked=any(map(self._processes.board.has_asked, range(self.workers))))
        for number in [number for number, batch in self._outstanding.items() if batch.worker == worker]:
            del self._outstanding[number]
        if not self.resources.persistent:
            self._processes.release(worker)


_OF_BATCHES = Status.BATCH, Status.ERROR
_OF_STREAMS = (*_OF_BATCHES, Status.EXHAUSTED)


def _warn_of_change(large: str) -> None:
    """Say that workers are started anew for a change that they cannot be told of."""
    warn_user(
        f"{large} is another object than it was when the worker processes started: they are started anew, so that "
        "the next pass reads the dataset as it is now. (Numbers, strings and None are sent to workers that persist.)"
    )


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


def process_carrier(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> ProcessCarrier:
    """Return worker processes, where Python reads the dataset, unless worker_method= says threads."""
    if isinstance(held, ProcessCarrier):
        held.work_for(job)
        return held
    settings = job.settings
    job.loader().check_worker_number_rationality()
    remote = None if settings.iterable else remote_leaves(settings.dataset)
    context = context_of(settings.multiprocessing_context, remote=remote is not None and remote.by_client)
    seeds = _SharedSeeds(settings) if isinstance(settings.dataset, IterDataPipe) else None
    shared_seed = None if seeds is None else seeds.draw()
    drawn()
    if seeds is not None:
        seeds.draw()  # torch's iterator draws one for each pass, and one more before the first
    base_seed = draw_seed(settings.draws_from) if settings.seed is not None else 0
    base_seed = job.progress.drawn.setdefault("base", base_seed)
    return ProcessCarrier(job, context, base_seed, remote, seeds, shared_seed)

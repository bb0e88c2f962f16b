"""The tasks of worker processes: how the parent makes them of what a sampler gives, and how a worker does them.

torch's worker loop takes `TaskDataset` for the dataset, `identity` or `StreamBatches` for the collate_fn, and
`WorkerStart` for the worker_init_fn.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker

from penstock.call_counts import ThreadCalls, counted_here
from penstock.errors import InvalidOption
from penstock.executors.collating import collate_in
from penstock.executors.fetch import Fetch, Note
from penstock.executors.filler import BatchShards
from penstock.executors.job import Job, LoaderView
from penstock.executors.staging import Staging
from penstock.executors.workers.progress import Board, WorkerStage
from penstock.executors.workers.shared_memory import Lease, SharedBuffers
from penstock.executors.workers.worker_memory import Packed, WorkerBuffers
from penstock.hooks.calls import ANSWERED, natively_in_this_process
from penstock.order.permutations import Positions
from penstock.recipe import patches
from penstock.sample_notes import collated
from penstock.sources.tree import remote_leaves
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Delivered, Task
from penstock.state.streams import StatefulStream, restore_dataset, state_of
from penstock.system.limits import keep_freed_samples
from penstock.system.tracebacks import shorten, shortens

Batches = Callable[[int, int], Iterator[tuple[Any, Positions]]]
MakeStaging = Callable[[int, int], Staging]
"""Returns the staging of a pass, called with its seed and epoch."""


class Tasks:
    """A sampler of batches (or indices) that yields tasks."""

    def __init__(self, sampler: Any, *, batched: bool, shared: SharedBuffers | None) -> None:
        self._sampler = sampler
        self._batched = batched
        self._shared = shared
        self.lease: Lease | None = None
        """Of the memory for the latest task."""
        self._staging: Staging | None = None  # brings the shards of tasks, where some lie in an object store
        self.needed: BatchShards | None = None
        """Those of the latest task."""
        self.batches: Batches | None = None  # of the pass
        self.seed = self.epoch = 0

    def bring_shards(self, owner: object, make: MakeStaging | None) -> None:
        """Bring the shards of the pass that begins, for the workers; None: of no pass.

        owner: the pass, with which that ends.
        """
        if self._staging is not None:
            self._staging.close()
        self._staging = self.needed = None
        if make is not None:
            self._staging = make(self.seed, self.epoch)
            weakref.finalize(owner, self._staging.close)

    def __iter__(self) -> Iterator[Task]:
        if self.batches is None:  # by torch's __init__, for nothing: another call follows
            return map(self._task, iter(self._sampler))
        return map(self._task, self.batches(self.seed, self.epoch))

    def _task(self, given: tuple[Any, Positions]) -> Task:
        self.lease = None if self._shared is None else self._shared.reserve()
        if self._staging is not None:
            listed = given[0] if self._batched else [given[0]]
            self.needed = self._staging.shards_of(listed if isinstance(listed, list | tuple) else ())
        return Task(given[0], self.seed, self.epoch, given[1], None if self.lease is None else self.lease.sent())

    def __len__(self) -> int:
        return len(self._sampler)


def makes_own_batches() -> bool:
    """Return whether workers may make batches in memory of our choice: nobody has replaced torch's ways."""
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    return strategy == "file_descriptor" and collates_as_torch()


def spawning(loader: Any) -> Any:
    """Return a loader whose workers can use the client of object stores, which has no threads in a forked process.

    Raises InvalidOption where they are to be forked.
    """
    context = loader.multiprocessing_context
    if context is None and torch.multiprocessing.get_start_method(allow_none=True) in (None, "fork"):
        return LoaderView(loader, multiprocessing_context=torch.multiprocessing.get_context("spawn"))
    if context is not None and context.get_start_method() == "fork":
        raise InvalidOption(
            "shards in an object store cannot be read by forked processes: give multiprocessing_context='spawn' or "
            "'forkserver', or worker_method='thread'"
        )
    return loader


def staging_of(job: Job) -> MakeStaging | None:
    """Return what makes the staging of the pass, which brings whole shards for the workers; None: all is local."""
    remote = None if job.settings.iterable else remote_leaves(job.settings.dataset)
    if remote is None:
        return None
    batches, known = job.batches, job.batches.order.cuts_itself() and not job.batches.drawn_first()

    def make(seed: int, epoch: int) -> Staging:
        coming = partial(batches.coming, seed, epoch) if known else None
        return Staging(remote, coming, batches.samples_left() if known else 0, elsewhere=True)

    return make


_held: list[Any] = []  # while workers are forked: the program's handler of Ctrl-C, and what it is yet to be called with


def hold_interrupt() -> None:
    """Hold a Ctrl-C back while workers are forked: in the middle of it Python would lose the Ctrl-C, or the child."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        _held[:] = [handler]
        signal.signal(signal.SIGINT, lambda *given: _held.append(given))


def release_interrupt() -> None:
    """Let it come, here or in a forked child. Raises KeyboardInterrupt, or what the program's handler raises."""
    if _held and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _held[0])
        handler, *came = _held
        _held.clear()
        if came:
            handler(*came[0])


# --- in the worker ----------------------------------------------------------------------------------------------------


class TaskDataset:
    """What torch's worker takes for the dataset: indexed by the messages of tasks, it returns batches.

    Args:
        states: of the dataset in each worker as the pass begins; None: it has no state_dict().
        in_place: batches are built in shared memory.
    """

    def __init__(self, fetch: Fetch, dataset: Any, states: list[Any] | None, *, in_place: bool = False) -> None:
        self.fetch = fetch
        self.dataset = dataset
        self._states = states
        self._memory = WorkerBuffers() if in_place else None
        self.begin: Note  # in a worker, as
        self.lease: patches.Lease  # on what is exchanged there, for the life of the process

    def go_on(self, worker: int) -> None:
        """Let the dataset of a worker go on where a state says."""
        if self._states is not None:
            restore_dataset(self.dataset, self._states[worker])
            self._states = []

    def __getitem__(self, message: tuple[Any, ...]) -> Any:
        task = Task.of(*message)
        self.lease.meet()  # a sample of an earlier batch may have imported a package
        try:
            batch = self.fetch.make(task) if self._memory is None else self._packed(task, self._memory)
        except Exception as error:  # which torch sends; what else is raised ends the process here
            self.begin(WorkerStage.DONE, None)
            shorten(error)
            raise
        self.begin(WorkerStage.DONE, None)
        bad = [] if self.fetch.replacing is None else self.fetch.replacing.take_news()
        memory, calls = self._memory, counted_here()
        needed, kept = (0, False) if memory is None else (memory.needed, memory.kept)
        if self._states is None and not (bad or needed or kept or calls):
            return batch
        state = None if self._states is None else state_of(self.dataset)
        return Delivered(batch, bad, state, needed, kept, calls)

    __getitems__ = __getitem__

    def _packed(self, task: Task, memory: WorkerBuffers) -> Packed:
        """Return the batch of a task, built in place, as it is sent.

        A user's collate_fn may keep what it was given, or what it returns: a block that somebody holds is not used
        again.
        """
        memory.begin(task.block)
        return memory.packed([self.fetch.make(task, memory)])


class StreamBatches:
    """The collate_fn of a worker process for an iterable dataset: its batches come with the calls that it has counted.

    packs: the small tensors of its batches are sent by value. Torch would send a descriptor of shared memory for each,
    which takes some 200 us.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], *, packs: bool) -> None:
        self._collate_fn = collate_fn
        self._memory = WorkerBuffers() if packs else None

    @shortens
    def __call__(self, samples: Any) -> Any:
        ANSWERED.meet_imported()
        memory = self._memory
        if memory is not None:
            memory.begin(None)
        if memory is None or self._collate_fn is not default_collate:
            batch = collated(self._collate_fn, None, samples)
        else:
            batch = collate_in(memory, None, samples)
        if memory is not None:
            batch = memory.packed([batch])
        calls = counted_here()
        return Delivered(batch, calls=calls) if calls else batch


def identity(batch: Any) -> Any:
    """Return a batch that is collated: the collate_fn of torch's worker."""
    return batch


@dataclasses.dataclass(frozen=True)
class WorkerStart:
    """The worker_init_fn that torch's worker calls: before the user's, it sets up Penstock's parts of the worker."""

    board: Board
    init: Callable[[int], Any] | None
    composes: bool

    @shortens
    def __call__(self, worker: int) -> None:
        release_interrupt()
        keep_freed_samples()
        if self.composes:
            natively_in_this_process(ThreadCalls())
        begin, each = self.board.report(worker)
        begin(WorkerStage.INIT, None)
        tasked = torch_worker._worker_info.dataset  # type: ignore[union-attr]
        if isinstance(tasked, TaskDataset):
            tasked.begin = tasked.fetch.note = begin
            tasked.fetch.each = each
            tasked.lease = tasked.fetch.lease()
        if isinstance(tasked, StatefulStream):
            tasked.worker = worker
        if isinstance(tasked, TaskDataset | StatefulStream):
            torch_worker._worker_info = _with_dataset(torch_worker._worker_info, tasked.dataset)
        if self.init is not None:
            self.init(worker)
        if isinstance(tasked, TaskDataset):
            tasked.go_on(worker)
        begin(WorkerStage.DONE if isinstance(tasked, TaskDataset) else WorkerStage.ITERATING, None)


def _with_dataset(info: Any, dataset: Any) -> Any:
    """Return torch's WorkerInfo with another dataset."""
    if dataclasses.is_dataclass(info):
        return dataclasses.replace(info, dataset=dataset)  # type: ignore[type-var]
    return type(info)(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=dataset)  # torch before 2.11

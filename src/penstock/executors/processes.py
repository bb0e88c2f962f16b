"""One pass in worker processes: torch's own iterator and worker loop, around a `Fetch`, and watched.

The worker's end: torch's loop runs as it is; for a map-style dataset it is given a stand-in that hands each task to
`Fetch.load`. The parent's end: torch's iterator, which waits here for batches and for the ends of processes at once.
A worker that dies, or does not deliver within timeout=, becomes an error that says at which sample, in what and why.
"""

from __future__ import annotations

import errno
import inspect
import multiprocessing.util
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import torch.multiprocessing
from torch._utils import ExceptionWrapper
from torch.utils.data import MapDataPipe, _utils, default_collate
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, signal_handling
from torch.utils.data.dataloader import (
    _get_distributed_settings,
    _MultiProcessingDataLoaderIter,
    _sharding_worker_init_fn,
)

from penstock.errors import WorkerDied, WorkerStuck
from penstock.executors.fetch import Fetch
from penstock.executors.filler import BatchShards
from penstock.executors.iterator import INTERRUPTED
from penstock.executors.job import Job, LoaderView, view_of
from penstock.executors.workers.post_mortem import WorkerWatch, clear_away, end, note_space
from penstock.executors.workers.progress import Board
from penstock.executors.workers.queues import QueueContext, close_unread, is_ending
from penstock.executors.workers.shared_memory import Lease
from penstock.executors.workers.tasks import (
    MakeStaging,
    StreamBatches,
    TaskDataset,
    Tasks,
    WorkerStart,
    hold_interrupt,
    identity,
    makes_own_batches,
    release_interrupt,
    spawning,
    staging_of,
)
from penstock.hooks.calls import ANSWERED
from penstock.observe import Delivery, Observers, observed
from penstock.order.schedule import Arrivals
from penstock.recipe import patches
from penstock.sample_notes import add_note
from penstock.settings import Method
from penstock.showing import said
from penstock.sources.naming import name_of
from penstock.state.delivery import Delivered, Task
from penstock.state.manifest import BadSample
from penstock.state.streams import End, StatefulStream
from penstock.stats import samples_given, samples_in
from penstock.system.tracebacks import shorten

_profiles = torch._C._autograd._profiler_enabled
_PINNED_SLICE = 0.05  # seconds between looks at the processes while torch's thread pins batches
_NAMES_WORKER = "worker_idx" in inspect.signature(_MultiProcessingDataLoaderIter._process_data).parameters
"""torch says which worker a batch is of, as it does from 2.7 on."""
_OUT_OF_FILES = (  # in torch's words
    "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
    "`ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)
_DYING = 1.0  # seconds between a worker's connections and the worker itself being gone


class ProcessPass(_MultiProcessingDataLoaderIter):
    """torch's iterator over worker processes, with a Fetch in them and an eye on them.

    After WorkerDied all workers are ended and next() raises WorkerDied again: a pass that has failed never looks
    finished. After an interrupt (Ctrl-C, in any line of next()) each next() raises RuntimeError. After WorkerStuck
    next() waits anew, as torch's iterator does. Where `reusable` is False a loader with persistent_workers makes a new
    iterator.

    Raises:
        WorkerDied: from next() and from the start of a pass.
        WorkerStuck: the same, after timeout= seconds.
    """

    observers: Observers = ()
    arrivals: Arrivals | None
    """Told which batches come, where they come out of order."""

    # Over 15 attributes: they are set before torch's __init__, which starts the workers and calls half of the methods.

    def __init__(self, job: Job, loader: Any, staging: MakeStaging | None) -> None:
        settings, resources = job.settings, job.resources
        fetch = None if settings.iterable else job.fetch(here=True)
        self.batches, self.staging = job.batches, staging
        self._owner = os.getpid()
        self._sizes: dict[int, int] = {}  # what the sampler gave, by the number of the task
        self._size = 0  # of the batch that came last
        self._workers_of: dict[int, int] = {}  # by the number of the task, where torch does not say it
        self._follow(job)
        self._given_base = job.progress.drawn.get("base")
        self._bad: Sequence[BadSample] = ()  # samples that were found bad in the batch that came last
        self._came = 0  # the number of the batch that came last
        self._key = partial(job.epochs.next, counted=settings.persistent_workers)
        self._failure = ""  # the first sentence of what ended all workers
        self._stuck = False  # the last wait for a batch took too long
        self._inside: dict[int, bool] = {}  # threads in the middle of a call, or whose call was interrupted there
        self._one_at_a_time = threading.Lock()
        self._clear_away: multiprocessing.util.Finalize | None = None
        self._board = Board(loader.num_workers)
        self._watch = WorkerWatch(self._board, partial(name_of, settings.dataset))
        self._meter, self._stages = resources.meter, self._board.stages
        self._meter.open(self._stages, self._board.calls)
        self._context = QueueContext(loader.multiprocessing_context or torch.multiprocessing)
        ours = makes_own_batches()
        self._shared = resources.shared if ours and fetch is not None and fetch.batched else None
        self._leases: dict[int, Lease] = {}  # of tasks whose batches have not come, by the number of the task
        self._needed: dict[int, BatchShards | None] = {}  # shards, by the number of the task
        self._tasks = None
        if fetch is not None:
            self._tasks = Tasks(loader._index_sampler, batched=fetch.batched, shared=self._shared)
        if self._shared is not None:
            self._shared.expect(loader.num_workers * loader.prefetch_factor)
        composes = settings.method is not Method.PROCESS
        view = self._view(loader, fetch, composes, StreamBatches(loader.collate_fn, packs=ours))
        try:
            with self._hooked(fetch, composes=composes):
                super().__init__(view)
        except BaseException:
            self._shutdown_workers()
            raise
        finally:
            release_interrupt()
        self._dataset, self._collate_fn = loader.dataset, loader.collate_fn
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"  # traces are read by it

    def _hooked(self, fetch: Fetch | None, *, composes: bool) -> AbstractContextManager[None]:
        """Hold what the workers answer set while they are forked, and Ctrl-C back.

        They would each search all modules for what to set, and have a copy of each page that they write to.
        """
        if self._context.get_start_method() != "fork":
            return nullcontext()
        hold_interrupt()
        if fetch is not None:
            return fetch.lease()
        return patches.Lease(ANSWERED) if composes else nullcontext()

    def _view(self, loader: Any, fetch: Fetch | None, composes: bool, collate: Callable[[Any], Any]) -> LoaderView:
        """Return the loader as torch's iterator and its workers are to see it. collate: of an iterable dataset."""
        init = loader.worker_init_fn
        replaced: dict[str, Any] = {"multiprocessing_context": self._context}
        if fetch is not None:
            if isinstance(loader.dataset, MapDataPipe):  # torch would do this for the dataset that it is given
                settings = _get_distributed_settings()  # type: ignore[no-untyped-call]
                init = partial(_sharding_worker_init_fn, init, *settings)
            states = None if self.streams is None else self.streams.states()
            replaced["dataset"] = TaskDataset(fetch, loader.dataset, states, in_place=self._shared is not None)
            replaced["collate_fn"] = identity
            replaced["_index_sampler"] = self._tasks
        elif self.streams is not None:
            keep = 0 if not loader._auto_collation else loader.batch_size if loader.drop_last else 1
            stating = StatefulStream(loader.dataset, collate, self.streams, keep)
            replaced["dataset"], replaced["collate_fn"] = stating, stating.collate
        else:
            replaced["collate_fn"] = collate
        replaced["worker_init_fn"] = WorkerStart(self._board, init, composes)
        return LoaderView(loader, **replaced)

    def _follow(self, job: Job) -> None:
        """Tell those of the batches of a pass that begins who follow it."""
        self.arrivals = job.progress.arrivals
        self.streams = streams = job.streams
        # The worker that comes first in the pass that begins.
        self._turn = streams.following if streams is not None and streams.given else 0

    @property
    def _base_seed(self) -> int:
        return self._base

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:  # by torch's __init__
        self._base = drawn if self._given_base is None else self._given_base

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with these workers."""
        if os.getpid() != self._owner:
            return False
        left = any((death.code or 0) >= 0 for death in self._watch.notice().values())  # a Ctrl-C that they got, too
        return not (self._failure or self._stuck or self._inside or self._shutdown or left)

    def restart(self, job: Job) -> None:
        """Make another pass with these workers."""
        self.batches, self.staging = job.batches, staging_of(job)
        self._reset(view_of(job))
        if self.streams is not job.streams:  # the workers came with those of the pass before
            self._follow(job)
        self.arrivals = job.progress.arrivals
        job.progress.drawn.setdefault("base", int(self._base))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._inside[threading.get_ident()] = True
        if first_iter:
            # torch's SIGCHLD handler would raise wherever the program is; here a death is noticed by next().
            signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False
            self._watch.begin(self._workers, self._context.results, pinned=self._pin_memory)
            # At exit it comes after multiprocessing has ended the workers. It holds the queues: the garbage collector
            # would close their descriptors before it ends a pass in a cycle, which then wrote to closed ones.
            queues = [*self._index_queues, self._context.results]
            self._clear_away = multiprocessing.util.Finalize(
                None, clear_away, (self._board, self._watch.pids, queues), exitpriority=-1
            )
            release_interrupt()  # now that all of them are known
        seed, epoch = self._key()
        if self._tasks is not None:
            self._tasks.seed, self._tasks.epoch = int(self._base_seed) if seed is None else seed, epoch
            self._tasks.batches = self.batches
            self._needed.clear()
            self._tasks.bring_shards(self, self.staging)
        self._sizes.clear()
        super()._reset(loader, first_iter)
        del self._inside[threading.get_ident()]

    def _try_put_index(self) -> None:
        while self._turn:
            next(self._worker_queue_idx_cycle)
            self._turn -= 1
        super()._try_put_index()
        if not _NAMES_WORKER and (put := self._task_info.get(self._send_idx - 1)):
            self._workers_of[self._send_idx - 1] = put[0]

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        if self._tasks is not None:
            self._needed[self._send_idx] = self._tasks.needed
            if self._tasks.lease is not None:
                self._leases[self._send_idx] = self._tasks.lease
        given = index.given if isinstance(index, Task) else index
        self._sizes[self._send_idx] = samples_given(given) if self._auto_collation else 1
        return index.message if isinstance(index, Task) else index

    def _samples(self, batch: Any) -> int:
        for number in [number for number in self._sizes if number not in self._task_info]:
            self._size = self._sizes.pop(number)  # those before it failed, or were not fulfilled
        iterable = self._tasks is None and self._auto_collation
        return samples_in(batch, self._size, iterable=iterable, stacks=self._collate_fn is default_collate)

    def __next__(self) -> Any:
        if os.getpid() != self._owner:
            raise RuntimeError("the workers of this iterator belong to the parent process of this fork")
        thread = threading.get_ident()
        if thread in self._inside:  # an interrupt reaches the workers too: what they did with their batches is unknown
            raise RuntimeError(INTERRUPTED)
        self._inside[thread] = True
        try:
            batch = observed(self.observers, self._delivery)
        except Exception as error:
            del self._inside[thread]
            shorten(error)
            raise
        except BaseException:
            self._shutdown_workers()  # a notebook keeps the traceback, and with it this pass
            raise
        del self._inside[thread]  # no interrupt comes between this step of the interpreter and the return
        return batch

    def _delivery(self) -> Delivery:
        started, self._bad = perf_counter(), ()
        batch = self._next_batch()
        waited = perf_counter() - started
        return Delivery(batch, self._samples(batch), waited, bad=self._bad, in_flight=self._tasks_outstanding)

    def _next_batch(self) -> Any:
        try:
            if _profiles() or self._IterableDataset_len_called is not None:
                return super().__next__()
            batch = self._next_data()  # all that torch's __next__ does then, which tells the profiler at any price
            self._num_yielded += 1
            return batch
        except (StopIteration, WorkerStuck):
            raise
        except Exception as error:
            note_space(error)
            if self.streams is not None:
                self.streams.failed()
            if self.arrivals is not None:
                self.arrivals.read(None if isinstance(error, WorkerDied) else self._came)
            raise

    def _next_data(self) -> Any:
        with self._one_at_a_time:
            if self._failure:
                raise WorkerDied(f"{self._failure} This iterator ended then: make a new one.")
            while (batch := super()._next_data()) is _NOTHING:  # type: ignore[no-untyped-call]
                pass
            return batch

    def _process_data(self, data: Any, *worker: int) -> Any:
        (worker_idx,) = worker or (self._workers_of.pop(self._rcvd_idx - 1 if self._in_order else self._came),)
        try:
            batch = super()._process_data(data, *worker)  # type: ignore[no-untyped-call]
        except Exception as error:
            if isinstance(data, ExceptionWrapper):
                raise _told(error, data) from None
            raise
        needed, state = 0, None
        while isinstance(batch, Delivered):
            if batch.calls:
                self._board.counted[worker_idx] = batch.calls
            self._bad, state, needed = batch.bad, state or batch.state, batch.needed
            batch = batch.batch
        if self._shared is not None:
            self._shared.learn(needed)
        if self.streams is not None:
            if isinstance(batch, End):
                self.streams.ended(worker_idx, state)
                return _NOTHING
            if self.streams.to_drop[worker_idx]:
                self.streams.dropped(worker_idx, state)
                return _NOTHING
            self.streams.read(worker_idx, state)
        if self.arrivals is not None:
            self.arrivals.read(self._came)
        return batch

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        self._watch.release(worker_id)
        super()._mark_worker_as_unavailable(worker_id, shutdown)

    def _get_data(self) -> Any:
        if self._timeout <= 0:
            return super()._get_data()  # type: ignore[no-untyped-call]
        success, data = self._try_get_data(self._timeout)
        if not success and self._pin_memory and not self._pin_memory_thread.is_alive():
            raise RuntimeError("Pin memory thread exited unexpectedly")
        if not success:
            self._stuck = True
            # The workers that the awaited batch is to come from.
            awaited = self._task_info.get(self._rcvd_idx, ()) if self._in_order else ()
            waiting = {info[0] for info in self._task_info.values() if len(info) == 1}
            owing = set(awaited[:1]) or waiting or self._watch.watched
            raise WorkerStuck(self._watch.why_stuck(self._timeout, owing))
        return data

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        """Wait for a batch, or for a worker's end. Raises WorkerDied."""
        deadline = monotonic() + timeout
        while True:
            if self._watch.notice():  # also where the living always have a batch ready
                raise self._died()
            left = max(0.0, deadline - monotonic())
            if self._pin_memory:  # torch's thread may hold what the dead have sent
                left = min(left, _PINNED_SLICE)
            try:
                data = self._data_queue.get(timeout=left)
            except queue.Empty:
                error = self._context.results.take_error()
            else:
                self._stuck = False
                self._came = data[0]
                self._note_arrival(data[0], data[1])
                return True, data
            over = monotonic() >= deadline or (self._pin_memory and not self._pin_memory_thread.is_alive())
            if error is not None or over:
                # Whose batch cannot be fetched from it is dying. A dead worker's children may hold its sentinel open.
                dying = isinstance(error, (OSError, EOFError)) and not self._watch.deaths
                if self._watch.notice(_DYING if dying else 0.0, by_pid=True):
                    raise self._died() from error
            if error is not None:
                if getattr(error, "errno", None) == errno.EMFILE or "items of ancdata" in said(error):
                    raise RuntimeError(_OUT_OF_FILES) from error  # in the middle of a message, or before it
                raise error
            if over:
                return False, None

    def _died(self) -> WorkerDied:
        """Return the error for the workers that have ended, and end the others."""
        text = self._watch.why_died(self._context.get_start_method())
        self._failure = next(iter(self._watch.deaths.values())).as_torch_says()
        self._shutdown_workers()
        return WorkerDied(text)

    def _shutdown_workers(self) -> None:
        """End the workers: by torch's protocol, or by signals where one is dead or stuck. No hang, no orphan."""
        if getattr(_utils, "python_exit_status", None) is not False or os.getpid() != self._owner:
            return  # Python ends, and multiprocessing ends them; or this is a forked child's copy
        if getattr(self, "_shutdown", True):  # there are none, or no more
            if hasattr(self, "_stages"):
                self._meter.close(self._stages, self._board.calls)
                self._board.close()
            return
        try:
            if self._is_sound():
                super()._shutdown_workers()
            else:
                self._abandon()
        finally:
            end(self._workers)
            (self._clear_away or partial(clear_away, self._board, self._watch.pids))()
            self._leases.clear()  # their blocks are not used again
            for number in list(self._needed):
                self._release_shards(number)
            if self._tasks is not None:
                self._tasks.bring_shards(self, None)
            self._meter.close(self._stages, self._board.calls)
            self._board.close()

    def _note_arrival(self, number: Any, message: Any) -> None:
        """Take note that a message has come: the worker has finished with the memory of its task, or keeps some."""
        self._release_shards(number)
        lease = self._leases.pop(number, None)
        if lease is not None:  # samples of a batch that failed may be kept by anybody
            kept = isinstance(message, ExceptionWrapper) or (isinstance(message, Delivered) and message.kept)
            lease.received(kept=kept)

    def _release_shards(self, number: Any) -> None:
        if (needed := self._needed.pop(number, None)) is not None:
            needed.release()

    def _is_sound(self) -> bool:
        """Return whether torch's protocol of ending can work: all workers live, listen, and hold no lock of it."""
        if self._failure or self._stuck or self._inside or self._watch.notice() or not hasattr(self, "_workers_status"):
            return False
        if any(map(is_ending, self._index_queues)):
            return False  # the iterator was in a cycle: torch would wait 5 s for each worker and then end it
        lock = self._workers_done_event._cond  # type: ignore[attr-defined]
        return bool(lock.acquire(True, _DYING)) and lock.release() is None

    def _abandon(self) -> None:
        """End the workers by signals alone: any lock that they share may be held by a dead one."""
        self._shutdown = True
        end(self._workers)
        results = self._context.results
        if hasattr(self, "_pin_memory_thread"):
            self._pin_memory_thread_done_event.set()
            results.hang_up()
            self._pin_memory_thread.join(MP_STATUS_CHECK_INTERVAL)
        for index_queue in self._index_queues:
            close_unread(index_queue)
        results.cancel_join_thread()
        results.close()


def _told(error: Exception, sent: ExceptionWrapper) -> Exception:
    """Return torch's error for one of a worker's; another where its class is lost, a note where its words are."""
    kind: type[Exception] = sent.exc_type
    text: str = sent.exc_msg
    words = f"Caught {kind.__name__} {sent.where}.\nOriginal {text}"
    if isinstance(error, kind) and not isinstance(error, StopIteration):
        if not any(shown in said(error) for shown in (text, repr(text)[1:-1])):  # a KeyError has its repr()
            add_note(error, words)
        return error
    # Its class may take other arguments than torch gave, and a StopIteration would end the pass.
    return RuntimeError(words) if isinstance(error, StopIteration) or text not in said(error) else error


_NOTHING = object()
"""In the place of a batch that the user is not given."""


class ProcessExecutor:
    """Torch's worker processes, where Python reads the dataset, unless worker_method= says threads."""

    def open(self, job: Job, held: ProcessPass | None) -> ProcessPass:
        """Return an iterator of the batches: the one that is held, whose workers make this pass too, or a new one."""
        if held is not None:
            held.restart(job)
            return held
        job.loader().check_worker_number_rationality()
        staging = staging_of(job)
        made = ProcessPass(job, view_of(job) if staging is None else spawning(view_of(job)), staging)
        job.progress.drawn.setdefault("base", int(made._base))
        return made

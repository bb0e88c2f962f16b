"""A pass in the caller's thread: it does in two functions what torch's iterator and fetcher do for a batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from operator import length_hint
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.utils.data import Subset, default_collate, graph_settings
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _get_distributed_settings, _share_dist_seed

import penstock._native as _native
from penstock import call_counts, loop_times, sample_notes
from penstock.observe import Delivery, LoopWatch, Meter, Observers, PassCount, observed
from penstock.passes.carrier import pinned
from penstock.passes.job import Job
from penstock.recipe.patches import Lease, this_thread
from penstock.sample_notes import note_batch, note_sample
from penstock.settings import Method, Settings
from penstock.sources.unchanged import replaced_fetcher
from penstock.state.progress import PassBatches
from penstock.state.streams import Entry, Streams, Turns, restore_dataset, restore_fetcher, state_of, with_first_drawn
from penstock.stats import samples_in
from penstock.system.deferred import deferred
from penstock.system.tracebacks import shorten
from penstock.system.warn_user import warn_user
from penstock.workers import indexed
from penstock.workers.rows import Rows, gathers_indexed, may_be_gathered

if TYPE_CHECKING:
    from penstock.hooks import calls
    from penstock.passes import iterator
    from penstock.sources import stream_parts
    from penstock.workers import collated
else:
    (calls,) = deferred("penstock.hooks", "calls")
    (iterator,) = deferred("penstock.passes", "iterator")
    (stream_parts,) = deferred("penstock.sources", "stream_parts")
    (collated,) = deferred("penstock.workers", "collated")

#: Stands for a batch, or for what the sampler gives, that is not there yet.
_NOTHING = object()
#: Classes of dataset whose samples were light in the latest pass that had their calls answered.
_light: weakref.WeakSet[type] = weakref.WeakSet()
_profiles = torch._C._autograd._profiler_enabled


class CallerPass(_BaseDataLoaderIter):
    """One pass over the data in the caller's thread.

    For programs that ask it is one of torch's by its class, its attributes and its name in the profiler; it shares none
    of its code. After an interrupt (Ctrl-C, in any line of next()) each next() raises RuntimeError.

    Args:
        settings: of the loader, with num_workers=0 or chosen.
        begin: returns what the sampler gives; it is called where torch calls iter() of the sampler.
        draw_base: draws the base seed of the pass, behind that call.
        meter: counts getitem, collate and iterate (over an iterable dataset).
        pins: batches come in page-locked memory.
        rows: returns the batch of some rows in the place of dataset and collate_fn; None: these are called.
        learn: returns what gathers the batches of a dataset whose class only indexes; called once it has made some
            samples. None: the class makes all batches.
        composes: each Compose that the dataset calls runs natively.
        streams: the states of a dataset that has a state_dict().
        ahead: the pass is read ahead of its user.
        eager: the sampler is asked for the first batch at once, as by torch's workers.
    """

    # Over 15 attributes: those that torch's iterators have too.

    _num_workers, _timeout, _persistent_workers = 0, 0, False
    _shared_seed: Any = None
    _pg: Any = None
    _profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"  # traces are read by it
    _observers: Observers = ()
    _loop: LoopWatch | None = None
    """Counts the loop over the pass, whose observers read what it counts; None: each is told of each batch."""
    _following: tuple[Callable[[], None], ...] = ()
    """What observers do behind each batch that they only read of."""
    reusable = True
    """A kept one begins anew: it has no workers to lose."""
    _profiled = False  # the profiler knows of the call that is under way

    # not torch's: this draws in the same order
    def __init__(
        self,
        settings: Settings,
        begin: Callable[[], Iterator[Any]],
        draw_base: Callable[[], int],
        meter: Meter,
        *,
        pins: bool,
        rows: Rows | Fetched | indexed.IndexedRows | collated.RowsForCollator | None,
        learn: Callable[[], indexed.IndexedRows | None] | None,
        composes: bool,
        streams: Streams | None,
        ahead: bool,
        eager: bool,
    ) -> None:
        self._dataset: Any = settings.dataset
        if settings.shard is not None and settings.iterable:
            self._dataset = stream_parts.part_of(self._dataset, settings.shard)
        self._collate_fn = settings.collate_fn
        self._index_sampler, self._auto_collation = settings.index_sampler, settings.batched
        self._drop_last, self._pin_memory = settings.drop_last, pins
        self._maps = not settings.iterable
        self._dataset_kind = _DatasetKind.Map if self._maps else _DatasetKind.Iterable
        self._IterableDataset_len_called = settings.noted_length  # type: ignore[assignment]
        self._promised = None if self._maps else settings.noted_length
        split = None if streams is None else streams.split
        (given,) = [None] if streams is None or split is not None else streams.states()
        generator = settings.draws_from
        if settings.is_pipe and not self._maps:
            self._seed_pipe(generator)
        batches = begin()
        self._base_seed = draw_base()
        if given is not None:  # the dataset's state may be that of a generator
            if self._maps and streams is not None and any(streams.counts):
                batches = with_first_drawn(batches)
            restore_dataset(self._dataset, given)
        self._sampler_iter = with_first_drawn(batches) if eager else batches
        if settings.is_pipe:
            graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        self._num_yielded = 0
        self._read: Any = self._dataset if rows is None else rows
        self._collate = self._collate_fn if rows is None else getattr(rows, "collate", _as_it_is)
        self._indexed = rows if isinstance(rows, indexed.IndexedRows) else None
        # Samples that are made before the class is read, of this pass and those before it.
        self._learn, self._learning = learn, 0
        if learn is not None:
            self._learning = max(1, indexed.LEARNING - meter.counter.direct()[1])
        self._meter, self._clock, self._count = meter, _native.CallerClock(meter.counter), PassCount()
        self._sampling = RLock()  # several threads may call next()
        self._lease: Lease | None = None
        # To exchange functions takes 30 us, which samples without a costly call never win back. What other loaders have
        # shown of the dataset's class is believed until the first batch.
        answers = composes and not meter.light()
        self._believes = answers and self._maps and _kind_of(self._dataset) in _light
        if answers and not self._believes:
            self._answer_calls()
        if streams is not None and split is not None:
            self._dataset_fetcher = Turns(
                streams, self._collate_fn, batched=settings.batched, drop_last=settings.drop_last, ahead=ahead
            )
            streams = None  # the fetcher tells it
        if not self._maps:
            self._begin_stream(given)
        self._streams = streams if ahead else None
        if streams is not None and not ahead:
            fetcher = None if self._maps else self._dataset_fetcher
            streams.now = partial(_states_now, self._dataset, fetcher)

    def _seed_pipe(self, generator: torch.Generator | None) -> None:
        """Seed the shuffling of a DataPipe, alike on all ranks."""
        if dist.is_available() and dist.is_initialized():
            self._pg = dist.new_group(backend="gloo")
        self._shared_seed = _share_dist_seed(generator, self._pg)  # type: ignore[no-untyped-call]
        shared = torch.Generator().manual_seed(self._shared_seed)
        self._dataset = graph_settings.apply_random_seed(self._dataset, shared)

    def _answer_calls(self) -> None:
        """Have the costly calls of the dataset's code answered, from the next batch on."""
        self._lease, self._calls = Lease(calls.ANSWERED), self._meter.calls.of_this_thread()

    def _begin_stream(self, given: Any) -> None:
        """Begin to iterate over the dataset. given: its state, which it continues from; None: it has none."""
        fetcher = self._dataset_fetcher
        if self._collate_fn is not default_collate:  # whose StopIteration is not the end of the samples
            fetcher.collate_fn = partial(sample_notes.collated, self._collate_fn, None)
        if given is not None:
            restore_fetcher(fetcher, given)

    @cached_property
    def _dataset_fetcher(self) -> Any:
        """Torch's; it goes through an iterable dataset, and is made for programs that look at it for another."""
        return _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )

    @cached_property
    def _world_size(self) -> int:
        return int(_get_distributed_settings()[0])  # type: ignore[no-untyped-call]

    @cached_property
    def _rank(self) -> int:
        return int(_get_distributed_settings()[1])  # type: ignore[no-untyped-call]

    @property
    def _pin_memory_device(self) -> str | None:  # type: ignore[override]
        device = torch.accelerator.current_accelerator() if self._pin_memory else None
        return None if device is None else device.type

    def __len__(self) -> int:
        return len(self._index_sampler)

    def close(self) -> None:
        """End the pass, which has nothing to end."""

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")

    # --- a batch ----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        if _profiles() and not self._profiled:
            try:
                return self._profiled_next()
            except Exception as error:
                shorten(error)
                raise
        try:
            if (loop := self._loop) is None:
                return observed(self._observers, self._delivery)
            batch, count = self._batch(), self._count
            self._num_yielded = number = self._num_yielded + 1
            if self._clock.handed(number, loop.every, loop.looked, loop_times.SHORT_PASS):
                loop.look(begins=number == 1)
            count.taken = count.handed = count.taken + 1
            for follow in self._following:
                follow()
            return batch
        except StopIteration:
            for observer in () if self._loop is None else self._observers:
                observer.ended()
            raise
        except Exception as error:
            if self._loop is not None:
                self._count.taken += 1
                for observer in self._observers:
                    observer.failed(error)
            shorten(error)
            raise
        except BaseException:  # Ctrl-C in any line: what was begun is not known
            self._sampler_iter = iter(_interrupted, None)
            raise

    def _profiled_next(self) -> Any:
        self._profiled = True
        try:
            with record_function(self._profile_name):
                return next(self)
        finally:
            self._profiled = False

    def _batch(self) -> Any:
        """Return the next batch: what torch's iterator and fetcher do."""
        clock, answering, counting = self._clock, this_thread, call_counts.this_thread
        before, asked, samples, left = (answering.native, counting.sink), _NOTHING, _NOTHING, None
        if self._lease is not None:
            self._lease.meet()
        clock.called()
        try:
            try:
                if self._lease is not None:
                    answering.native, counting.sink = True, self._calls
                with self._sampling:
                    asked = next(self._sampler_iter)
                if not self._maps:
                    batch = self._streamed(asked)
                else:
                    dataset = self._read
                    if not self._auto_collation:
                        samples = dataset[asked]
                    elif whole := getattr(dataset, "__getitems__", None):
                        samples = whole(asked)
                    else:
                        asked = asked if type(asked) is list else list(asked)
                        left = iter(asked)  # its length hint gives the position, at no cost
                        samples = [dataset[index] for index in left]
                    clock.read()
                    batch = self._collate(samples)
                    clock.made(length_hint(asked, 1) if self._auto_collation else 1)
                    if self._learning > 0:
                        self._learn_class(length_hint(asked, 1))
                    elif self._indexed is not None and self._indexed.ended:
                        self._unlearn()
                    if self._believes:
                        self._believes = False
                        if not self._meter.light():
                            _light.discard(_kind_of(self._dataset))
                            self._answer_calls()
                if self._meter.sinks:
                    self._tell()
                if self._pin_memory:
                    batch = pinned(batch)
                return batch
            finally:
                answering.native, counting.sink = before
        except Exception as error:
            self._note(error, asked, samples, left)
            if isinstance(error, StopIteration) and self._lease is not None:
                self._lease = None
                if self._meter.light():
                    _light.add(_kind_of(self._dataset))
            raise

    def _learn_class(self, samples: int) -> None:
        """Have the next batches gathered where the class, which has made enough samples, only indexes."""
        self._learning -= samples
        if self._learning <= 0 and self._learn is not None:
            self._learning, self._indexed = 0, self._learn()
            if self._indexed is not None:
                self._read, self._collate = self._indexed, _as_it_is

    def _unlearn(self) -> None:
        """Have the class make the next batches, of Python's numbers: the dataset was changed."""
        if self._learn is None:  # the pass began with rows, whose numbers are arrays
            self._sampler_iter = map(_listed, self._sampler_iter)
        self._read, self._collate, self._indexed = self._dataset, self._collate_fn, None

    def _streamed(self, asked: Any) -> Any:
        fetcher = self._dataset_fetcher
        batch = fetcher.fetch(asked)
        given = length_hint(asked, 1) if self._auto_collation else 1
        last = fetcher.ended and self._auto_collation
        self._clock.made(samples_in(batch, given, iterable=last, stacks=self._collate_fn is default_collate), True)
        return batch

    def _note(self, error: Exception, asked: Any, samples: Any, left: Any) -> None:
        """Note on an error of the dataset or the collate_fn which sample or batch it is about."""
        if asked is _NOTHING or not self._maps:
            return
        asked = _listed(asked)
        if samples is not _NOTHING:
            note_batch(error, asked, samples)
        elif left is not None:
            note_sample(error, asked[len(asked) - length_hint(left) - 1])
        elif self._auto_collation:
            note_batch(error, asked)
        else:
            note_sample(error, asked)

    # --- observers --------------------------------------------------------------------------------------------------

    @property
    def observers(self) -> Observers:
        """What is told of the pass; where all of them can read what it counts, of its errors and its end only."""
        return self._observers

    @observers.setter
    def observers(self, observers: Observers) -> None:
        self._observers, self._loop, self._following = observers, None, ()
        loop = None
        for one in observers:
            if not one.reads_counts:
                return
            loop = loop or one.loop_watch
        if loop is None or self._promised is not None or self._streams is not None:
            return
        self._loop = loop
        for one in observers:
            if (follow := one.follow(self._count, self._clock)) is not None:
                self._following += (follow,)

    def _delivery(self) -> Delivery:
        batch = self._next_batch()
        self._num_yielded += 1
        began, _, _ = self._clock.moments()
        if self._promised is not None and self._num_yielded > self._promised:
            warn_user(  # in torch's words
                f"Length of IterableDataset {self._dataset} was reported to be {self._promised}"
                f"(when accessing len(dataloader)), but {self._num_yielded} samples have been fetched. "
            )
        return Delivery(batch, self._clock.samples, perf_counter() - began)

    def _next_batch(self) -> Any:
        if self._streams is None:
            return self._batch()
        try:
            batch = self._batch()
        except StopIteration:
            self._streams.ended(0, _state_now(self._dataset, self._dataset_fetcher))
            raise
        except Exception:
            self._streams.failed()
            raise
        self._streams.read(0, _state_now(self._dataset, self._dataset_fetcher))
        return batch

    def _tell(self) -> None:
        """Tell those who record the work of this thread of the batch that was made last."""
        began, read, made = self._clock.moments()
        if not self._maps:
            self._meter.tell("iterate", began, made, self._clock.samples)
        else:
            self._meter.tell("getitem", began, read, self._clock.samples)
            self._meter.tell("collate", read, made, self._clock.samples)


def _interrupted() -> NoReturn:
    raise RuntimeError(iterator.INTERRUPTED)


def _state_now(dataset: Any, fetcher: Any) -> dict[str, Any] | None:
    return state_of(dataset, getattr(fetcher, "dataset_iter", None), ended=getattr(fetcher, "ended", False))


def _states_now(dataset: Any, fetcher: Any) -> list[Entry | None]:
    return [_state_now(dataset, fetcher)]


def _kind_of(dataset: Any) -> type:
    """Return the class whose code makes the samples of a dataset."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset)


def _listed(asked: Any) -> Any:
    return asked.tolist() if isinstance(asked, np.ndarray) else asked


def _given_as_lists(batches: PassBatches, seed: int, epoch: int) -> Iterator[list[Any]]:
    return (list(given) for given, _ in batches.sampled(seed, epoch))


def _as_it_is(batch: Any) -> Any:
    return batch


class Fetched:
    """A dataset as a pass is to see it where a program has replaced torch's fetcher: that one makes the batches."""

    def __init__(self, settings: Settings, fetcher: Any) -> None:
        made = fetcher(settings.dataset, settings.batched, settings.collate_fn, settings.drop_last)
        self.__getitems__ = made.fetch
        self._fetch = made.fetch

    def __getitem__(self, index: Any) -> Any:
        return self._fetch(index)


def _rows_of(job: Job) -> Rows | indexed.IndexedRows | collated.RowsForCollator | None:
    dataset, known = job.settings.dataset, job.settings.known
    if "rows" not in known and job.settings.collate_fn is not default_collate:
        return collated.rows_of(job.settings, frozen=job.eager)
    return Rows(dataset) if "rows" in known else indexed.rows_of(dataset, learns=False, frozen=job.eager)


def _learned(settings: Settings) -> indexed.IndexedRows | None:
    if gathers_indexed(settings, learns=True):
        return indexed.rows_of(settings.dataset, learns=True)
    settings.known["indexed"] = False  # for all passes that go by these settings
    return None


def open_here(job: Job, held: Any, *, rows: bool = False) -> CallerPass:
    """Return a pass in the caller's thread: the one that is held, begun anew, or a new one.

    rows: the rows of the dataset are gathered batch by batch.
    """
    settings, batches = job.settings, job.batches
    seed, epoch = job.epochs.next(counted=True)
    sampled: Callable[[], Iterator[Any]] = partial(batches.without_positions, seed or 0, epoch)
    if settings.iterable:
        sampled = partial(iter, settings.index_sampler)
    fetcher = None if settings.iterable else replaced_fetcher()
    gathered = _rows_of(job) if rows else None if fetcher is None else Fetched(settings, fetcher)
    if not isinstance(gathered, Rows | Fetched | None) and not job.order.cuts_itself():
        # A class sees what a sampler gives.
        sampled = partial(_given_as_lists, batches, seed or 0, epoch)
    learns = gathered is None and settings.known.get("indexed", True) and may_be_gathered(settings)
    if held is not None and type(held) is not CallerPass:
        held.close()
        held = None
    made = CallerPass.__new__(CallerPass) if held is None else held
    made.__init__(  # type: ignore[misc]
        settings,
        sampled,
        job.draw_base,
        job.meter,
        pins=job.pins,
        rows=gathered,
        learn=partial(_learned, settings) if learns else None,
        composes=settings.method is not Method.PROCESS and not rows,
        streams=job.streams,
        ahead=settings.device is not None,
        eager=job.eager,
    )
    job.progress.arrivals = None  # batches come in order
    return made

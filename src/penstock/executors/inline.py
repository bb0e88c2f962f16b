"""Torch's own pass in the caller's thread; for small batches of a TensorDataset, with rows gathered at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd.profiler import record_function
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

import penstock._native as _native
from penstock import call_counts, loop_times
from penstock.executors.iterator import INTERRUPTED
from penstock.executors.job import Job, view_of
from penstock.executors.rows import Rows
from penstock.loop_times import LoopClock
from penstock.observe import Delivery, Meter, Observers, observed
from penstock.recipe.patches import Lease, this_thread
from penstock.sample_notes import collated, note_batch, note_sample
from penstock.settings import Method
from penstock.state.progress import Progress
from penstock.state.streams import Streams, restore_dataset, restore_fetcher, state_of, with_first_drawn
from penstock.stats import Counters, samples_in
from penstock.system.deferred import deferred
from penstock.system.tracebacks import shorten
from penstock.system.warn_user import warn_user

if TYPE_CHECKING:
    from penstock.hooks import calls
else:
    (calls,) = deferred("penstock.hooks", "calls")

#: Stands for a batch, or for what the sampler gives, that is not there yet.
_NOTHING = object()
#: Classes of dataset whose samples were light in the passes that answered their calls.
_light: weakref.WeakSet[type] = weakref.WeakSet()
_profiles = torch._C._autograd._profiler_enabled


class InlinePass(_SingleProcessDataLoaderIter):
    """torch's own pass in the caller's thread.

    It does what torch's iterator and fetcher do in two functions: a batch of small samples takes torch 10 us.
    After an interrupt (Ctrl-C, in any line of next()) each next() raises RuntimeError.

    Args:
        loader: a torch DataLoader with num_workers=0.
        batches: what the loader's sampler gives; None: torch's iterator calls the sampler.
        composes: each Compose that the dataset calls runs natively.
        streams: the states of a dataset that has a state_dict().
        ahead: the pass is read ahead of its user.
        meter: counts getitem, collate and iterate (over an iterable dataset).
    """

    _observers: Observers = ()
    _counted: tuple[Progress, LoopClock] | None = None
    """Who has the counts of the pass from its clock; None: each observer is told of each batch."""
    _before = 0  # batches that the progress counted beside those that came
    _offset = 0  # batches of the epoch that came before the pass

    def __init__(
        self,
        loader: Any,
        batches: Iterator[Any] | None = None,
        *,
        composes: bool = True,
        streams: Streams | None = None,
        ahead: bool = False,
        meter: Meter,
    ) -> None:
        (given,) = [None] if streams is None else streams.states()
        self._given, self._batches = given, batches
        self._mid_epoch = streams is not None and any(streams.counts)
        super().__init__(loader)
        fetcher = self._dataset_fetcher
        self._maps = type(fetcher) is _MapDatasetFetcher
        self._stacks = self._collate_fn is default_collate
        self._promised = self._IterableDataset_len_called if self._dataset_kind == _DatasetKind.Iterable else None
        self._meter, self._clock = meter, _native.CallerClock(meter.counter)
        if not (self._maps or self._stacks):  # a StopIteration of collate_fn is no end of the samples
            fetcher.collate_fn = partial(collated, self._collate_fn, None)
        self._sampling = RLock()  # several threads may call next()
        self._read_before = [0]  # batches of the epoch, as the states of its dataset count them
        self._profiled = False  # the profiler knows of the call that is under way
        self._calls = meter.calls.of_this_thread() if composes else None
        # To exchange functions takes 30 us, which samples without a costly call never win back.
        self._kind, self._lease = type(self._dataset), None
        answers = composes and not meter.light()
        self._believes = answers and self._kind in _light  # until the first batch shows whether that holds here
        if answers and not self._believes:
            self._lease = Lease(calls.ANSWERED)
        if self._batches is not None:
            self._sampler_iter = self._batches
        if given is not None and batches is None:
            restore_fetcher(fetcher, given)
        self._streams = streams if ahead else None
        if streams is not None and not ahead:
            streams.now = partial(_state_now, self._dataset, fetcher)

    @property
    def _base_seed(self) -> int:
        return self._base

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        # torch's __init__ has drawn the seed, and calls iter() next. The dataset's state may be that of a generator.
        self._base = drawn
        if self._given is not None:
            if self._batches is not None and self._mid_epoch:
                self._batches = with_first_drawn(self._batches)
            restore_dataset(self._dataset, self._given)

    # --- a batch ----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        if _profiles() and not self._profiled:
            try:
                return self._profiled_next()
            except Exception as error:
                shorten(error)
                raise
        try:
            if self._counted is None:
                return observed(self._observers, self._delivery)
            progress, loop = self._counted
            batch = self._batch()
            self._num_yielded = number = self._num_yielded + 1
            meter = loop.meter
            if self._clock.handed(number, meter.every, meter.looked, loop_times.SHORT_PASS):
                meter.look(begins=number == 1)
            progress.taken = progress.handed = handed = number + self._before
            if progress.samplers is not None:
                progress.samplers.handed(handed)
            self._read_before[0] = handed + self._offset
            return batch
        except StopIteration:
            for observer in self._observers if self._counted else ():
                observer.ended()
            raise
        except Exception as error:
            if self._counted:
                self._before += 1
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
        if self._lease is not None:
            self._lease.meet()
        clock, answering, counting = self._clock, this_thread, call_counts.this_thread
        before, asked, samples, left = (answering.native, counting.sink), _NOTHING, _NOTHING, None
        clock.called()
        try:
            try:
                if self._calls is not None:
                    answering.native, counting.sink = True, self._calls
                with self._sampling:
                    asked = next(self._sampler_iter)
                if not self._maps:
                    batch = self._streamed(asked)
                else:
                    dataset = self._dataset
                    if not self._auto_collation:
                        samples = dataset[asked]
                    elif whole := getattr(dataset, "__getitems__", None):
                        samples = whole(asked)
                    else:
                        asked = asked if type(asked) is list else list(asked)
                        left = iter(asked)  # its length hint gives the position, at no cost
                        samples = [dataset[index] for index in left]
                    clock.read()
                    batch = self._collate_fn(samples)
                    clock.made(length_hint(asked, 1) if self._auto_collation else 1)
                    if self._believes:
                        self._believes = False
                        if not self._meter.light():
                            _light.discard(self._kind)
                            self._lease = Lease(calls.ANSWERED)
                if self._meter.sinks:
                    self._tell()
                if self._pin_memory:
                    batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
                return batch
            finally:
                answering.native, counting.sink = before
        except Exception as error:
            self._note(error, asked, samples, left)
            if isinstance(error, StopIteration) and self._lease is not None:
                self._lease = None
                if self._meter.light():
                    _light.add(self._kind)
            raise

    def _streamed(self, asked: Any) -> Any:
        fetcher = self._dataset_fetcher
        batch = fetcher.fetch(asked)
        given = length_hint(asked, 1) if self._auto_collation else 1
        last = fetcher.ended and self._auto_collation
        self._clock.made(samples_in(batch, given, iterable=last, stacks=self._stacks), True)
        return batch

    def _note(self, error: Exception, asked: Any, samples: Any, left: Any) -> None:
        """Note on an error of the dataset or the collate_fn which sample or batch it is about."""
        if asked is _NOTHING or not self._maps:
            return
        if samples is not _NOTHING:
            note_batch(error, asked, samples)
        elif left is not None:
            note_sample(error, asked[len(asked) - length_hint(left) - 1])
        elif self._auto_collation:
            note_batch(error, asked)
        else:
            note_sample(error, asked)

    # --- who is told ------------------------------------------------------------------------------------------------

    @property
    def observers(self) -> Observers:
        """Who is told of the pass. Those of a loader that nobody else watches have their counts from the clock."""
        return self._observers

    @observers.setter
    def observers(self, observers: Observers) -> None:
        self._observers, self._counted = observers, None
        if tuple(map(type, observers)) != (Counters, Progress, LoopClock) or self._promised is not None:
            return
        progress: Any = observers[1]
        loop: Any = observers[2]
        if progress.arrivals is None and self._streams is None:
            loop.direct, self._counted = self._clock, (progress, loop)
            self._before = progress.taken - self._num_yielded
            if progress.streams is not None:
                self._read_before = progress.streams.counts
            self._offset = self._read_before[0] - progress.taken

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
    raise RuntimeError(INTERRUPTED)


def _state_now(dataset: Any, fetcher: Any) -> dict[str, Any] | None:
    return state_of(dataset, getattr(fetcher, "dataset_iter", None), ended=getattr(fetcher, "ended", False))


class InlineExecutor:
    """Torch's own iterator: for what no other executor accepts.

    rows: the dataset is a TensorDataset whose rows are gathered batch by batch.
    """

    def __init__(self, *, rows: bool = False) -> None:
        self._rows = rows

    def open(self, job: Job, held: None) -> InlinePass:
        """Return an iterator of the batches. held: none is kept without workers, as by torch."""
        settings = job.settings
        job.epochs.next(counted=True)
        # What torch's iterator sees otherwise than the loader has it.
        seen: dict[str, Any] = (
            {"dataset": Rows(settings.dataset), "collate_fn": lambda batch: batch, "num_workers": 0}
            if self._rows
            else {}
        )
        made = InlinePass(
            view_of(job, **seen),
            None if settings.iterable else job.batches.without_positions(0, 0),
            composes=settings.method is not Method.PROCESS and not self._rows,
            streams=job.streams,
            ahead=settings.device is not None,
            meter=job.shared.counters.meter,
        )
        job.progress.arrivals = None  # batches come in order
        return made

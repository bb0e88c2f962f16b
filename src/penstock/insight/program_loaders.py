"""The loaders of a program: what tells them apart, and passes of torch's, observed as penstock.DataLoader's are.

Programs have torch's class under other names, derive classes from it, and call iter() and next() themselves.
What all of them come by is exchanged while somebody watches: the loader's __init__ and __iter__, and the _next_data of
torch's two iterators, which makes or waits for a batch. Torch's __next__ is unchanged, so that its warnings name the
same lines as ever. Iterators of other classes (torchdata's StatefulDataLoader has its own) are not observed.

The wait for a batch of torch's loader counts the work on it where there are no workers, and the start of the workers
for the first batch of a pass.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler, Subset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from penstock.errors import InvalidOption
from penstock.insight import program
from penstock.loader import DataLoader
from penstock.observe import Delivery, Observers, watching
from penstock.stats import samples_in
from penstock.system.libraries import INSTALLED, PYTHONS
from penstock.system.locks import ProcessLock
from penstock.system.warn_user import PACKAGE

#: Code between the line that makes a loader and torch's __init__.
_BETWEEN = (PACKAGE, os.path.dirname(os.path.abspath(torch.utils.data.__file__)) + os.sep)


@dataclass(frozen=True)
class LoaderFacts:
    """What tells the loaders of a program apart."""

    name: str
    """Of the loader's class; "penstock.DataLoader" for Penstock's own."""
    dataset: str
    """The type of the dataset; "Subset of CIFAR10" for a torch.utils.data.Subset."""
    batching: str
    """How samples come together, as an argument: "batch_size=64", "batch_sampler=BucketSampler"."""
    workers: int
    place: str
    """The file and the line that made the loader: "train.py:12"; empty for a copy."""
    penstock: bool
    """It is a penstock.DataLoader, which reads by its own means."""

    @property
    def method(self) -> str:
        if self.penstock:
            return "Penstock"
        return "worker processes" if self.workers else "the caller's thread"

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        return f"{self.name}({self.dataset}, {self.batching}, num_workers={self.workers}){at}"


def facts_of(loader: Any, place: str = "") -> LoaderFacts:
    """Return what tells a loader apart; place: the file and line that made it."""
    kind = type(loader)
    ours = isinstance(loader, DataLoader) and all(one[0] is not DataLoader for one in _exchanged)
    name = "penstock.DataLoader" if kind is DataLoader else kind.__name__
    if type(loader.batch_sampler) is BatchSampler:
        batching = f"batch_size={loader.batch_sampler.batch_size}"
    elif loader.batch_size is None and loader.batch_sampler is not None:
        batching = f"batch_sampler={type(loader.batch_sampler).__name__}"
    else:
        batching = f"batch_size={loader.batch_size}"
    return LoaderFacts(name, _dataset_name(loader.dataset), batching, loader.num_workers, place, ours)


def _dataset_name(dataset: Any) -> str:
    if type(dataset) is Subset:
        return f"Subset of {_dataset_name(dataset.dataset)}"
    return type(getattr(dataset, "_datapipe", dataset)).__name__  # torch wraps a DataPipe


def place_of(loader: Any, frame: FrameType | None) -> tuple[str | None, int]:
    """Return the file and the line that called a loader's class: not torch's nor Penstock's, nor of its own class.

    A line of the program is taken before one of an installed library that the program calls.
    """
    library: tuple[str | None, int] = None, 0
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        file = code.co_filename
        if file == program.__file__:
            break  # what is outside of the program runs it
        if first is loader or file.startswith(_BETWEEN):
            pass
        elif any(folder in file for folder in INSTALLED):
            library = library if library[0] else (file, frame.f_lineno)
        elif not file.startswith(PYTHONS):
            return file, frame.f_lineno
        frame = frame.f_back
    return library


# --- passes of torch's loaders ---------------------------------------------------------------------------------------

#: The attribute of one of torch's iterators that holds its observation.
_OBSERVATION = "_penstock_observation"
_KINDS: tuple[Any, ...] = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)
_LOADER: Any = torch.utils.data.DataLoader
_log = logging.getLogger("penstock")


class _Observation:
    """What is known of a pass that is observed. Its methods are called for each batch, and cost a few microseconds."""

    __slots__ = ("begun", "observers", "samples", "shown")

    def __init__(self, observers: Observers, loader: Any, seconds: float) -> None:
        self.observers = observers
        self.begun = seconds  # that the start of the pass took; it is part of the wait for the first batch
        batches = loader.batch_sampler
        self.samples = loader.batch_size or (batches.batch_size if type(batches) is BatchSampler else 0)
        self.shown = batches is not None and loader.collate_fn is default_collate

    def delivery(self, batch: Any, waited: float, in_flight: int) -> Delivery:
        """Return what observers are told of a batch: its samples are what it shows, or batch_size; 0: not known."""
        samples, begun, self.begun = self.samples, self.begun, 0.0
        if self.shown:
            with contextlib.suppress(Exception):  # of a batch of the user's kind
                samples = samples_in(batch, samples, iterable=True, stacks=True)
        return Delivery(batch, samples, waited + begun, in_flight=in_flight)


Made = Callable[[Any], None]
_made: list[Made] = []
_exchanged: list[tuple[Any, str, Any, Any]] = []
_lock = ProcessLock()


def watch_torch(made: Made) -> Callable[[], None]:
    """Have penstock.observe.watching() observe passes of torch's loaders too; return what ends that.

    Several may ask for it at the same time: each pass is observed once. What `made` raises is logged.

    Args:
        made: called with each loader that has been made, Penstock's too.
    """
    with _lock:
        _made.append(made)
        if len(_made) == 1:
            _exchange(_LOADER, "__init__", _making)
            _exchange(_LOADER, "__iter__", _beginning)
            for kind in _KINDS:
                _exchange(kind, "_next_data", _delivering)

    def end() -> None:
        with _lock, contextlib.suppress(ValueError):
            _made.remove(made)
            if _made:
                return
            for kind, name, original, wrapped in reversed(_exchanged):
                if vars(kind)[name] is wrapped:  # else other code has exchanged it since
                    setattr(kind, name, original)
            _exchanged.clear()

    return end


def read_by_torch() -> set[str]:
    """Let each penstock.DataLoader read as torch's while `watch_torch` does; return the arguments that it ignores.

    Its other methods stay, because the program calls them. Without num_workers= it has no workers, as torch's has none.
    """
    ignored: set[str] = set()

    def making(original: Any) -> Any:
        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            for name, value in self.own_options().items():
                if name in ("device", "shard") and str(value) not in ("cpu", "auto"):
                    said = "torch's loader gives other batches without it, and nothing can be compared"
                    raise InvalidOption(f"{name}={value!r}: {said}: leave it out for the comparison")
                ignored.add(name)
            if named.get("num_workers", arguments[5] if len(arguments) > 5 else None) is None:
                self.num_workers, self.prefetch_factor = 0, None

        return __init__

    _exchange(DataLoader, "__init__", making)
    for name in {"__iter__", "_get_iterator"} & vars(DataLoader).keys():
        _exchange(DataLoader, name, lambda ours: lambda self: getattr(_LOADER, ours.__name__)(self))
    return ignored


def _exchange(kind: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = vars(kind)[name]
    wrapped = functools.wraps(original)(wrap(original))
    setattr(kind, name, wrapped)
    _exchanged.append((kind, name, original, wrapped))


def _making(original: Any) -> Any:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        for made in tuple(_made):
            try:
                made(self)
            except Exception:
                _log.exception("the place where a loader was made is not known")

    return __init__


def _beginning(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        began = time.perf_counter()
        batches = original(self)
        seconds = time.perf_counter() - began
        if isinstance(batches, _KINDS) and not hasattr(batches, "observers"):  # as a penstock.DataLoader's has
            try:
                observers = watching(self)
                vars(batches)[_OBSERVATION] = _Observation(observers, self, seconds) if observers else None
            except Exception:
                _log.exception("a pass of torch's loader is not observed")
        return batches

    return __iter__


def _delivering(original: Any) -> Any:
    def _next_data(self: Any) -> Any:
        observation = self.__dict__.get(_OBSERVATION)
        if observation is None:
            return original(self)
        began = time.perf_counter()
        try:
            batch = original(self)
        except StopIteration:
            for observer in observation.observers:
                observer.ended()
            raise
        except Exception as error:
            for observer in observation.observers:
                observer.failed(error)
            raise
        waited = time.perf_counter() - began
        delivery = observation.delivery(batch, waited, getattr(self, "_tasks_outstanding", 0))
        for observer in observation.observers:
            observer.delivered(delivery)
        return batch

    return _next_data

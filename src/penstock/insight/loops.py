"""What the loops of a running program do with their time: one record for all loaders that one line of it makes."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler, Subset

from penstock.insight import program
from penstock.insight.torch_passes import watch_torch
from penstock.loader import DataLoader
from penstock.loop_times import LoopClock, LoopMeter, LoopTimes
from penstock.observe import Delivery, Observer, watch
from penstock.stats import Stats
from penstock.system.warn_user import PACKAGE

#: Code between the line that makes a loader and torch's __init__.
_BETWEEN = (PACKAGE, os.path.dirname(os.path.abspath(torch.utils.data.__file__)) + os.sep)
#: Python's own library: typing makes a DataLoader[Any](...), threading and importlib run the code that makes others.
_PYTHONS = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, "<frozen ")
#: Parts of the paths of installed libraries.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


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
    """It is a penstock.DataLoader."""

    @property
    def method(self) -> str:
        """Who makes the batches."""
        if self.penstock:
            return "Penstock"
        return "worker processes" if self.workers else "the caller's thread"

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        return f"{self.name}({self.dataset}, {self.batching}, num_workers={self.workers}){at}"


#: Called with a loop when a batch of it has come, by the thread that called next().
Progress = Callable[["Loop"], None]


class Loop:
    """The loops over the batches of some loaders: those of one kind that one line of the program made.

    Any thread may call any method.

    Attributes:
        meter: their times.
        loaders: how many loaders made a pass.
        passes: how many passes began.
        samples_of: samples by the thread that called next(): each thread writes its own number, without a lock.
    """

    def __init__(self, loader: LoaderFacts) -> None:
        self.loader = loader
        self.meter = LoopMeter()
        self.loaders = self.passes = 0
        self.samples_of: dict[int, int] = {}
        self._lock = threading.Lock()
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stats: Stats | None = None

    def begin(self, loader: Any) -> None:
        """Count a pass of a loader."""
        with self._lock:
            self.passes += 1
            self.loaders += loader not in self._alive
            self._alive.add(loader)

    def keep_stats(self) -> None:
        """Keep the counters of the penstock.DataLoader, where it is alive."""
        for loader in tuple(self._alive):
            if isinstance(loader, DataLoader):
                self._stats = loader.stats()

    @property
    def stats(self) -> Stats | None:
        """Of the penstock.DataLoader, where there was one only."""
        self.keep_stats()
        return self._stats if self.loaders == 1 else None

    @property
    def times(self) -> LoopTimes:
        """What the loops did with their time."""
        return self.meter.times()

    @property
    def samples(self) -> int:
        """Samples in all batches; 0 where their number is not known."""
        return sum(tuple(self.samples_of.values()))

    @property
    def background(self) -> bool:
        """Whether a thread beside the main one called next() in one of the passes."""
        return any(thread != threading.main_thread().ident for thread in tuple(self.samples_of))


class Loops:
    """All loops of this process over loaders, torch's and Penstock's, from start() to the function that it returns.

    Args:
        progress: called at each batch.
        steps: the program ends by SystemExit where a loop of the main thread continues behind so many batches of one
            loader; None: it does not.
    """

    def __init__(self, progress: Progress | None = None, steps: int | None = None) -> None:
        self._progress, self._steps = progress, steps
        self._process = os.getpid()
        self._folder = _working_folder()
        self._places: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._loops: dict[LoaderFacts, Loop] = {}

    def start(self) -> Callable[[], None]:
        """Observe every pass that begins from now on; return what ends that."""
        ends = (watch_torch(self._watch, self._note), watch(self._watch))

        def end() -> None:
            for one in ends:
                one()

        return end

    def records(self) -> list[Loop]:
        """Return the loops, those that waited longest first; none of loaders that gave no batch."""
        found = [loop for loop in tuple(self._loops.values()) if loop.times.batches]
        return sorted(found, key=lambda one: -one.times.waited)

    def without_batches(self) -> list[LoaderFacts]:
        """Return the loaders of which a pass began, and that gave no batch."""
        return [loop.loader for loop in tuple(self._loops.values()) if not loop.times.batches]

    def _note(self, loader: Any) -> None:
        file, line = _place_of(loader, sys._getframe(1))
        if file is not None:
            self._places[loader] = f"{file.removeprefix(self._folder)}:{line}"

    def _watch(self, loader: Any) -> Observer | None:
        if os.getpid() != self._process:
            return None  # a forked process has no report
        facts = facts_of(loader, self._places.get(loader, ""))
        loop = self._loops.setdefault(facts, Loop(facts))
        loop.begin(loader)
        if isinstance(loader, DataLoader):
            loader.log_nothing()
        return _PassObserver(loop, self._progress, self._steps)


class _PassObserver(Observer):
    """Measures the loop over one pass."""

    def __init__(self, loop: Loop, progress: Progress | None, steps: int | None) -> None:
        self._loop, self._progress, self._steps = loop, progress, steps
        self._clock = LoopClock(loop.meter)
        self._main = threading.main_thread().ident
        self._begun = time.perf_counter() if loop.loader.penstock else 0.0  # 0: the first wait has the pass's start

    def delivered(self, delivery: Delivery) -> None:
        """Measure a batch. Raises SystemExit behind the last step that is wanted."""
        thread, loop = threading.get_ident(), self._loop
        if self._steps is not None and thread == self._main and loop.times.batches >= self._steps:
            self.ended()
            raise SystemExit(0)
        counts = loop.samples_of
        counts[thread] = counts.get(thread, 0) + delivery.samples
        if self._begun:
            delivery, self._begun = replace(delivery, waited=time.perf_counter() - self._begun), 0.0
        self._clock.delivered(delivery)
        if self._progress is not None:
            self._progress(loop)

    def failed(self, error: Exception) -> None:
        """Take note that the loop continues from here."""
        self._clock.failed(error)

    def ended(self) -> None:
        """Measure the work on the last batch."""
        self._clock.ended()
        self._loop.keep_stats()


def facts_of(loader: Any, place: str = "") -> LoaderFacts:
    """Return what tells a loader apart; place: the file and line that made it."""
    ours, kind = isinstance(loader, DataLoader), type(loader)
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


def _place_of(loader: Any, frame: FrameType | None) -> tuple[str | None, int]:
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
        elif any(folder in file for folder in _INSTALLED):
            library = library if library[0] else (file, frame.f_lineno)
        elif not file.startswith(_PYTHONS):
            return file, frame.f_lineno
        frame = frame.f_back
    return library


def _working_folder() -> str:
    try:
        return os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed
        return ""

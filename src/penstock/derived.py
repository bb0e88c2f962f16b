"""Passes of Penstock's for a loader of torch's class, or of one derived from it, which keeps its class."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from operator import attrgetter
from types import MethodType
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.carriers.choice import PassFactory
from penstock.loader import OWN, THEIRS, DataLoader
from penstock.observe import Observer
from penstock.order.batches import settled_at_start
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.settings import Given
from penstock.state.checkpoint import Checkpoint
from penstock.storage.jpeg_index import JpegIndexes
from penstock.system.tracebacks import shorten

#: The module of torchdata's loader, of which install() makes each one of Penstock's.
TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"
_TORCHS: Any = torch.utils.data.DataLoader
#: What torch's `_get_iterator` reads of a loader that it is given, and where a loader of torch's class keeps it.
_READ = [*(name for name in THEIRS if name != "shuffle"), "_dataset_kind", "_IterableDataset_len_called"]
_KEPT = [name.replace("multiprocessing_context", "_DataLoader__multiprocessing_context") for name in _READ]
_read = attrgetter(*_READ)
#: Methods and properties that say what a pass goes through.
_ORDER = ("_index_sampler", "_auto_collation")
#: The attribute of a loader that holds the one beside it: a collate_fn may hold the loader, so no table may hold both.
_BESIDE = "_penstock_beside"


class DrawnAhead(Observer):
    """What a sampler gives in one pass, drawn when torch's iterator with workers draws it, whoever makes the batches.

    torch draws for so many batches when a pass begins, and for one more with each that comes: a sampler that draws from
    a generator which the program uses too, or begins its epochs itself, shows that.
    """

    def __init__(self, sampler: Any, ahead: int) -> None:
        self.sampler, self._due = sampler, ahead
        self._given: Any = None
        self._drawn: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._given is None:
            self._given = iter(self.sampler)
            self._draw()
        return self._drawn.popleft() if self._drawn else self._next()

    def _next(self) -> Any:
        self._due -= 1
        return next(self._given)

    def _draw(self) -> None:
        with suppress(StopIteration):
            while self._due > 0:
                self._drawn.append(self._next())

    def delivered(self, delivery: Any) -> None:
        self._due += 1
        self._draw()

    def failed(self, error: Exception) -> None:
        self.delivered(error)


class Weakly:
    """A method of a loader, which does not keep it: what ends workers holds their functions, until their pass is gone.

    The pass keeps the loader, which may keep the pass. A copy, as in a spawned worker, is the method itself.
    """

    def __init__(self, method: MethodType) -> None:
        self.method = weakref.WeakMethod(method)

    def __call__(self, *arguments: Any) -> Any:
        method: Any = self.method()
        return method(*arguments)

    def __reduce__(self) -> Any:
        method: Any = self.method()
        return method.__reduce__()


class Beside(DataLoader[Any]):
    """Makes the passes of another loader, by that one's attributes at the time when a pass begins.

    A copy of the other loader, or one that was pickled, gets another one.
    """

    def __init__(self, loader: Any) -> None:  # not DataLoader's: torch has checked the arguments
        self.owner = weakref.ref(loader)
        given = Given(own_order=True, prefetch_given=False, method=None, seeded=None, indexes=JpegIndexes())
        factory = PassFactory(None, SeedWarnings(), None, given.indexes)
        own = {"_given": given, "_pass_factory": factory, "_checkpoint": Checkpoint(None, factory.in_threads)}
        vars(self).update(OWN, **own, _iterator=None)
        self._weakly: dict[str, Weakly] = {}

    def take(self, loader: Any) -> None:
        """Take the attributes of the other loader. Raises AttributeError."""
        vars(self).update(zip(_KEPT, _read(loader), strict=True))
        for name in ("collate_fn", "worker_init_fn"):
            if isinstance(given := getattr(self, name), MethodType) and given.__self__ is loader:
                if name not in self._weakly or self._weakly[name].method() != given:
                    self._weakly[name] = Weakly(given)
                vars(self)[name] = self._weakly[name]
        self._given.prefetch_given = self.prefetch_factor not in (None, 2)  # torch's choice: then ours, by their size
        drawn, self.drawn_ahead = self._index_sampler, None
        if self.num_workers and not (isinstance(self.dataset, IterableDataset) or settled_at_start(drawn)):
            self.drawn_ahead = DrawnAhead(drawn, (self.prefetch_factor or 2) * self.num_workers)
            vars(self)["sampler" if self.batch_sampler is None else "batch_sampler"] = self.drawn_ahead

    def _get_iterator(self) -> Any:
        if self.drawn_ahead is None:
            return super()._get_iterator()
        if not self._begins:
            iter(self.drawn_ahead.sampler)  # torch's new iterators begin it twice: before the base seed, and behind it
        made = super()._get_iterator()
        made.observers = (*made.observers, self.drawn_ahead)
        return made

    def check_worker_number_rationality(self) -> None:
        if (loader := self.owner()) is not None:
            loader.check_worker_number_rationality()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def begin_pass(loader: Any) -> Any:
    """Return a new pass over a loader, as torch's `_get_iterator` does. The loader is one that `stays_torchs` accepts.

    Its `_reset` begins another pass with the same workers, for torch's `__iter__` and for iterators around this one.
    """
    beside = _beside(loader)
    try:
        made = beside._get_iterator()
    except Exception as error:
        shorten(error)
        raise
    _give(made, weakref.ref(made), beside)
    return made


def _give(batches: Any, held: weakref.ref[Any], beside: Beside) -> None:
    """Give a pass its _reset(), and the loader whose methods it calls."""
    calls = Weakly in (type(beside.collate_fn), type(beside.worker_init_fn))
    vars(batches).update(_reset=partial(_begin_again, held), _loader=beside.owner() if calls else None)


def _beside(loader: Any) -> Beside:
    found: Beside | None = vars(loader).get(_BESIDE)
    if found is None or found.owner() is not loader:
        found = vars(loader)[_BESIDE] = Beside(loader)
    found.take(loader)
    return found


def _begin_again(held: weakref.ref[Any], loader: Any, first_iter: bool = False) -> None:
    """Make a pass the next one of a loader: torch's `_reset`."""
    batches, beside = held(), _beside(loader)
    beside._iterator = batches if beside.persistent_workers else None
    made, beside._iterator = iter(beside), None
    if made is not batches:  # another carrier makes it, and `made` ends that: those who hold the pass keep their object
        batches.__class__ = type(made)
        vars(batches).clear()
        vars(batches).update(vars(made), _goes_on_with=made)
        _give(batches, held, beside)


def owner_of(loader: Any) -> Any:
    """Return the loader that a program made, of one that makes passes: the other one, or the same."""
    return (loader.owner() or loader) if isinstance(loader, Beside) else loader


def stays_torchs(loader: Any) -> str:
    """Return why the passes of a loader that come from torch's `_get_iterator` stay torch's; empty: they need not."""
    kind = type(loader)
    if own := [name for name in _ORDER if getattr(kind, name) is not getattr(_TORCHS, name)]:
        return f"it overrides {' and '.join(own)}"
    try:
        _read(loader)
    except AttributeError as error:
        return str(error)
    context = loader.multiprocessing_context
    process = getattr(context, "Process", BaseProcess)
    if not (isinstance(process, type) and issubclass(process, BaseProcess)):
        return f"the workers of its multiprocessing_context={type(context).__name__} are not processes"
    return ""


def iterates_itself(kind: Any) -> str:
    """Return what a class derived from torch's loader makes its iterators by, as far as its code shows; empty: torch's.

    An override that names the method that it overrides calls it.
    """
    for name in ("_get_iterator", "__iter__"):
        found = getattr(kind, name)
        if found is getattr(_TORCHS, name):
            continue
        home = next(one for one in kind.__mro__ if name in vars(one))
        methods = [found] if name == "_get_iterator" else list(vars(home).values())
        named = {word for one in methods if hasattr(one, "__code__") for word in one.__code__.co_names}
        if not named & {name, "_get_iterator"}:
            return f"{name}() of {home.__qualname__}"
    return ""

"""Datasets whose code has effects, or a state; pytest rewrites the code of test modules, but not of this one."""

from __future__ import annotations

import functools
import random
import threading
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

N = 14
CALLS: list[Any] = []
COUNT = 0


class Held(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.arange(3.0 * N).reshape(N, 3)
        self.y = [*range(N)]
        self.rows = [[i, i + 1] for i in range(N)]
        self.count, self.seen, self.cache = 0, list[Any](), dict[int, Any]()
        self.last: Any = None
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return N


def counter(self, i):
    self.count += 1
    return self.x[i], self.y[i]


def global_counter(self, i):
    global COUNT
    COUNT += 1
    return self.x[i], COUNT


def appending_to_module(self, i):
    CALLS.append(i)
    return self.x[i]


def printing(self, i):
    print("sample", i, self.y[i])
    return self.x[i], self.y[i]


def drawing(self, i):
    return self.x[i] + torch.rand(3), random.random(), np.random.rand()


def drawing_once(self, i):
    """Draws that are of no consequence for the sample."""
    torch.rand(1)
    return self.x[i]


def in_place(self, i):
    """A sample that is changed where it lies: at each pass anew."""
    x = self.x[i]
    x += 1
    return x


def in_place_by_method(self, i):
    return self.x[i].mul_(2), self.y[i]


def in_place_of_item(self, i):
    x = self.x[i]
    x[0] = -1
    return x


def in_place_of_copy(self, i):
    """What is changed is the sample's own: the dataset stays."""
    x = self.x[i].clone()
    x[0] = -1
    x += 1
    return x


def popping(self, i):
    return self.x[i], self.y.pop()


def remembering(self, i):
    self.last = self.x[i]
    return self.x[i]


def caching(self, i):
    if i not in self.cache:
        self.cache[i] = self.x[i] * 2
    return self.cache[i]


def locking(self, i):
    with self.lock:
        self.count += 1
        return self.x[i]


def raising(self, i):
    """Effects before the error are kept."""
    self.count += 1
    if i == 9:
        raise KeyError(i)
    self.seen.append(i)
    return self.x[i]


def tolerating(self, i):
    try:
        return self.x[i], self.y[2 * i]
    except IndexError:
        self.count += 1
        return self.x[i], -1


def yielding(self, i):
    yield self.x[i]


def walrus(self, i):
    return (x := self.x[i]), x * 2, [y for y in self.rows[i] if (z := y) > 0], z


def other_sample(self, i):
    """A sample that is made of the samples before it."""
    if i == 0:
        return self.x[0]
    return self[i - 1] + self.x[i]


class LazilyLoaded(Held):
    loaded: Any = None

    def __getitem__(self, i):
        if self.loaded is None:
            self.loaded = self.x * 3
        return self.loaded[i]


class Memoised(Held):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def row(self, i):
        CALLS.append(i)
        return self.x[i]

    def __getitem__(self, i):
        return self.row(i) + 1


class Deferred(Held):
    """A property that counts."""

    @property
    def rows_of_x(self):
        self.count += 1
        return self.x

    def __getitem__(self, i):
        return self.rows_of_x[i]


class CountingAttributes(Held):
    def __getattribute__(self, name):
        if name == "x":
            CALLS.append(name)
        return object.__getattribute__(self, name)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class CountingList(list):
    def __getitem__(self, i):
        CALLS.append(i)
        return super().__getitem__(i)


class CountingContainer(Held):
    def __init__(self) -> None:
        super().__init__()
        self.rows = CountingList(self.rows)

    def __getitem__(self, i):
        return torch.tensor(self.rows[i])


class CountingTransform(Held):
    def __init__(self) -> None:
        super().__init__()
        self.transform: Any = self.change

    def change(self, x):
        self.count += 1
        return x * self.count

    def __getitem__(self, i):
        x = self.x[i]
        if self.transform:
            x = self.transform(x)
        return x


class CountingHelper(Held):
    def helper(self, i, seen=[]):  # noqa: B006
        seen.append(i)
        return len(seen)

    def __getitem__(self, i):
        return self.x[i], self.helper(i)


class Truth:
    """An object whose truth is not always the same."""

    def __init__(self) -> None:
        self.asked = 0

    def __bool__(self):
        self.asked += 1
        return self.asked % 3 == 0


class CountingTruth(Held):
    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth()

    def __getitem__(self, i):
        return self.x[i] if self.truth else -self.x[i]


def forget() -> None:
    """Let nothing be kept of what was done before."""
    global COUNT
    COUNT = 0
    CALLS.clear()
    Memoised.row.cache_clear()
    CountingHelper.helper.__defaults__[0].clear()  # type: ignore[index]


_FUNCTIONS = [
    *(counter, global_counter, appending_to_module, printing, drawing, drawing_once, in_place, in_place_by_method),
    *(in_place_of_item, in_place_of_copy, popping, remembering, caching, locking, raising, tolerating, yielding),
    *(walrus, other_sample),
]
_CLASSES = [
    LazilyLoaded,
    Memoised,
    Deferred,
    CountingAttributes,
    CountingContainer,
    CountingTransform,
    CountingHelper,
    CountingTruth,
]
#: Datasets by name: of a class that has one of the functions as its `__getitem__`, and of the others.
EFFECTS: dict[str, Any] = {
    **{one.__name__: type(one.__name__, (Held,), {"__getitem__": one}) for one in _FUNCTIONS},
    **{kind.__name__: kind for kind in _CLASSES},
}

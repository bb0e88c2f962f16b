"""Datasets whose code has effects, or a state; pytest rewrites the code of test modules, but not of this one."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
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
        self.a = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
        self.y = [*range(N)]
        self.rows = [[i, i + 1] for i in range(N)]
        self.records = [{"y": i} for i in range(N)]
        self.count, self.seen, self.cache = 0, list[Any](), dict[int, Any]()
        self.last: Any = None
        self.generator = torch.Generator().manual_seed(1)
        self.draws = random.Random(3)
        self.rng = np.random.default_rng(2)
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return N


class Counter(Held):
    def __getitem__(self, i):
        self.count += 1
        return self.x[i], self.y[i]


class CounterInTheSample(Held):
    def __getitem__(self, i):
        self.count += 1
        return self.x[i], self.count


class ClassCounter(Held):
    total = 0

    def __getitem__(self, i):
        type(self).total += 1
        return self.x[i], type(self).total


class GlobalCounter(Held):
    def __getitem__(self, i):
        global COUNT
        COUNT += 1
        return self.x[i], COUNT


class Appending(Held):
    def __getitem__(self, i):
        self.seen.append(i)
        return self.x[i]


class AppendingToModule(Held):
    def __getitem__(self, i):
        CALLS.append(i)
        return self.x[i]


class Printing(Held):
    def __getitem__(self, i):
        print("sample", i, self.y[i])
        return self.x[i], self.y[i]


class Logging(Held):
    def __getitem__(self, i):
        logging.getLogger("tests.indexing").debug("sample %d", i)
        return self.x[i]


class Drawing(Held):
    def __getitem__(self, i):
        return self.x[i] + torch.rand(3), random.random(), np.random.rand()


class DrawingOnce(Held):
    """Draws that are of no consequence for the sample."""

    def __getitem__(self, i):
        torch.rand(1)
        return self.x[i]


class OwnGenerators(Held):
    def __getitem__(self, i):
        return self.x[i] + torch.rand(3, generator=self.generator), self.draws.random(), self.rng.random()


class RandomChoice(Held):
    def __getitem__(self, i):
        j = random.randrange(N)
        return self.x[i], self.x[j], int(self.y[i] == self.y[j])


class RandomWindow(Held):
    def __getitem__(self, i):
        j = int(torch.randint(N - 3, ()))
        return self.x[j : j + 3]


class Shuffling(Held):
    def __getitem__(self, i):
        np.random.shuffle(self.a)
        return self.a[i].copy()


class InPlace(Held):
    """A sample that is changed where it lies: at each pass anew."""

    def __getitem__(self, i):
        x = self.x[i]
        x += 1
        return x


class InPlaceByMethod(Held):
    def __getitem__(self, i):
        return self.x[i].mul_(2), self.y[i]


class InPlaceOfArray(Held):
    def __getitem__(self, i):
        a = self.a[i]
        a /= 2
        return torch.from_numpy(a)


class InPlaceOfItem(Held):
    def __getitem__(self, i):
        x = self.x[i]
        x[0] = -1
        return x


class InPlaceBehindAView(Held):
    def __getitem__(self, i):
        x = torch.from_numpy(self.a[i]).view(1, 2)
        x.neg_()
        return x


class InPlaceWithOut(Held):
    def __getitem__(self, i):
        return torch.add(self.x[i], 1, out=self.x[i])


class InPlaceOfCopy(Held):
    """What is changed is the sample's own: the dataset stays."""

    def __getitem__(self, i):
        x = self.x[i].clone()
        x[0] = -1
        x += 1
        return x


class ItemOfRecord(Held):
    def __getitem__(self, i):
        record = self.records[i]
        record["times"] = record.get("times", 0) + 1
        return record


class AppendToRow(Held):
    def __getitem__(self, i):
        row = self.rows[i]
        row.append(len(row))
        return torch.tensor(row[-2:])


class Popping(Held):
    def __getitem__(self, i):
        return self.x[i], self.y.pop()


class Sorting(Held):
    def __getitem__(self, i):
        self.rows[i].sort(reverse=True)
        return self.rows[i]


class Remembering(Held):
    def __getitem__(self, i):
        self.last = self.x[i]
        return self.x[i]


class PreviousSample(Held):
    def __getitem__(self, i):
        x, self.last = self.x[i], i if self.last is None else self.last + i
        return x, self.last


class Caching(Held):
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.x[i] * 2
        return self.cache[i]


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


class Locking(Held):
    def __getitem__(self, i):
        with self.lock:
            self.count += 1
            return self.x[i]


class Timing(Held):
    def __getitem__(self, i):
        self.seen.append(type(time.perf_counter()))
        return self.x[i]


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


class Raising(Held):
    """Effects before the error are kept."""

    def __getitem__(self, i):
        self.count += 1
        if i == 9:
            raise KeyError(i)
        self.seen.append(i)
        return self.x[i]


class Tolerating(Held):
    def __getitem__(self, i):
        try:
            return self.x[i], self.y[2 * i]
        except IndexError:
            self.count += 1
            return self.x[i], -1


class Yielding(Held):
    def __getitem__(self, i):
        yield self.x[i]


class Walrus(Held):
    def __getitem__(self, i):
        return (x := self.x[i]), x * 2, [y for y in self.rows[i] if (z := y) > 0], z


class OtherSample(Held):
    """A sample that is made of the samples before it."""

    def __getitem__(self, i):
        if i == 0:
            return self.x[0]
        return self[i - 1] + self.x[i]


def forget() -> None:
    """Let nothing be kept of what was done before."""
    global COUNT
    COUNT = 0
    CALLS.clear()
    Memoised.row.cache_clear()
    CountingHelper.helper.__defaults__[0].clear()  # type: ignore[index]
    ClassCounter.total = 0


EFFECTS = [
    kind for kind in (*globals().values(),) if isinstance(kind, type) and issubclass(kind, Held) and kind is not Held
]

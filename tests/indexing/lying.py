"""Code that indexes data that is not what it seems; pytest rewrites the code of test modules, but not of this one."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

N = 14


class Held(Dataset[Any]):
    """Data that the functions below index, with labels."""

    def __init__(self, x: Any, length: int = N) -> None:
        self.x, self.y, self.length = x, [*range(N)], length

    def __len__(self) -> int:
        return self.length


def plain(self, i):
    return self.x[i], self.y[i]


def in_dictionary(self, i):
    return {"x": self.x[i], "y": self.y[i]}


def from_numpy(self, i):
    return torch.from_numpy(self.x[i])


def to_tensor(self, i):
    return torch.tensor(self.x[i]), self.y[i]


def asking(self, i):
    return self.x[i], torch.is_tensor(i)


def to_floats(self, i):
    return torch.tensor(self.x[i], dtype=torch.float32)


def to_longs(self, i):
    return torch.as_tensor(self.x[i], dtype=torch.long)


def as_type(self, i):
    return self.x[i].astype(np.float32)


def windows(self, i):
    window = self.x[i : i + 3]
    return window, window[:-1]


def halved(self, i):
    return self.x[i] / 2 - 1


def floats(self, i):
    return self.x[i].float()


def numbers(self, i):
    return int(self.x[i]), float(self.x[i])


def first(self, i):
    return self.x[i][0], self.x[i][1:]


def turned(self, i):
    return self.x[i].T, self.x[i].reshape(-1)


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Counted(list):
    """A list whose rows are not what its memory holds."""

    def __getitem__(self, i):
        return [*range(N)][i] * 2


class Shifted(np.ndarray):
    def __getitem__(self, i):
        return np.asarray(self)[i] + 1


class Marked(torch.Tensor):
    pass


class Stubborn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found + 1 if function is torch.Tensor.__getitem__ else found


class Sequence:
    """Something that can be indexed."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(N))]
        if i >= N:
            raise LookupError(f"nothing at {i}")
        return torch.full((3,), float(i))


def refusing(self, i):
    if i == 9:
        raise ValueError(f"sample {i} is bad")
    return self.x[i], self.y[i]


def bounded(self, i):
    if not 0 <= i < 9:
        raise IndexError(f"there is no sample {i}")
    return self.x[i], self.y[i]


def checking(self, i):
    x = self.x[i]
    assert not torch.isnan(x).any(), f"NaN in {i}"
    return x, self.y[i]


def dividing(self, i):
    return self.x[i] / 2, self.y[i] / (self.y[i] - 9)


def absent(self, i):
    return self.x[i], self.z[i]


def misspelt(self, i):
    return self.x[i], torhc.tensor(self.y[i])  # type: ignore[name-defined]  # noqa: F821


def mistyped(self, i):
    return self.x[i].astype(np.float32), self.y[i]


def reshaped(self, i):
    return self.x[i].reshape(2, 2)


class Deep(Held):
    def label(self, i):
        return self.y[i + (100 if i == 9 else 0)]

    def __getitem__(self, i):
        return self.x[i], self.label(i)


INDEXING = (
    plain, in_dictionary, from_numpy, to_tensor, to_floats, to_longs, as_type, windows, halved, floats, numbers, first,
    turned,
)  # fmt: skip
FAILING = refusing, bounded, checking, dividing, absent, misspelt, mistyped, reshaped
#: The classes that have one of the functions as their `__getitem__`.
KINDS: dict[str, Any] = {
    one.__name__: type(one.__name__, (Held,), {"__getitem__": one}) for one in (*INDEXING, *FAILING, asking)
}


class MappedTokens(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self):
        return len(self.data) // 100

    def __getitem__(self, i):
        chunk = self.data[100 * i : 100 * i + 33]
        return torch.from_numpy(chunk[:-1].astype(np.int64)), torch.from_numpy(chunk[1:].astype(np.int64))


class MappedRows(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data.reshape(-1, 50)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i].astype(np.int64), i

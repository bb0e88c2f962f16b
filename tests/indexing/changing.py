"""Classes that tests change while a loader reads them: each test has a fresh copy of this module."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

FACTOR = 2


def helper(x, times=3):
    return x * times


class Config:
    block = 3


class Data(Dataset):
    """Rows of a tensor and an array, windows, lists, and what the code reads of the class and the module."""

    scale = 4

    def __init__(self):
        self.x = torch.arange(80.0).reshape(20, 4)
        self.a = np.arange(60, dtype=np.float32).reshape(20, 3)
        self.y = [*range(100, 120)]
        self.words = [f"word {i}" for i in range(20)]
        self.rows = [torch.arange(3) + 10 * i for i in range(20)]
        self.table = {"k": torch.arange(20)}
        self.tokens = np.arange(40, dtype=np.uint16)
        self.ids = [*range(20)]
        self.config = Config()
        self.transform = None
        self.train = True

    def __len__(self):
        return 18

    def label(self, i):
        return self.y[i] + 1

    def __getitem__(self, i):
        x = self.x[self.ids[i]]
        if self.transform is not None:
            x = self.transform(x)
        window = torch.from_numpy(self.tokens[i : i + self.config.block].astype(np.int64))
        item = {"x": x, "a": torch.from_numpy(self.a[i]) / FACTOR, "window": window, "row": self.rows[i]}
        if self.train:
            item["y"] = self.label(i)
        item["word"] = self.words[i]
        item["scaled"] = helper(self.table["k"][i]) - self.scale
        return item


class Other(Data):
    def __getitem__(self, i):
        return {**super().__getitem__(i), "other": self.y[i]}


class Plain(Dataset):
    def __init__(self):
        self.x, self.y = torch.arange(80.0).reshape(20, 4), [*range(100, 120)]

    def __len__(self):
        return 18

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Changed:
    """What descriptors and properties are made of."""

    def __init__(self):
        self.calls = 0

    def __get__(self, instance, owner=None):
        self.calls += 1
        return torch.arange(80.0).reshape(20, 4) * self.calls

    def __set__(self, instance, value):
        raise AttributeError("read only")

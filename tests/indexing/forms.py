"""Datasets whose `__getitem__` only indexes, in the forms that people publish. Each class is written as they write it.

FORMS has a function for each that makes it over its data: SIZE samples, of which no two are the same.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import os
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

if TYPE_CHECKING:

    class Stored(Dataset[Any]):
        def __init__(self, *given: Any, **named: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
else:
    Stored = Dataset  # whose attributes `form` sets

SIZE = 23
FORMS: dict[str, Callable[[], Any]] = {}


def form(*arguments: Any, **attributes: Any) -> Callable[[Any], Any]:
    """Enter a class with its arguments, or the functions that make them.

    attributes: of a class whose `__init__` does no more than set them; the first has a sample's part for each sample.
    """

    def enter(kind: Any) -> Any:
        if attributes:
            kind.__init__ = lambda self, *given: self.__dict__.update(zip(attributes, given, strict=True))
        if "__len__" not in vars(kind) and attributes:
            kind.__len__ = lambda self: len(getattr(self, next(iter(attributes))))
        values = arguments or attributes.values()
        FORMS[kind.__name__] = lambda: kind(*(one() if callable(one) else one for one in values))
        return kind

    return enter


# --- data -------------------------------------------------------------------------------------------------------------


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((SIZE, *shape))


def floats() -> np.ndarray:
    return numbers(5).astype(np.float32)


def doubles() -> np.ndarray:
    return numbers(5)


def tensors() -> torch.Tensor:
    return torch.from_numpy(floats())


def classes() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, SIZE)


def class_tensor() -> torch.Tensor:
    return torch.from_numpy(classes())


def class_list() -> list[int]:
    return classes().tolist()


def images() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (SIZE, 8, 6), dtype=np.uint8)


def colours() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (SIZE, 8, 6, 3), dtype=np.uint8)


def token_rows() -> list[list[int]]:
    return np.random.default_rng(4).integers(0, 1000, (SIZE, 7)).tolist()


def token_stream() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 50_000, 60, dtype=np.uint16)


def texts() -> list[str]:
    return [f"the text of number {i}{' and more' * (i % 3)}" for i in range(SIZE)]


def table() -> Any:
    pandas = importlib.import_module("pandas")

    columns = {f"c{k}": numbers(seed=k).round(3) for k in range(4)}
    return pandas.DataFrame({**columns, "n": np.arange(SIZE) * 3, "text": texts(), "label": classes()})


def mapped(values: np.ndarray, mode: Any = "r") -> np.memmap:
    """Return a memory map of a file of its own, whose name is gone: the map keeps the file."""
    file, path = tempfile.mkstemp()
    try:
        with os.fdopen(file, "wb") as out:
            out.write(values.tobytes())
        return np.memmap(path, dtype=values.dtype, mode=mode, shape=values.shape)
    finally:
        os.unlink(path)


# --- tensors, arrays, lists -------------------------------------------------------------------------------------------


@form(X=tensors, y=class_tensor)
class TensorPair(Stored):
    def __getitem__(self, idx):
        return self.X[idx], self.y[idx]


@form(data=token_rows, labels=class_list)
class ListPair(Stored):
    def __getitem__(self, idx):
        data = self.data[idx]
        label = self.labels[idx]
        return data, label


@form(features=floats, targets=classes)
class FromNumpyDict(Stored):
    def __getitem__(self, idx):
        dct = {"x": torch.from_numpy(self.features[idx, :]), "y": torch.tensor(self.targets[idx], dtype=torch.long)}
        return dct


@form(x=floats, y=class_list)
class FloatTensorForm(Stored):
    def __getitem__(self, idx):
        return torch.FloatTensor(self.x[idx]), torch.LongTensor([self.y[idx]])


@form(x=doubles, y=classes)
class Scalars(Stored):
    def __getitem__(self, idx):
        return self.x[idx].astype(np.float32), np.float32(self.y[idx]), int(self.y[idx]), float(self.x[idx, 0])


@form(x=tensors, y=class_tensor)
class ItemOfTensor(Stored):
    def __getitem__(self, idx):
        return self.x[idx].clone().detach(), self.y[idx].item()


@form(x=tensors, y=class_tensor)
class Converted(Stored):
    def __getitem__(self, idx):
        return self.x[idx].to(torch.float64), self.y[idx].to(torch.int32), self.x[idx].long(), self.y[idx] > 1


@form(tensors=lambda: [torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(SIZE)])
class ListOfTensors(Stored):
    def __getitem__(self, idx):
        return self.tensors[idx]


@form(data=lambda: [*zip(tensors(), class_list(), strict=True)])
class ListOfPairs(Stored):
    def __getitem__(self, idx):
        x, y = self.data[idx]
        return x, y


@form(lambda: list(zip(token_rows(), token_rows(), class_list(), strict=True)))
class Unzipped(Dataset[Any]):
    def __init__(self, samples):
        self.first, self.second, self.score = zip(*samples, strict=True)

    def __len__(self):
        return len(self.score)

    def __getitem__(self, i):
        return torch.LongTensor(self.first[i]), torch.LongTensor(self.second[i]), torch.FloatTensor([self.score[i]])


@form(values=lambda: list(numbers()), flags=lambda: [bool(k % 2) for k in range(SIZE)])
class FloatsAndBools(Stored):
    def __getitem__(self, idx):
        return [self.values[idx], self.flags[idx], float(self.values[idx])]


# --- tokens -----------------------------------------------------------------------------------------------------------


@form(encodings=lambda: {"input_ids": token_rows(), "attention_mask": [[1] * 5 + [0] * 2] * SIZE}, labels=class_list)
class Encodings(Stored):
    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[idx])
        return item


@form(data=lambda: mapped(token_stream()), block_size=16)
class MappedWindows(Stored):
    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, i):
        x = torch.from_numpy((self.data[i : i + self.block_size]).astype(np.int64))
        y = torch.from_numpy((self.data[i + 1 : i + 1 + self.block_size]).astype(np.int64))
        return x, y


@form(lambda: token_stream().tolist(), lambda: SimpleNamespace(block_size=8))
class CharacterWindows(Dataset[Any]):
    def __init__(self, data, config):
        self.config = config
        self.data = data

    def __len__(self):
        return len(self.data) - self.config.block_size

    def __getitem__(self, idx):
        dix = self.data[idx : idx + self.config.block_size + 1]
        x = torch.tensor(dix[:-1], dtype=torch.long)
        y = torch.tensor(dix[1:], dtype=torch.long)
        return x, y


@form(tokens=lambda: mapped(token_stream()), length=4)
class DisjointBlocks(Stored):
    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, idx):
        start = idx * self.length
        end = start + self.length
        x = torch.tensor(self.tokens[start:end].astype(np.int64))
        y = torch.tensor(self.tokens[start + 1 : end + 1].astype(np.int64))
        return {"input_ids": x, "labels": y}


# --- time series ------------------------------------------------------------------------------------------------------


@form(features=lambda: numbers(2, seed=9).astype(np.float32), target=lambda: numbers(seed=10).astype(np.float32), lag=4)
class PastWindows(Stored):
    """Targets of the index, features of the window that ends there."""

    def __len__(self):
        return self.features.shape[0] - self.lag + 1

    def __getitem__(self, index):
        x = self.features[index : index + self.lag, :]
        return torch.from_numpy(x), self.target[index + self.lag - 1]


@form(x=lambda: torch.arange(7.0 * SIZE * 2).reshape(7, SIZE, 2))
class MiddleDimension(Stored):
    def __len__(self):
        return self.x.shape[1]

    def __getitem__(self, idx):
        return self.x[:, idx], self.x[-1, idx, 0]


# --- images -----------------------------------------------------------------------------------------------------------


@form(images=colours, labels=classes)
class ChannelsFirst(Stored):
    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).float().div(255)
        return image, torch.tensor(self.labels[index]).long()


@form(images=colours, labels=classes)
class TransposedArray(Stored):
    def __getitem__(self, index):
        image = self.images[index].transpose((2, 0, 1)).astype(np.float32) / 255
        return image, self.labels[index]


@form(lambda: torch.from_numpy(colours()), class_list, None, None)
class WithTransforms(Dataset[Any]):
    def __init__(self, data, targets, transform=None, target_transform=None):
        self.data = data
        self.targets = targets
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """
        Args:
            index (int): Index

        Returns:
            tuple: (image, target) where target is index of the target class.
        """
        img, target = self.data[index], int(self.targets[index])

        if self.transform is not None:
            img = self.transform(img)

        if self.target_transform is not None:
            target = self.target_transform(target)

        return img, target


@form(data=lambda: torch.from_numpy(images()), targets=class_list, transform=lambda: lambda x: x.float() * 2)
class WithOwnTransform(Stored):
    def __getitem__(self, index):
        x = self.data[index]
        if self.transform:
            x = self.transform(x)
        return x, self.targets[index]


@form(floats, class_list)
class TensorIndex(Dataset[Any]):
    def __init__(self, features, labels, transform=None):
        self.features = features
        self.labels = labels
        self.transform = transform

    def __len__(self):
        return len(self.features)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        sample = {"features": self.features[idx], "label": self.labels[idx]}
        if self.transform:
            sample = self.transform(sample)
        return sample


# --- tables -----------------------------------------------------------------------------------------------------------


@form(table)
class FrameRows(Dataset[Any]):
    def __init__(self, df):
        self.df = df[["c0", "c1", "c2", "c3"]]

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        return torch.tensor(self.df.iloc[idx].values, dtype=torch.float32)


@form(df=table)
class FrameCells(Stored):
    def __getitem__(self, idx):
        return self.df.iloc[idx, 0], self.df.iloc[idx, 4], self.df.iloc[idx, 5]


@form(df=table)
class FrameColumns(Stored):
    def __getitem__(self, idx):
        return self.df["c1"].values[idx], self.df["label"].values[idx], self.df["text"].values[idx]


@form(table)
class FrameRowColumns(Dataset[Any]):
    def __init__(self, df):
        self.df = df.drop(columns="text")
        self.cols = ["c0", "c2"]

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        x = torch.tensor(row[self.cols].values.astype(np.float32))
        y = torch.tensor(row["label"], dtype=torch.long)
        return x, y


@form(table)
class FrameRowNumbers(FrameRowColumns):
    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        return torch.tensor(row.iloc[1:3].values, dtype=torch.float32), row.iloc[0], self.df.iloc[idx].iloc[-1]


@form(table)
class FrameLoc(Dataset[Any]):
    def __init__(self, df):
        self.df = df.reset_index(drop=True)

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        text = self.df.loc[idx, "text"]
        label = self.df.loc[idx, "label"]
        return text, label


@form(table)
class FrameTargets(Dataset[Any]):
    def __init__(self, df):
        self.x = df.drop(columns=["text", "label"])
        self.y = df["label"]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.x.iloc[idx].to_numpy(dtype=np.float32), self.y.iloc[idx]


@form(table)
class FrameValues(Dataset[Any]):
    def __init__(self, df):
        self.x = df[["c0", "c1", "n"]].values
        self.y = df["label"].to_numpy()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return torch.tensor(self.x[idx]).float(), torch.tensor(self.y[idx])


# --- labels, pairs, graphs --------------------------------------------------------------------------------------------


@form(x=tensors, y=class_tensor, n_classes=4)
class OneHot(Stored):
    def __getitem__(self, idx):
        return self.x[idx], F.one_hot(self.y[idx], num_classes=self.n_classes).float()


Old = collections.namedtuple("Old", ["features", "label", "index"])


@form(x=floats, y=class_list)
class OldNamedSamples(Stored):
    def __getitem__(self, idx):
        return Old(self.x[idx], self.y[idx], idx)


@form(tensors, class_tensor)
class Normalised(Dataset[Any]):
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.mean = x.mean(0)
        self.std = x.std(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        x = (self.x[idx] - self.mean) / self.std
        return x, self.y[idx]


@form(doubles)
class NormalisedArray(Dataset[Any]):
    def __init__(self, x):
        self.x = x
        self.mean, self.std = x.mean(), x.std()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        return torch.from_numpy((self.x[idx] - self.mean) / (self.std + 1e-8)).float()


@form(triples=lambda: np.random.default_rng(7).integers(0, 9, (SIZE, 3)))
class Triples(Stored):
    def __getitem__(self, idx):
        head, relation, tail = self.triples[idx]
        return head, relation, tail


@form(tensors, tensors)
class Siamese(Dataset[Any]):
    def __init__(self, a, b):
        self.a, self.b = a, b.flip(0)[:17]

    def __len__(self):
        return max(len(self.a), len(self.b))

    def __getitem__(self, idx):
        anchor = self.a[idx % len(self.a)]
        positive = self.b[idx % len(self.b)]
        negative = self.a[(idx + 1) % len(self.a)]
        return anchor, positive, negative


# --- where the code and the data are ----------------------------------------------------------------------------------


@form(x=tensors, y=class_tensor)
class Helper(Stored):
    def get_x(self, idx):
        return self.x[idx]

    def get_label(self, idx, offset=1):
        return self.y[idx] + offset

    def __getitem__(self, idx):
        x = self.get_x(idx)
        return x, self.get_label(idx), self.get_label(idx, offset=2)


SCALE = 255.0


@form(x=lambda: torch.from_numpy(images()), y=class_list)
class ClassAttributes(Stored):
    mean = 0.1307
    std = 0.3081
    dtype = torch.float64

    def __getitem__(self, idx):
        x = self.x[idx].to(self.dtype) / SCALE
        return (x - self.mean) / self.std, self.y[idx]


class Wrapper(Dataset[Any]):
    """A dataset over another one."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, idx):
        x, y = self.inner[idx]
        return {"x": x, "y": y}


FORMS["Wrapper"] = lambda: Wrapper(TensorPair(tensors(), class_tensor()))


@dataclasses.dataclass(frozen=True)
class Config:
    window: int = 3
    scale: float = 0.5


@form(x=tensors, cfg=Config)
class Configured(Stored):
    def __len__(self):
        return len(self.x) - self.cfg.window

    def __getitem__(self, idx):
        return self.x[idx : idx + self.cfg.window] * self.cfg.scale


def closed_over():
    x, y = tensors(), class_list()

    class Closed(Dataset[Any]):
        def __len__(self):
            return len(x)

        def __getitem__(self, idx):
            return x[idx], y[idx]

    return Closed()


FORMS["Closed"] = closed_over


@form(tensors, class_list)
class Duck:
    """No Dataset: torch's loader asks for two methods only."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        return self.x[idx], self.y[idx]


@form(tensors)
class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        return self.x[idx]


@form(tensors)
class Mangled(Dataset[Any]):
    def __init__(self, x):
        self.__x = x

    def __len__(self):
        return len(self.__x)

    def __getitem__(self, idx):
        return self.__x[idx]


@form(columns=lambda: {"x": tensors(), "y": class_list(), "text": texts()})
class Columns(Stored):
    def __len__(self):
        return len(self.columns["y"])

    def __getitem__(self, idx):
        return {key: self.columns[key][idx] for key in self.columns}


@form(lambda: (tensors(), class_tensor(), torch.arange(SIZE)))
class OwnTensorDataset(Dataset[Any]):
    def __init__(self, tensors):
        assert all(tensors[0].size(0) == tensor.size(0) for tensor in tensors)
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self):
        return self.tensors[0].size(0)


@form(tensors, class_list)
class Lambdas(Dataset[Any]):
    def __init__(self, x, y):
        self.x, self.y = x, y

    __len__ = lambda self: len(self.x)
    __getitem__ = lambda self, i: (self.x[i], self.y[i])  # type: ignore[attr-defined]


def checked(method):
    @functools.wraps(method)
    def checking(self, idx):
        if idx >= len(self):
            raise IndexError(f"no sample {idx}")
        return method(self, idx)

    return checking


@form(x=tensors)
class Decorated(Stored):
    @checked
    def __getitem__(self, idx):
        return self.x[idx]


@form(x=lambda: numbers(6, 4).astype(np.float32), max_len=3)
class Truncated(Stored):
    def __getitem__(self, idx):
        x = self.x[idx][: self.max_len]
        return torch.from_numpy(x.copy()), torch.from_numpy(x).contiguous().view(-1)


@form(class_list)
class StackedConstants(Dataset[Any]):
    """A vector that does not depend on the index."""

    def __init__(self, y):
        self.y, self.weights = y, torch.tensor([0.2, 0.8])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.weights, self.y[idx], 1.0, "train"

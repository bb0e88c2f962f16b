"""The IDs and labels of a dataset's samples, in order and compact; of a Subset and a ConcatDataset too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.order.permutations import Indices


@dataclass(frozen=True)
class Names:
    """IDs, in order; compact."""

    prefix: str
    """What each ID begins with: "0/" in the first part of a ConcatDataset."""
    size: int
    texts: bytes | None = None
    """The IDs without the prefix, each followed by a NUL."""
    numbers: Indices | None = None
    """IDs that are numbers: int64, shape (size,). Without texts and numbers the IDs are 0 to size - 1."""

    def as_texts(self) -> list[bytes]:
        """Return each ID."""
        prefix = self.prefix.encode()
        if self.texts is not None:
            listed = self.texts.split(b"\0")[:-1]
            return [prefix + text for text in listed] if prefix else listed
        numbers: Iterable[int] = range(self.size) if self.numbers is None else self.numbers.tolist()
        return [prefix + str(number).encode() for number in numbers]

    def chosen(self, indices: Indices) -> Names:
        """Return the IDs at some indices."""
        if self.texts is None:
            numbers = indices if self.numbers is None else self.numbers[indices]
            return Names(self.prefix, len(indices), numbers=numbers)
        listed = self.texts.split(b"\0")[:-1]
        return Names(self.prefix, len(indices), texts=_joined([listed[index] for index in indices.tolist()]))


@dataclass(frozen=True)
class Listing:
    """The IDs and labels of a dataset, in order."""

    names: tuple[Names, ...]
    labels: NDArray[Any] | None = None
    """One 64-bit value for each sample: its number, or a hash of what it is."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.names)

    def texts(self) -> list[bytes]:
        """Return the ID of each sample."""
        return [text for part in self.names for text in part.as_texts()]

    def chosen(self, indices: Indices) -> Listing:
        """Return the listing of a Subset with these indices; negative indices count from the end."""
        indices = np.where(indices < 0, indices + self.size, indices)
        if len(self.names) == 1:
            names: tuple[Names, ...] = (self.names[0].chosen(indices),)
        else:
            listed = self.texts()
            names = (Names("", len(indices), _joined([listed[index] for index in indices.tolist()])),)
        return Listing(names, None if self.labels is None else self.labels[indices])


def concatenated(parts: Sequence[Listing]) -> Listing:
    """Return the listing of a ConcatDataset: IDs begin with the number of their part; some parts may lack labels."""
    names = tuple(
        Names(f"{number}/{names.prefix}", names.size, names.texts, names.numbers)
        for number, part in enumerate(parts)
        for names in part.names
    )
    if all(part.labels is None for part in parts):
        return Listing(names)
    columns = [np.zeros(part.size, np.int64) if part.labels is None else part.labels for part in parts]
    return Listing(names, np.concatenate(columns))


def joined_ids(names: Iterable[str]) -> bytes:
    """Return IDs as bytes, each followed by a NUL."""
    return _joined([name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\0") for name in names])


def _joined(texts: Sequence[bytes]) -> bytes:
    return b"\0".join(texts) + b"\0" if texts else b""


def label_values(labels: Any) -> NDArray[Any]:
    """Return one 64-bit value for each label."""
    labels = as_array(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return labels.astype(np.float64).view(np.int64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    return np.fromiter(map(_of_label, labels), np.int64, len(labels))


def as_array(values: Any) -> Any:
    """Return a copy of a tensor as an array: an array that shares its memory would forbid the tensor to grow."""
    return values.detach().clone().numpy(force=True) if isinstance(values, torch.Tensor) else values


def _of_label(label: Any) -> int:
    """Return a whole number itself, else a hash: of an array's bytes, or of a text without an address in it."""
    if type(label) is int and -(1 << 63) <= label < 1 << 63:
        return label
    if type(label) is float:
        return int(np.float64(label).view(np.int64))
    label = as_array(label)
    if isinstance(label, np.ndarray) and label.dtype != object:
        data = label.tobytes()
    else:
        text = repr(label)
        data = (type(label).__qualname__ if " at 0x" in text else text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)

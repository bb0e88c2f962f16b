"""The catalogue of a dataset: the IDs, labels and sizes of its samples, as far as they can be had without reading them.

The hashes of a catalogue are the dataset's fingerprint, which a checkpoint holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.order.permutations import Indices

_HASH_BYTES = 8  # two datasets share a hash by chance once in 2**64 pairs


@dataclass(frozen=True)
class Catalogue:
    """What is known of a dataset's samples, in order."""

    size: int
    ids: bytes | Indices | None = None
    """The ID of each sample: texts, each followed by a NUL; or numbers, int64; None: 0 to size - 1."""
    labels: NDArray[Any] | None = None
    """One 64-bit value for each sample: its number, or a hash of what it is."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The shapes of rows that lie in memory; sizes in bytes of the files that were looked at, -1 for a missing file."""

    def texts(self) -> list[bytes]:
        """Return the ID of each sample."""
        if isinstance(self.ids, bytes):
            return self.ids.split(b"\0")[:-1]
        numbers: Iterable[int] = range(self.size) if self.ids is None else self.ids.tolist()
        return [str(number).encode() for number in numbers]

    def chosen(self, indices: Indices) -> Catalogue:
        """Return the catalogue of a Subset with these indices; negative indices count from the end."""
        indices = np.where(indices < 0, indices + self.size, indices)
        ids: bytes | Indices = indices
        if isinstance(self.ids, bytes):
            listed = self.texts()
            ids = _joined([listed[index] for index in indices.tolist()])
        elif self.ids is not None:
            ids = self.ids[indices]
        return Catalogue(len(indices), ids, None if self.labels is None else self.labels[indices], self.sizes)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint: JSON-able, a few dozen bytes.

        `size`: of the dataset; `ids`, `labels`, `sizes`: hashes, None where there are none.
        """
        ids = None
        if self.ids is not None:
            data, kind = (self.ids, "t") if isinstance(self.ids, bytes) else (self.ids.tobytes(), "r")
            ids = _hash(json.dumps(["", self.size, kind]).encode() + data)
        return {
            "size": self.size,
            "ids": ids,
            "labels": None if self.labels is None else _hash(self.labels.tobytes()),
            "sizes": _hash(self.sizes.tobytes()) if len(self.sizes) else None,
        }


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()


def concatenated(parts: Sequence[Catalogue]) -> Catalogue:
    """Return the catalogue of a ConcatDataset: IDs begin with the number of their part; some parts may lack labels."""
    ids = _joined([b"%d/%s" % (number, text) for number, part in enumerate(parts) for text in part.texts()])
    labels = None
    if any(part.labels is not None for part in parts):
        columns = [np.zeros(part.size, np.int64) if part.labels is None else part.labels for part in parts]
        labels = np.concatenate(columns)
    return Catalogue(sum(part.size for part in parts), ids, labels, np.concatenate([part.sizes for part in parts]))


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

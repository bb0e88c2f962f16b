"""One tensor a file, by ID: the layout of ``torch.save(x, f"data/{ID}.pt")``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch.utils.data import Dataset

from penstock import _native
from penstock.errors import InvalidID, InvalidOption, MissingLabel
from penstock.sources.labels import Labels, transformed
from penstock.sources.reading import open_sample, read_tensor


class IDs(Sequence[str]):
    """The IDs of a folder, held as one byte array and decoded when asked for."""

    def __init__(self, paths: _native.PathTable) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return os.fsdecode(self._paths.name(range(len(self))[index]))

    def __iter__(self) -> Iterator[str]:
        for i in range(len(self)):
            yield os.fsdecode(self._paths.name(i))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IDs):
            return self._paths.names() == other._paths.names()
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IDs({len(self):,} names)"


class TensorFolder(Dataset[Any]):
    """A folder that holds each sample as one file, ``root/ID.pt`` or ``root/ID.npy``.

    A sample is the tensor, or the pair (tensor, label) when labels are given. Files hold one dense tensor as
    torch.save wrote it, or an array as numpy.save wrote it; nothing in them is executed.

    Args:
        root: the folder.
        ids: names of the samples, relative to root and without the suffix; None lists the folder, sorted.
        labels: label by ID. An ID without one is an error when its sample is loaded.
        suffix: what follows the ID in the file's name.
        transform: called with the tensor. Python then reads the samples (see ``explain()``).
        target_transform: called with the label.

    Attributes:
        ids: the IDs, in order.

    Raises:
        InvalidID: an ID is empty, absolute or contains "..".
        FileNotFoundError: root is no folder, or ids is None and it holds no file with this suffix.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        ids: Iterable[str] | None = None,
        labels: Mapping[str, Any] | None = None,
        *,
        suffix: str = ".pt",
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.suffix = suffix
        self.transform = transform
        self.target_transform = target_transform
        if not os.path.isdir(self.root):
            raise FileNotFoundError(
                errno.ENOENT, f"no such folder; root must hold one file for each sample, as root/ID{suffix}", self.root
            )
        if labels is not None and not isinstance(labels, Mapping):
            raise TypeError(f"labels must be a dict from ID to label, not {type(labels).__name__}")
        if "/" in suffix or "\0" in suffix:
            raise InvalidOption(f"suffix must be the end of a file name, such as '.pt', not {suffix!r}")
        names = _list_folder(self.root, suffix) if ids is None else _join(ids)
        bad = _native.first_bad_name(names)
        if bad is not None:
            name = os.fsdecode(names.split(b"\0")[bad])
            raise InvalidID(
                f"ID {name!r} (number {bad}) is not a name inside {self.root}: give a relative name, without '..'"
            )
        self.paths = _native.PathTable(os.fsencode(self.root), names, os.fsencode(suffix), True)
        self.ids = IDs(self.paths)
        self.labels = (
            None if labels is None else Labels.from_mapping(labels, self.ids if ids is None else _again(ids, self.ids))
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        position = range(len(self))[index]  # as a list: negative counts from the end, IndexError past it
        tensor: Any = self.read(position)
        if self.transform is not None:
            tensor = self.transform(tensor)
        if self.labels is None:
            return tensor
        return tensor, transformed([self.label(position)], self.target_transform)[0]

    def label(self, position: int) -> Any:
        """Return the label of the sample at a position. Raises MissingLabel."""
        assert self.labels is not None
        try:
            return self.labels[position]
        except KeyError:
            raise self.missing_label(position) from None

    def missing_label(self, position: int) -> MissingLabel:
        """Return the error for a sample without a label."""
        name = self.ids[position]
        return MissingLabel(
            f"sample {name!r} ({self.path(position)}) has no label: labels= has no key {name!r}; "
            "add it, or leave the ID out of ids=",
            sample_id=name,
            path=self.path(position),
        )

    def path(self, position: int) -> str:
        """Return the file of the sample at a position."""
        return os.fsdecode(self.paths.path(position))

    def read(self, position: int) -> torch.Tensor:
        """Return the tensor at a position, read by torch.load or numpy. Raises SampleError."""
        name = self.ids[position]
        return read_tensor(open_sample(self.paths, position, name), name, self.path(position))

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return f"TensorFolder({str(Path(self.root))!r}: {len(self):,} samples, *{self.suffix}{labelled})"


def _list_folder(root: str, suffix: str) -> bytes:
    names = _native.list_folder(os.fsencode(root), os.fsencode(suffix))
    if not names:
        raise FileNotFoundError(f"no file in {root} ends in {suffix!r}: give ids=, or the right suffix=")
    return names


def _join(ids: Iterable[str]) -> bytes:
    """Return the IDs as one byte string, each followed by a NUL."""
    if isinstance(ids, str):
        raise TypeError("ids must be a list of names, not one string")
    names = ids if isinstance(ids, (list, tuple)) else list(ids)
    try:
        joined = os.fsencode("\0".join(names))
    except UnicodeEncodeError as error:
        wrong = next(name for name in names if not _encodes(name))
        raise InvalidID(f"ID {wrong!r} cannot be the name of a file: {error.reason}") from error
    except TypeError:
        wrong = next(name for name in names if not isinstance(name, str))
        raise TypeError(f"an ID is a string, the file's name without its suffix; got {wrong!r}") from None
    if names:
        joined += b"\0"
    if joined.count(b"\0") != len(names):
        wrong = next(name for name in names if "\0" in name)
        raise InvalidID(f"ID {wrong!r} contains a NUL character")
    return joined


def _encodes(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _again(given: Iterable[str], held: IDs) -> Iterable[str]:
    """Return the IDs for a second pass: the caller's list where it is one, which spares decoding."""
    return given if isinstance(given, (list, tuple)) else held

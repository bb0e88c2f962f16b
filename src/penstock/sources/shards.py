"""Packed shards as a dataset: tar archives that `penstock pack` wrote, or `penstock index` indexed."""

from __future__ import annotations

import copy
import errno
import io
import json
import operator
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from penstock.errors import CorruptSample, CorruptShards, DatasetChanged, InvalidOption
from penstock.order.blocks import DEFAULT_WINDOW, Blocks, checked_window
from penstock.order.permutations import Indices
from penstock.showing import shown
from penstock.sources.blocks import blocks_of_shards, check_window
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.sources.labels import LabelColumn, LazySequence, as_objects
from penstock.sources.reading import read_image, read_tensor
from penstock.storage import description
from penstock.storage.cache_folder import DEFAULT_LIMIT, CacheFolder
from penstock.storage.description import ShardFiles
from penstock.storage.index import ABSENT, Index
from penstock.storage.objects import ObjectStore
from penstock.storage.remote_shards import RemoteShards, splits_in, with_local_index
from penstock.system.urls import is_url
from penstock.system.words import counted, there_are

_TENSORS = (".pt", ".pth", ".npy")


class ShardLabels(LazySequence[Any]):
    """The labels of packed samples, read from the index when they are taken."""

    def __init__(self, index: Index, split: description.Split) -> None:
        self._index = index
        self._split = split

    def __len__(self) -> int:
        return len(self._index)

    def _at(self, position: int) -> Any:
        return self.objects(np.array([position]))[0]

    def objects(self, positions: Indices) -> list[Any]:
        """Return the labels at these positions, as the Python objects that were packed."""
        labels = self.take(positions)
        return list(map(torch.tensor, labels)) if self._split.label == "tensor" else as_objects(labels)

    def take(self, positions: Indices) -> LabelColumn:
        """Return the labels at these positions: an array where they are numbers."""
        values: NDArray[Any] = self._index.rows(positions)["label"].copy()
        return list(map(self._text, values.tolist())) if self._split.label == "text" else values

    def _text(self, number: int) -> str:
        texts = self._split.texts or ()
        if not 0 <= number < len(texts):
            raise CorruptShards(
                f"{self._index.path} has a label {number}, and dataset.json {there_are(len(texts), 'text')}"
            )
        return texts[number]


class Shards(Dataset[Any]):
    """A dataset that was packed into tar shards by `penstock pack`, or tar shards that `penstock index` indexed.

    A sample is that of the packed dataset: (image, label) of an image folder, a tensor or (tensor, label) of a folder
    of tensors, the tuple of its rows of arrays. A sample of several files is a dictionary from suffix ("jpg", "json")
    to the content of the file: a PIL image, a tensor, an int (cls), a text (txt), the value of a JSON file, or bytes.
    Opening takes the same time however many samples there are.

    Shards in an object store come into a cache folder on this machine ahead of need in a loader's pass, as
    whole files; where a pass needs few samples of a shard, only these are read. `shuffle=True` shuffles within a
    window of shards.

    Args:
        path: the folder, or its URL in an object store: s3://bucket/folder, gs://, az://, https:// or file://.
        split: the name of the split; None where the folder holds only one.
        transform: called with the image or tensor, with the first of several tensors, or with the dictionary.
        target_transform: called with the label.
        verify: the CRC-32C of each file is compared as it is read.
        window: how many shards are shuffled together by `shuffle=True`; None: 8 of an object store, all of a folder.
        cache_folder: keeps shards of an object store; made where it does not exist, for this user only; None: one in
            the user's cache folder. Processes may share it.
        cache_limit: bytes that the cache folder may take; None: 64 GiB.

    Attributes:
        root: the folder or URL.
        split: the name of the split.
        classes: the names of classes, where the packed dataset had them; else None.
        labels: the labels, a sequence that reads them when they are taken; None without labels.

    Raises:
        FileNotFoundError: path is not a folder of packed shards.
        CorruptShards: the index or a shard is not what dataset.json says.
        InvalidOption: there is no such split, or several and none is named; the window does not fit into the cache.
        StorageError: an object store lacks the bucket or the object, refuses, or does not answer; the cache folder is
            not safe, or full.
        ImportError: of a URL, where the extra "remote" is not installed.
        ChecksumMismatch: of a sample, when it is read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        verify: bool = True,
        *,
        window: int | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
    ) -> None:
        self.root: str = path if is_url(path) else os.path.abspath(os.path.expanduser(os.fsdecode(path)))
        self.window = None if window is None else checked_window(window)
        if cache_limit is not None and (type(cache_limit) is not int or cache_limit < 1):
            raise InvalidOption(f"cache_limit={cache_limit!r}: it is a number of bytes, 1 or more, or None")
        self.cache_folder, self.cache_limit = cache_folder, cache_limit
        self.transform = transform
        self.target_transform = target_transform
        self.verify = verify
        self._open(split)

    def _open(self, split: str | None) -> None:
        if is_url(self.root):
            self._open_remote(split)
        else:
            self._open_folder(split)
        self.classes = None if self.description.classes is None else list(self.description.classes)
        self.labels = None if self.description.label is None else ShardLabels(self.index, self.description)

    def _open_remote(self, split: str | None) -> None:
        cache, store = CacheFolder(self.cache_folder, self.cache_limit or DEFAULT_LIMIT), ObjectStore(self.root)
        splits = splits_in(store)
        self.split = description.chosen(splits, split, self.root)
        self.description = splits[self.split]
        check_window(self.window or DEFAULT_WINDOW, self.description.shards, cache.limit)
        self.files: ShardFiles | RemoteShards = RemoteShards(store, self.description.shards, cache)
        local, self._held = with_local_index(store, self.description, cache)
        self.index = Index(str(cache.path), local, verify=self.verify)

    def _open_folder(self, split: str | None) -> None:
        if not os.path.lexists(os.path.join(self.root, description.FILE)):
            raise FileNotFoundError(
                errno.ENOENT,
                f"no folder of packed shards: it has no {description.FILE}; `penstock pack` makes shards of a dataset, "
                "and `penstock index` indexes tar files in WebDataset's naming",
                self.root,
            )
        splits = description.load(self.root)
        self.split = description.chosen(splits, split, self.root)
        self.description = splits[self.split]
        self.index = Index(self.root, self.description, verify=self.verify)
        self.files = ShardFiles(self.root, self.description.shards)
        self.files.check()

    @cached_property
    def shuffle_blocks(self) -> Blocks | None:
        """The shards as blocks that shuffle=True shuffles within a window; None: all samples are shuffled together."""
        window = self.window or (DEFAULT_WINDOW if isinstance(self.files, RemoteShards) else None)
        return None if window is None else blocks_of_shards(self.index, self.description.shards, window)

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """Class index by class name."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each sample, a list made at its first use."""
        return [] if self.labels is None else self.labels.objects(np.arange(len(self)))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Any:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample index {index} is out of range: {there_are(len(self), 'sample')}")
        position %= len(self)
        return self._sample(position, self.read(position))

    def _sample(self, position: int, value: Any) -> Any:
        """Return the sample at a position from what its files hold."""
        several = isinstance(value, tuple)
        if self.transform is not None:
            value = (self.transform(value[0]), *value[1:]) if several else self.transform(value)
        if self.labels is None:
            return (value,) if self.description.pair and not several else value
        label = self.label(position)
        return (*value, label) if several else (value, label)

    def label(self, position: int) -> Any:
        """Return the label of the sample at a position, target_transform applied."""
        assert self.labels is not None
        label = self.labels[position]
        return label if self.target_transform is None else self.target_transform(label)

    def name(self, position: int) -> str:
        """Return the ID of the sample at a position."""
        return os.fsdecode(self.index.id(self.index.rows([position])[0]))

    def path(self, position: int) -> str:
        """Return the shard of the sample at a position."""
        return self.files.place(self._shard(self.index.rows([position])[0]))

    def read(self, position: int) -> Any:
        """Return what the files of the sample at a position hold, untransformed. Raises SampleError."""
        row = self.index.rows([position])[0]
        files = self._files(row)
        name, path = os.fsdecode(self.index.id(row)), self.files.place(self._shard(row))
        if self.description.kind == "files":
            return {suffix.removeprefix("."): _decoded(suffix, data, name, path) for suffix, data in files}
        decode = _DECODERS[self.description.kind]
        values = tuple(decode(data, name, path) for _, data in files)
        return values[0] if len(self.description.parts) == 1 else values

    def read_bytes(self, position: int) -> dict[str, bytes]:
        """Return the files of the sample at a position, by the names of the members. Raises SampleError."""
        row = self.index.rows([position])[0]
        name = os.fsdecode(self.index.id(row))
        return {name + suffix: data for suffix, data in self._files(row)}

    def member_names(self) -> Iterator[str]:
        """Yield the names of the members that `read_bytes` gives, of all samples in order. No shard is read."""
        for begin in range(0, len(self), _ROWS):
            for row in self.index.rows(np.arange(begin, min(begin + _ROWS, len(self)))):
                name = os.fsdecode(self.index.id(row))
                yield from (name + suffix for suffix, _ in self._members(row, name))

    def _files(self, row: Any) -> list[tuple[str, bytes]]:
        """Return the suffix and the bytes of each file of a row's sample."""
        name, shard = os.fsdecode(self.index.id(row)), self._shard(row)
        return [
            (suffix, self.files.read(shard, member, name, verify=self.verify))
            for suffix, member in self._members(row, name)
        ]

    def _members(self, row: Any, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the suffix and the place of each file of a row's sample."""
        for part, member in zip(self.description.parts, row["members"], strict=True):
            number = int(member["suffix"])
            if number == ABSENT and self.description.kind == "files":
                continue
            if number >= len(part.suffixes):
                raise CorruptShards(f"{self.index.path} is damaged: sample {name!r} has an unknown suffix")
            yield part.suffixes[number], member

    def _shard(self, row: Any) -> int:
        shard = int(row["shard"])
        if shard >= len(self.files.shards):
            raise CorruptShards(f"{self.index.path} is damaged: it names shard {shard:,}, which dataset.json lacks")
        return shard

    def __deepcopy__(self, memo: dict[int, Any]) -> Shards:
        """Return a copy for another thread, which reads by the same open files: any number of threads may."""
        kind = type(self)
        memo[id(self)] = made = kind.__new__(kind)
        if (kind.__getstate__, kind.__setstate__) != (Shards.__getstate__, Shards.__setstate__):
            made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
            return made
        for name, value in self.__dict__.items():
            made.__dict__[name] = value if name in _OPENED else copy.deepcopy(value, memo)
        return made

    def __getstate__(self) -> dict[str, Any]:
        derived = _OPENED | {"classes", "class_to_idx", "targets", "shuffle_blocks"}
        state = {name: value for name, value in self.__dict__.items() if name not in derived}
        return {**state, "fingerprint": self.description.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fingerprint = state.pop("fingerprint")
        self.__dict__.update(state)
        self._open(self.split)
        if self.description.fingerprint != fingerprint:
            raise DatasetChanged(f"{self.root} was packed again since this dataset was made: make the dataset again")

    def __repr__(self) -> str:
        shards = counted(len(self.files.shards), "shard")
        return f"Shards({shown(self.root)!r}, split={self.split!r}: {counted(len(self), 'sample')} in {shards})"


#: Rows of the index that are read at once.
_ROWS = 1 << 14
#: Attributes of what is open, none of which anybody changes.
_OPENED = frozenset({"index", "files", "labels", "description", "_held", "shuffle_blocks"})


# --- what files hold --------------------------------------------------------------------------------------------------


def _image(data: bytes, name: str, path: str) -> Image.Image:
    return read_image(io.BytesIO(data), f"{path}:{name}")


def _tensor(data: bytes, name: str, path: str) -> torch.Tensor:
    return read_tensor(io.BytesIO(data), name, path)


def _pixels(data: bytes, name: str, path: str) -> Image.Image:
    array = _tensor(data, name, path).numpy()
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or not array.size or channels > 4 or array.shape[2:] == (1,):
        raise CorruptSample(
            f"sample {name!r} ({path}) holds an array {array.dtype}{list(array.shape)}, no image: pack it again",
            sample_id=name,
            path=path,
        )
    return Image.fromarray(array)


_DECODERS: dict[str, Callable[[bytes, str, str], Any]] = {"images": _image, "pixels": _pixels, "tensors": _tensor}


def _decoded(suffix: str, data: bytes, name: str, path: str) -> Any:
    """Return what a file holds, by the end of its suffix."""
    ending = "." + suffix.lower().rpartition(".")[2]
    if ending in IMG_EXTENSIONS:
        return _image(data, name, path)
    if ending in _TENSORS:
        return _tensor(data, name, path)
    try:
        if ending == ".cls":
            return int(data)
        if ending == ".json":
            return json.loads(data)
        if ending in (".txt", ".text"):
            return data.decode()
    except ValueError as error:
        message = f"file {suffix!r} of sample {name!r} ({path}) does not hold what its suffix says: {error}"
        raise CorruptSample(message, sample_id=name, path=path) from error
    return data

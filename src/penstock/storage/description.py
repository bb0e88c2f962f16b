"""What lies in a folder of packed shards: dataset.json, and the shards that it speaks of. Format: docs/shards.md."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import penstock._native as _native
from penstock.errors import (
    ChecksumMismatch,
    CorruptSample,
    CorruptShards,
    InvalidOption,
    MissingSample,
    UnreadableSample,
)

FILE = "dataset.json"
FORMAT = "penstock-shards"
VERSION = 1

#: What a sample is made of.
KINDS = ("images", "pixels", "tensors", "files")


@dataclass(frozen=True)
class Shard:
    """A tar archive of samples."""

    name: str
    """Of the file, below the folder."""
    bytes: int
    crc32c: int
    """Of the whole file."""
    samples: int


@dataclass(frozen=True)
class Column:
    """A file of the index."""

    name: str
    bytes: int
    crc32c: int
    """Of the whole file."""


@dataclass(frozen=True)
class Part:
    """A field of the samples: a file of each of them."""

    name: str
    """Of the field."""
    suffixes: tuple[str, ...]
    """What follows the ID in the name of the member; a sample's row says which."""


@dataclass(frozen=True)
class Split:
    """The samples of one split."""

    kind: str
    """images: encoded images. pixels: images as .npy arrays of uint8. tensors: .pt or .npy. files: any, by suffix."""
    samples: int
    parts: tuple[Part, ...]
    label: str | None
    """int, float, text or tensor: what a label is; None: samples have none."""
    texts: tuple[str, ...] | None
    """The labels that are texts, by number."""
    label_suffix: str | None
    """Of the members that hold labels for other programs; None: there are none."""
    pair: bool
    """True: a sample is a tuple of its fields and its label. False: it is its only field."""
    classes: tuple[str, ...] | None
    shards: tuple[Shard, ...]
    index: Column
    ids: Column
    fingerprint: str
    """Of the samples: their IDs, labels and bytes."""
    source: str
    """Of the files that were packed: their names and sizes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    states: Column | None = None
    """The file of the photos' decoder states; None: there is none."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.index, self.ids) if self.states is None else (self.index, self.ids, self.states)

    @property
    def files(self) -> tuple[str, ...]:
        return *(shard.name for shard in self.shards), *(column.name for column in self.columns)


def load(folder: str) -> dict[str, Split]:
    """Return the splits of a folder of shards, by name. Raises CorruptShards, OSError."""
    path = os.path.join(folder, FILE)
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError as error:
        why = "there is no such folder" if not os.path.isdir(folder) else f"it has no {FILE}"
        raise CorruptShards(
            f"{folder} is not a folder of packed shards: {why}. `penstock pack` makes one of a dataset, `penstock "
            "index` of tar files in WebDataset's naming"
        ) from error
    return parse(text, path)


def parse(text: bytes, path: str) -> dict[str, Split]:
    """Return the splits that a dataset.json describes; path: for messages. Raises CorruptShards."""
    try:
        held = json.loads(text)
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if held.get("version") != VERSION:
            raise CorruptShards(
                f"{path} is of version {held.get('version')!r} of the format; this Penstock reads version {VERSION}"
            )
        if held.get("crc32c", known := _crc32c(held["splits"])) != known:
            raise ValueError("its checksum does not match")
        return {name: _split(values) for name, values in held["splits"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptShards(
            f"{path} is damaged, or does not describe shards: {type(error).__name__}: {error}. Pack the dataset again"
        ) from error


def _split(values: dict[str, Any]) -> Split:
    known = {name: values[name] for name in (one.name for one in fields(Split)) if name != "states"}
    known["parts"] = tuple(Part(part["name"], tuple(part["suffixes"])) for part in known["parts"])
    known["shards"] = tuple(_typed(Shard, shard) for shard in known["shards"])
    known["index"], known["ids"] = _typed(Column, known["index"]), _typed(Column, known["ids"])
    if (states := values.get("states")) is not None:
        known["states"] = _typed(Column, states)
    for name in ("texts", "classes"):
        known[name] = None if known[name] is None else tuple(known[name])
    split = Split(**known)
    texts = [split.label, split.label_suffix, *(split.texts or ()), *(split.classes or ())]
    texts += [text for part in split.parts for text in (part.name, *part.suffixes)]
    if not all(text is None or isinstance(text, str) for text in (*texts, split.fingerprint, split.source)):
        raise ValueError("a name or a label is not a text")
    if type(split.pair) is not bool:
        raise ValueError(f"pair is {split.pair!r}")
    for file in split.files:
        if not file or "/" in file or "\0" in file or file in (".", ".."):
            raise ValueError(f"{file!r} is not the name of a file in the folder")
    if split.kind not in KINDS or not split.parts or type(split.samples) is not int or split.samples < 0:
        raise ValueError(f"kind {split.kind!r} with {len(split.parts)} fields and {split.samples!r} samples")
    return split


def _typed(kind: Any, values: dict[str, Any]) -> Any:
    for one in fields(kind):
        if type(values[one.name]).__name__ != one.type or (one.type == "int" and values[one.name] < 0):
            raise ValueError(f"{one.name} is {values[one.name]!r}")
    return kind(**{one.name: values[one.name] for one in fields(kind)})


def as_json(splits: Mapping[str, Split]) -> bytes:
    """Return a dataset.json: the same bytes for the same splits."""
    each = {name: asdict(splits[name]) for name in sorted(splits)}
    for split in each.values():
        if split["states"] is None:
            del split["states"]
    held = {"format": FORMAT, "version": VERSION, "crc32c": _crc32c(each), "splits": each}
    return json.dumps(held, indent=1).encode() + b"\n"


def _crc32c(splits: Any) -> int:
    return _native.crc32c(json.dumps(splits).encode())


def chosen(splits: Mapping[str, Split], split: str | None, folder: str) -> str:
    """Return the name of the split that is meant. Raises InvalidOption."""
    names = ", ".join(map(repr, splits))
    if split is None and len(splits) == 1:
        return next(iter(splits))
    if split is None:
        raise InvalidOption(f"{folder} holds several splits: give split=, one of {names}")
    if split not in splits:
        raise InvalidOption(f"{folder} contains no split {split!r}; it holds {names or 'none'}")
    return split


class ShardFiles:
    """Shards in one local folder. shards: what dataset.json says of each."""

    def __init__(self, folder: str, shards: Sequence[Shard]) -> None:
        self.folder = folder
        self.shards = tuple(shards)

    def path(self, shard: int) -> str:
        return os.path.join(self.folder, self.shards[shard].name)

    def place(self, shard: int) -> str:
        """Return where a shard lies, for messages."""
        return self.path(shard)

    def check(self) -> None:
        """Raise CorruptShards where a shard is missing, of another length, or no regular file."""
        with os.scandir(self.folder) as entries:
            found = {entry.name: entry for entry in entries}
        for number, shard in enumerate(self.shards):
            entry, why = found.get(shard.name), None
            if entry is None:
                why = "is missing"
            elif not entry.is_file(follow_symlinks=False):
                why = "is a symbolic link, or not a regular file"
            elif (size := entry.stat(follow_symlinks=False).st_size) != shard.bytes:
                why = f"has {size:,} bytes, and dataset.json says {shard.bytes:,}: it is cut off, or another file"
            if why is not None:
                raise CorruptShards(f"{self.path(number)} {why}. Copy it again")

    def read(self, shard: int, member: Any, name: str, *, verify: bool) -> bytes:
        """Return the bytes of a member, a row of index.MEMBER; name: of the member, for messages.

        Raises MissingSample, UnreadableSample, CorruptSample and, of the checksum, ChecksumMismatch.
        """
        path, (offset, length, expected, _) = self.path(shard), member.item()
        try:
            with open(path, "rb", opener=lambda at, flags: os.open(at, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                self._check_extent(os.fstat(file.fileno()).st_size, shard, offset, length, name)
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            kind: Any = MissingSample if error.errno in (errno.ENOENT, errno.ENOTDIR) else UnreadableSample
            why = "it is a symbolic link" if error.errno == errno.ELOOP else os.strerror(error.errno or errno.EIO)
            made: UnreadableSample | MissingSample = kind(
                f"sample {name!r} cannot be read from shard {path}: {why}. Put the shard back, or leave the sample out",
                sample_id=name,
                path=path,
            )
            made.errno = error.errno
            raise made from error
        advice = "Copy the shard again, or pack the dataset again; `penstock verify` lists all damage"
        return verified(data, expected, name, path, f"shard {path}", advice) if verify else data

    def _check_extent(self, size: int, shard: int, offset: int, length: int, name: str) -> None:
        path, expected = self.path(shard), self.shards[shard].bytes
        if size == expected and offset <= size and length <= size - offset:
            return
        why = f"the index places it at bytes {offset:,} to {offset + length:,} of {size:,}: it is of another dataset"
        if size != expected:
            why = f"the shard has {size:,} bytes now, not {expected:,}: it is cut off, or another file"
        message = f"sample {name!r} in shard {path} cannot be read: {why}. Copy the shard again"
        raise CorruptSample(message, sample_id=name, path=path)


def verified(data: bytes, expected: int, name: str, path: str, where: str, advice: str) -> bytes:
    """Return the bytes of a sample. Raises ChecksumMismatch where they do not have the expected CRC-32C.

    path: of the shard; where: the shard in words; advice: what to do about it.
    """
    found = _native.crc32c(data)
    if found == expected:
        return data
    raise ChecksumMismatch(
        f"sample {name!r} in {where} is damaged: its CRC-32C is {found:#010x}, and the index says "
        f"{expected:#010x}. {advice}",
        sample_id=name,
        path=path,
    )

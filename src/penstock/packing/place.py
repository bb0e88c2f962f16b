"""Where the shards of a packing come to lie: the protocol of such places; their files, and whose these are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from penstock.errors import InvalidOption
from penstock.packing import plan as planning
from penstock.packing.plan import Plan
from penstock.storage import description
from penstock.storage.description import Split

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Write = Callable[[BinaryIO], object]
"""Writes a file, which is open for reading too."""


class After(Protocol):
    """Called after each sample with the bytes that were added, and now and then with none; may raise to stop."""

    def __call__(self, added: int, samples: int = 1) -> None:
        """Take note of progress."""


class Place(Protocol):
    """Where one split is packed to. Names are those of files below it; a file is there as a whole, or not at all.

    Files that a packing keeps while it is unfinished lie below `unfinished`. Any thread may call any method, and a copy
    in another process too. All methods raise OSError, StorageError among them, where the place does not do its part.
    """

    @property
    def path(self) -> str:
        """The place, as messages name it."""

    @property
    def split(self) -> str:
        """The name of the split."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Local files that whoever writes here must see once the plan is written."""

    def alone(self) -> AbstractContextManager[None]:
        """Hold the place for one process, where it can be held. Raises InvalidOption where another one holds it."""

    def sizes(self) -> dict[str, int]:
        """Return all files with their bytes; those that are no regular files have -1."""

    def read(self, name: str) -> bytes | None:
        """Return a file, None where there is none."""

    def write(self, name: str, write: Write, attempt: str = "") -> None:
        """Write a file. attempt: a part of its temporary name, in which those who write one file at once differ."""

    def claim(self, name: str, write: Write) -> None:
        """Write the first file of a packing. Raises InvalidOption where another process has just written it."""

    def draft(self, name: str, attempt: str, after: After) -> AbstractContextManager[int]:
        """Return the descriptor of an empty file, open for reading and writing, which gets its name in the end.

        It is dropped where the context ends with an error. after: as ShardWork.write has it.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they are there."""

    def remove_unfinished(self) -> None:
        """Remove the files of the unfinished packing, the plan last: without it nothing says whose the others are."""

    def check(self, split: Split) -> None:
        """Raise CorruptShards where a shard of a split is missing or has another size."""

    def check_space(self, needed: int) -> None:
        """Raise OutOfSpace where there is no space for so many bytes, as far as that is known."""

    def full(self, needed: int, *, about: str = "") -> Exception:
        """Return the error of a full disk; about: said of the number of bytes that are yet to be written."""


def unfinished(split: str, name: str = planning.FILE) -> str:
    """Return the name of a file that an unfinished packing keeps."""
    return f"{planning.FOLDER.format(split)}/{name}"


def rows_name(split: str, shard: int) -> str:
    """Return the name of the file that keeps the rows of a shard until all are written."""
    return unfinished(split, f"{shard:06d}.rows")


def shard_name(split: str, shard: int) -> str:
    """Return the name of a shard."""
    return f"{split}-{shard:06d}.tar"


def names(split: str, plan: Plan) -> Iterator[str]:
    """Yield the files that a packing leaves."""
    yield from (shard_name(split, shard) for shard in range(len(plan.ends)))
    yield f"{split}.index.npy"
    yield f"{split}.ids.npy"
    yield f"{split}.states"


def is_kept(name: str) -> bool:
    """Return whether a file of this name, in the folder of an unfinished packing, is one of Penstock's."""
    return bool(re.fullmatch(r"\d{6,}\.(tar|rows)(\.partial)?|.*\.partial|plan\.json", name))


def check_split(split: str) -> None:
    """Raise InvalidOption for the name of a split that no file can begin with."""
    if not _SPLIT.fullmatch(split):
        raise InvalidOption(f"split must be letters, digits and . _ -, the beginning of file names, not {split!r}")


def splits_of(place: Place) -> dict[str, Split]:
    """Return the splits that are finished. Raises CorruptShards."""
    text = place.read(description.FILE)
    return {} if text is None else description.parse(text, f"{place.path}/{description.FILE}")


def check_out(place: Place) -> dict[str, Split]:
    """Return the splits in the place. Raises InvalidOption where it holds anything else."""
    found, others = set[str](), set[str]()
    for name in place.sizes():
        packing = re.match(r"\.(.+)\.packing/", name)
        if packing is None:
            found.add(name)
        else:
            others.add(packing[1])
    splits = splits_of(place) if description.FILE in found else {}
    known = {description.FILE}
    for split in splits.values():
        known |= set(split.files)
    for other in others:
        plan = planning.parse(place.read(unfinished(other)))
        if plan is not None:
            known |= set(names(other, plan))
    if found - known:
        raise InvalidOption(
            f"{place.path} holds {min(found - known)!r}, which Penstock did not write: give an empty folder, or a new "
            "name. Nothing was changed"
        )
    return splits

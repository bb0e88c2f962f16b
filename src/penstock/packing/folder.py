"""The folder that a packing writes to: whose its files are, what they are called, and who packs into it now."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import InvalidOption
from penstock.packing import plan as planning
from penstock.packing.plan import Plan
from penstock.storage import description
from penstock.storage.description import Split

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_split(split: str) -> None:
    """Raise InvalidOption for the name of a split that no file can begin with."""
    if not _SPLIT.fullmatch(split):
        raise InvalidOption(f"split must be letters, digits and . _ -, the beginning of file names, not {split!r}")


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process. Raises InvalidOption where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidOption(
                f"another process packs into {folder} now: wait for it, or give another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def check_out(out: str) -> dict[str, Split]:
    """Return the splits in the folder. Raises InvalidOption where it holds anything else."""
    found = set(os.listdir(out))
    splits = description.load(out) if description.FILE in found else {}
    known = {description.FILE}
    for split in splits.values():
        known |= set(split.files)
    for name in found:
        if re.fullmatch(r"\..+\.packing", name) and os.path.isdir(os.path.join(out, name)):
            known.add(name)
            other = planning.load(Path(out, name, planning.FILE))
            if other is not None:
                known |= set(names(name[1 : -len(".packing")], other))
    if found - known:
        raise InvalidOption(
            f"{out} holds {min(found - known)!r}, which Penstock did not write: give an empty folder, or a new name. "
            "Nothing was changed"
        )
    return splits


def shard_name(split: str, shard: int) -> str:
    """Return the name of a shard."""
    return f"{split}-{shard:06d}.tar"


def names(split: str, plan: Plan) -> Iterator[str]:
    """Yield the files that a packing writes to its folder."""
    yield from (shard_name(split, shard) for shard in range(len(plan.ends)))
    yield f"{split}.index.npy"
    yield f"{split}.ids.npy"
    yield f"{split}.states"

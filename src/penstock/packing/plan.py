"""The plan of a packing: which samples go into which shard, in files of which names; stored before the first shard.

A shard is a function of the samples in it and the options. The plan holds a digest of the samples (IDs, labels, sizes
and times of files), so that a source that changes while it is packed is noticed, whatever stops the packing in between.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DatasetChanged, InvalidOption
from penstock.packing.contents import Contents
from penstock.storage.tar import member_bytes

#: What an unfinished packing keeps its files in, below OUT; {} is the split.
FOLDER = ".{}.packing"
FILE = "plan.json"
VERSION = 3  # of the plan, and of the rows that are kept of finished shards

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

_DIGEST = 16


@dataclass(frozen=True)
class Plan:
    """Which samples go into which shard."""

    options: Mapping[str, Any]
    ends: tuple[int, ...]
    """The number of the sample after the last one, of each shard."""
    digest: str
    """Of all samples: IDs, labels, sizes and times."""
    source: str
    """A digest of the IDs, labels and sizes of all samples, without times."""
    total: int | None
    """Bytes of all shards together; None where only packing tells."""
    labelled: bool
    """Whether the members that hold labels for WebDataset are written."""
    version: int = VERSION

    @property
    def begins(self) -> tuple[int, ...]:
        """The number of the first sample of each shard."""
        return (0, *self.ends[:-1])

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def parse(text: bytes | None) -> Plan | None:
    """Return a plan that was stored, None where there is none or it is damaged: nothing was written by it then."""
    if text is None:
        return None
    try:
        held = json.loads(text)
        held["ends"] = tuple(held["ends"])
        return Plan(**held)
    except (ValueError, TypeError, KeyError):
        return None


def make(contents: Contents, options: Mapping[str, Any], shard_size: int, share: float, stamps: NDArray[Any]) -> Plan:
    """Return the plan of a packing.

    Args:
        contents: the samples.
        options: what a shard depends on, besides the samples.
        shard_size: the most bytes of a shard, unless a single sample has more.
        share: how many bytes are packed for each byte of a file; 1: all of them as they are.
        stamps: int64, shape (samples, 2): size and time of each sample's file.
    """
    keys = list(map(webdataset_key, contents.ids)) if contents.first.kind != "files" else []
    labelled = contents.labels is not None and None not in keys and len(set(keys)) == len(keys)
    suffixes = [suffix for suffix, _ in contents.read(0)]
    others = 1024 * labelled + 512 * (len(suffixes) - 1)
    names = (name.decode("utf-8", "surrogateescape") + suffixes[0] for name in contents.ids)
    found = zip(names, stamps[:, 0].tolist(), strict=True)
    sizes = [others + member_bytes(name, int(size * share)) for name, size in found]  # as far as known before
    ends, held = [], 0
    for number, size in enumerate(sizes):
        if held and held + size > shard_size:
            ends.append(number)
            held = 0
        held += size
    ends.append(len(sizes))
    source = digest_of(contents, stamps[:, :1])
    exact = share == 1 and contents.first.kind in ("images", "tensors") and bool(stamps[:, 1].all())
    total = sum(sizes) + 1024 * len(ends) if exact else None
    return Plan(options, tuple(ends), digest_of(contents, stamps), source, total, labelled)


def digest_of(contents: Contents, stamps: NDArray[Any]) -> str:
    """Return the digest of the samples. stamps: as `make` takes them."""
    found = hashlib.blake2b(digest_size=_DIGEST)
    found.update(b"\0".join(contents.ids))
    found.update(np.ascontiguousarray(stamps).tobytes())
    if contents.labels is not None:
        found.update(contents.labels.tobytes())
    return found.hexdigest()


def webdataset_key(name: bytes) -> bytes | None:
    """Return what WebDataset takes for the key of a member: the name up to the first dot of its last part.

    As webdataset.tariterators.base_plus_ext. None where there is nothing before that dot.
    """
    folder, slash, last = name.rpartition(b"/")
    stem = last.partition(b".")[0]
    return folder + slash + stem if stem else None


def check_same(stored: Plan, fresh: Plan, out: str) -> None:
    """Raise InvalidOption or DatasetChanged where a stored plan is not the one that would be made now."""
    if dict(stored.options) != dict(fresh.options) or stored.version != fresh.version:
        names = {**stored.options, **fresh.options}
        wrong = [name for name in names if stored.options.get(name) != fresh.options.get(name)] or ["version"]
        raise InvalidOption(
            f"{out} holds an unfinished packing with other options ({', '.join(wrong)}): give the same ones to "
            "continue, or restart (restart=True, --restart) to remove its files and begin again"
        )
    if stored.ends != fresh.ends or stored.digest != fresh.digest:
        raise DatasetChanged(
            f"the source has changed since this packing to {out} began (names, labels, sizes or times of files): "
            "restore it, or restart (restart=True, --restart) to remove the unfinished files and begin again"
        )


# --- names ------------------------------------------------------------------------------------------------------------


def unfinished(split: str, name: str = FILE) -> str:
    """Return the name of a file that an unfinished packing keeps."""
    return f"{FOLDER.format(split)}/{name}"


def rows_name(split: str, shard: int) -> str:
    """Return the name of the file that keeps the rows of a shard until all are written."""
    return unfinished(split, f"{shard:06d}.rows")


def shard_name(split: str, shard: int) -> str:
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

"""`penstock index`: tar files in WebDataset's naming get an index and a dataset.json, once; they are not changed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import penstock._native as _native
from penstock.errors import CorruptShards, InvalidOption
from penstock.packing import shard_writer
from penstock.packing.encoding import image_size
from penstock.packing.pack import SPLIT, Packed
from penstock.packing.places import FolderPlace, alone, remove_unfinished, splits_of
from penstock.packing.plan import check_split
from penstock.packing.shard_writer import LABEL, ShardRecord, ShardRows, class_number
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.storage import description
from penstock.storage.description import Shard
from penstock.storage.index import crc32c_of, open_regular
from penstock.storage.tar import TarMember, members
from penstock.system.limits import usable_cpus
from penstock.system.urls import local_folder

# WebDataset's base_plus_ext: the key ends at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/)?[^/.]+)(\.[^/]*)")
_CHUNK = 1 << 24
_HEAD = 1 << 16  # bytes of an image that are looked at for its size


def index(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, split: str = SPLIT, workers: int | None = None
) -> Packed:
    """Write an index and a dataset.json beside tar files in WebDataset's naming, for penstock.Shards.

    Members that follow each other and share the part of their names before the first dot of the last part are one
    sample. Samples of one image each, or one tensor each, and of a class number (.cls) or none, are pairs of image or
    tensor and label, as an image folder gives them; all others are dictionaries by suffix.

    Args:
        path: a folder, of which all files *.tar are taken in order of their names; or such files of one folder.
        split: the name of the split.
        workers: threads; None: one a core.

    Raises:
        InvalidOption: no tar file; files of several folders; a split of that name is there.
        CorruptShards: a file is compressed, cut off or no tar archive; two samples have the same key.
        OutsideRoot: a member is a link or a device, or leads out of the folder that it is unpacked to.
    """
    check_split(split)
    folder, names = _tars(path)
    with alone(folder):
        if split in splits_of(FolderPlace(folder, split)):
            raise InvalidOption(
                f"{folder} holds the split {split!r} already: give another split=, or remove it from "
                f"{description.FILE} first"
            )
        with ThreadPoolExecutor(workers or usable_cpus(), "penstock-index") as pool:
            found = list(pool.map(lambda one: _indexed(folder, *one), enumerate(names)))
        return _write(folder, split, found)


class _Indexed(NamedTuple):
    """One tar file: its record, with offsets of IDs that begin at 0, and its keys."""

    record: ShardRecord
    keys: list[bytes]


def _tars(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, list[str]]:
    """Return the folder and the names of the tar files in it."""
    if isinstance(path, str | os.PathLike):
        given = os.path.abspath(local_folder(path, "path"))
        if os.path.isdir(given):
            names = sorted(name for name in os.listdir(given) if name.endswith(".tar") and not name.startswith("."))
            if not names:
                packed = any(re.search(r"\.(tar\.\w+|tgz)$", name) for name in os.listdir(given))
                hint = "; a sample of a compressed tar file cannot be read by itself" if packed else ""
                raise InvalidOption(f"{given} contains no .tar file{hint}")
            return given, names
        paths = [given]
    else:
        paths = [os.path.abspath(local_folder(one, "path")) for one in path]
    folders = {os.path.dirname(one) for one in paths}
    if len(folders) != 1:
        raise InvalidOption(f"all tar files must lie in one folder; these lie in {len(folders)}")
    for one in paths:
        if not os.path.exists(one):
            raise InvalidOption(f"{one} does not exist: give a folder of .tar files, or the files themselves")
    return folders.pop(), [os.path.basename(one) for one in paths]


def _indexed(folder: str, shard: int, name: str) -> _Indexed:
    path = os.path.join(folder, name)
    rows, keys, at = ShardRows("<i8"), [], 0
    with open_regular(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        for key, found in _samples(path):
            files, label, extent = {}, None, (0, 0)
            for suffix, member in found.items():
                data = os.pread(descriptor, min(member.length, _CHUNK), member.offset)
                crc = crc32c_of(file, member.offset + len(data), member.length - len(data), _native.crc32c(data))
                files[suffix] = (member.offset, member.length, crc)
                if suffix == LABEL:
                    label = data
                elif suffix.lower() in IMG_EXTENSIONS and extent == (0, 0):
                    extent = image_size(data[:_HEAD]) if data.startswith(b"\xff\xd8") else image_size(data)
            text = os.fsencode(key)
            rows.add((at, len(text), shard, *extent), files, class_number(label))
            keys.append(text)
            at += len(text) + 1
        crc = crc32c_of(file, 0, size)
    return _Indexed(rows.record(Shard(name, size, crc, len(keys))), keys)


def _samples(path: str) -> list[tuple[str, dict[str, TarMember]]]:
    """Return the samples of a tar file: the key and the members by suffix. Raises CorruptShards, OutsideRoot."""
    samples: list[tuple[str, dict[str, TarMember]]] = []
    for member in members(path):
        found = _NAME.fullmatch(member.name)
        if found is None:  # WebDataset passes over names without a suffix
            continue
        key, suffix = found[1], found[2]
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        if suffix in samples[-1][1]:
            raise CorruptShards(f"{path} contains {member.name!r} twice in one sample: make the archive again")
        samples[-1][1][suffix] = member
    return samples


def _write(folder: str, split: str, found: list[_Indexed]) -> Packed:
    keys = [key for one in found for key in one.keys]
    if not keys:
        raise InvalidOption(f"the tar files of {folder} contain no file with a suffix, and so no sample")
    if len(set(keys)) != len(keys):
        twice = next(key for key, after in zip(sorted(keys), sorted(keys)[1:], strict=False) if key == after)
        raise CorruptShards(
            f"key {os.fsdecode(twice)!r} belongs to two samples of {folder}: each sample needs its own key, and its "
            "files must follow each other"
        )
    at = 0
    for one in found:
        one.record.rows["id_offset"] += at
        at += sum(map(len, one.keys)) + len(one.keys)
    records = [one.record for one in found]
    kind, labelled, table = shard_writer.classified(records)
    place = FolderPlace(folder, split)
    made = shard_writer.write_index(
        place, records, kind, table, keys, label="int" if labelled else None, texts=None, label_suffix=None,
        pair=labelled, classes=None, source="", options={"indexed": True},
    )  # fmt: skip
    shard_writer.write_description(place, made)
    remove_unfinished(place)
    return Packed.of(place, made, 0)

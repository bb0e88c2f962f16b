"""``penstock quarantine list|retry|export``: the manifest of bad samples that on_error=Replace(manifest=) writes."""

from __future__ import annotations

import argparse
import csv
import errno
import functools
import io
import os
import stat
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from PIL import UnidentifiedImageError

from penstock.cli.terminal import Bar, add_actions, add_verb, raw, say, shown, table, write, write_lines
from penstock.errors import InvalidOption, PenstockError
from penstock.state.manifest import BadSample, Manifest, describe
from penstock.system.deferred import deferred
from penstock.system.output_files import write_whole
from penstock.system.words import counted

if TYPE_CHECKING:
    from penstock.sources import audio_folder, image_folder, reading, shards
    from penstock.storage import remote_shards
else:
    (remote_shards,) = deferred("penstock.storage", "remote_shards")
    audio_folder, image_folder, reading, shards = deferred(
        "penstock.sources", "audio_folder", "image_folder", "reading", "shards"
    )

_TENSORS = (".pt", ".pth", ".npy")
_TENSOR_MAGIC = (b"PK\x03\x04", b"\x80", b"\x93NUMPY")  # torch.save, its old format (a pickle), numpy.save


def add_parser(verbs: Any) -> None:
    description = "Works on a manifest of bad samples, the file that on_error=Replace(manifest=FILE) keeps."
    actions = add_actions(verbs, "quarantine", description)
    listing = add_verb(actions, "list", _list, "print the bad samples as a table")
    retry = add_verb(
        actions,
        "retry",
        _retry,
        "read each sample's file again and take the good ones out",
        " Images are read by Pillow, tensors by torch.load(weights_only=True) or numpy, sounds as AudioFolder does; "
        "samples of shards are looked up in the index, and their checksums compared. The next run tries the good ones "
        "again, and checks their shapes and labels too. Exit code 1: some are still bad.",
    )
    export = add_verb(actions, "export", _export, "write the bad samples in another format")
    for parser in (listing, retry, export):
        parser.add_argument("manifest", metavar="MANIFEST", help="the file of bad samples")
    listing.add_argument("--json", action="store_true", help="print a JSON array instead")
    retry.add_argument("--dry-run", action="store_true", help="change nothing")
    export.add_argument("--format", choices=("csv", "json", "ids", "paths"), default="csv", help="default: csv")
    export.add_argument("--null", action="store_true", help="end each of ids and paths by NUL, not by a newline")
    export.add_argument("--output", metavar="FILE", default="-", help="the file to write (default: -, which is stdout)")
    export.add_argument("--force", action="store_true", help="overwrite FILE")


def _read(path: str) -> list[BadSample]:
    """Return the entries of a manifest. Raises InvalidOption, OSError."""
    os.stat(path)  # to the library a manifest that does not exist is an empty one
    manifest = Manifest(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = list(manifest.read().values())
    if caught and not entries:
        raise InvalidOption(f"{path} holds no bad sample that can be read: {caught[0].message}")
    for warning in caught:
        warnings.warn(warning.message, warning.category, stacklevel=1)
    return entries


def _list(arguments: argparse.Namespace) -> int:
    entries = _read(arguments.manifest)
    if arguments.json:
        write(_json(entries))
    elif not entries:
        write_lines([f"no bad samples in {shown(arguments.manifest)}"])
    else:
        write_lines([*_table(entries), "", f"{counted(len(entries), 'bad sample')} in {shown(arguments.manifest)}"])
    return 0


def _table(entries: list[BadSample]) -> list[str]:
    """Return the lines of a table; the path is left out where it is the ID."""
    rows = [["ID", "SIZE", "TIME", "PATH", "ERROR"]]
    for bad in entries:
        size = "-" if bad.size is None else f"{bad.size:,}"
        path = "-" if bad.path is None else "" if bad.path == bad.id else bad.path
        rows.append(list(map(shown, (bad.id, size, bad.time, path, bad.error))))
    return table(rows, right=(1,))


def _retry(arguments: argparse.Namespace) -> int:
    entries = _read(arguments.manifest)
    manifest = Manifest(arguments.manifest)
    if not arguments.dry_run:
        manifest.check()
    found: dict[str, list[tuple[BadSample, str]]] = {"good again": [], "still bad": [], "left": []}
    samples_of = functools.lru_cache(_samples_of)
    with Bar("reading") as bar:
        for number, bad in enumerate(entries, 1):
            word, why = _tried(bad, samples_of)
            found[word].append((bad, why))
            bar.update(number, len(entries))
    good, still, left = found.values()
    taken = "not taken out: a dry run"
    if not arguments.dry_run:
        taken = f"{manifest.remove(bad.id for bad, _ in good):,} taken out"
    lines = [f"{word:<10}  {shown(bad.id)}: {shown(why)}" for word, each in found.items() for bad, why in each]
    lines.append(
        f"{len(good):,} good again ({taken}), {len(still):,} still bad, {len(left):,} left without a try, "
        f"in {shown(arguments.manifest)}"
    )
    write_lines(lines)
    return 1 if still else 0


def _tried(bad: BadSample, samples_of: Callable[[str], Mapping[Any, Any]]) -> tuple[str, str]:
    """Read a sample by the reference; return how it is now, and why. samples_of: those of a folder of shards."""
    id, path = bad.id, bad.path
    if path is None:
        return "left", "its file is not known"
    if bad.error.startswith("OutsideRoot:"):
        return "left", "its file lay outside of its root folder, which only a run knows"
    try:
        if "://" in path or path.endswith(".tar"):
            try:
                dataset, position = samples_of(path.rpartition("/")[0])[path, id]
            except PenstockError as error:
                return "left", str(error)
            except KeyError:
                return "left", f"no index beside {path} has this ID in that shard"
            dataset.read(position)
        elif not stat.S_ISREG(os.stat(path).st_mode):  # a named pipe or a device would be read for ever
            said = f"sample {id!r} ({path}) is not a regular file; replace it, or leave it out"
            return "still bad", f"UnreadableSample: {said}"
        elif not _read_file(id, path):
            return "left", "its file is not an image, a tensor or a sound by its name or its bytes"
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            error = reading.system_error(error.errno or errno.EIO, id, path)
        return "still bad", describe(error)
    return "good again", f"was {bad.error}"


def _read_file(id: str, path: str) -> bool:
    """Read a file as what it is by its name, else by its first bytes; False: neither says it."""
    suffix = os.path.splitext(path)[1].lower()
    image = suffix in image_folder.IMG_EXTENSIONS
    with warnings.catch_warnings(), open(path, "rb") as file:
        warnings.simplefilter("ignore")  # Pillow's and torch's, of files that they read
        if suffix in audio_folder.AUDIO_EXTENSIONS:
            audio_folder.AudioFolder([path]).read(0)
        elif reading.holds_mappings(suffix):
            reading.read_mapping(file, id, path)
        elif suffix in _TENSORS or (not image and file.peek(6).startswith(_TENSOR_MAGIC)):
            reading.read_tensor(file, id, path)
        else:
            try:
                reading.read_image(file, path)
            except UnidentifiedImageError:
                if image:
                    raise
                return False
    return True


def _samples_of(folder: str) -> dict[tuple[str, str], tuple[shards.Shards, int]]:
    """Return the dataset and the position of each sample of a folder of shards, or its URL, by its shard and its ID."""
    found = {}
    for split in remote_shards.splits_of(folder):
        dataset = shards.Shards(folder, split)
        places, ids = dataset.index.column("shard").tolist(), dataset.index.ids().split(b"\0")
        for position, (shard, id) in enumerate(zip(places, ids, strict=False)):
            found[dataset.files.place(shard), os.fsdecode(id)] = dataset, position
    return found


def _export(arguments: argparse.Namespace) -> int:
    if arguments.null and arguments.format not in ("ids", "paths"):
        raise InvalidOption(f"--null ends each of ids or paths; --format {arguments.format} has none")
    entries = _read(arguments.manifest)
    if arguments.format == "csv":
        data = _csv(entries)
    elif arguments.format == "json":
        data = _json(entries)
    else:
        data = _names(entries, arguments.format, arguments.null)
    path = arguments.output
    if path == "-":
        write(data)
        return 0
    if os.path.exists(path) and os.path.samefile(path, arguments.manifest):
        raise InvalidOption(f"{path} is the manifest itself; name another file")
    if os.path.isfile(path) and not arguments.force:
        raise InvalidOption(f"{path} exists; give --force to overwrite it")
    write_whole(path, data)  # a pipe or a device is written to
    return 0


def _json(entries: list[BadSample]) -> bytes:
    return b"[" + b",".join(b"\n " + bad.line().rstrip() for bad in entries) + b"\n]\n"


def _csv(entries: list[BadSample]) -> bytes:
    text = io.StringIO(newline="")
    rows = csv.DictWriter(text, [column.name for column in fields(BadSample)], lineterminator="\n")
    rows.writeheader()
    rows.writerows(map(asdict, entries))
    return raw(text.getvalue())


def _names(entries: list[BadSample], what: str, null: bool) -> bytes:
    named = [bad.id if what == "ids" else bad.path for bad in entries]
    names = [name for name in named if name is not None]
    if without := len(named) - len(names):
        say(f"penstock: note: {without:,} of {counted(len(named), 'bad sample')} have no path and are left out")
    end = "\0" if null else "\n"
    for name in names:
        if end in name:
            remedy = "--format json" if null else "--null"
            raise InvalidOption(f"{name!r} holds the character that ends each name; use {remedy}")
    return raw("".join(name + end for name in names))

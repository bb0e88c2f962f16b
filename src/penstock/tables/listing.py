"""Which files a table is made of: paths, globs, folders and URLs, looked up and opened."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from penstock.errors import InvalidOption
from penstock.storage.objects import ObjectStore, run_alone
from penstock.system.urls import is_url
from penstock.tables.files import TAIL, Part, RemoteFile, TableFile, version_of

SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
#: Files that are opened at once, for their footers.
_AT_ONCE = 16


def files_of(data: object) -> list[TableFile]:
    """Return the files that paths, globs, folders, URLs or a list of them name, with their footers.

    Raises InvalidOption, FileNotFoundError, CorruptSample, StorageError.
    """
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, Iterable) or not (paths := list(given)):
        raise InvalidOption(f"data={data!r}: it is a path, a glob, a folder, a URL, or a list of at least one of them")
    named = [file for path in paths for file in (_remote(path) if is_url(path) else _local(path))]
    with ThreadPoolExecutor(min(_AT_ONCE, len(named)), "penstock-footers") as pool:
        return list(pool.map(_opened, named))


def _local(path: Any) -> Iterator[TableFile]:
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"data= holds {path!r}, which is not a path")
    whole = os.path.abspath(os.path.expanduser(os.fsdecode(path)))
    if os.path.isdir(whole):
        found = sorted(str(one) for one in Path(whole).rglob("*") if _is_data(str(one.relative_to(whole))))
    elif os.path.lexists(whole) or not glob.has_magic(whole):
        found = [whole]
    else:
        found = sorted(one for one in glob.glob(whole, recursive=True) if os.path.isfile(one))
    if not found:
        raise InvalidOption(_none_found(os.fsdecode(path), is_folder=os.path.isdir(whole)))
    for one in found:
        try:
            status = os.stat(one)
        except OSError as error:
            what = error.strerror or "cannot be opened"
            near = difflib.get_close_matches(os.path.basename(one), _names_beside(one), 1)
            raise type(error)(error.errno, f"{what}{f'; do you mean {near[0]!r}?' if near else ''}", one) from error
        yield TableFile(one, status.st_size, version_of(status))


def _names_beside(path: str) -> list[str]:
    try:
        return os.listdir(os.path.dirname(path))
    except OSError:
        return []


def _remote(url: str) -> Iterator[TableFile]:
    scheme, _, rest = url.partition("://")
    magic = re.search(r"[*?\[]", rest)
    folder, name = url.rstrip("/"), ""
    if magic is not None or rest.lower().endswith(SUFFIXES):
        folder = f"{scheme}://{(rest[: magic.start()] if magic else rest).rpartition('/')[0]}"
        name = url[len(folder) + 1 :]
    store = ObjectStore(folder)
    if name and magic is None:
        found = {name: store.entry(name)}
    else:
        pattern = re.compile(_translated(name)) if name else None
        found = {
            key: entry
            for key, entry in sorted(store.entries().items())
            if (_is_data(key) if pattern is None else pattern.fullmatch(key))
        }
    if not found:
        raise InvalidOption(_none_found(url, is_folder=not name))
    for key, (size, version) in found.items():
        yield TableFile(store.url_of(key), size, version, store, key)


def _is_data(name: str) -> bool:
    """Return whether a file in a folder is one of its data, as pyarrow has it: no part of its name is hidden."""
    return name.lower().endswith(SUFFIXES) and not any(part.startswith((".", "_")) for part in name.split("/"))


def _none_found(given: str, *, is_folder: bool) -> str:
    if is_folder:
        return f"{given} contains no files that end in {', '.join(SUFFIXES)}: give another folder, or the files' names"
    return f"no file matches {given!r}: correct the pattern"


def _translated(pattern: str) -> str:
    """Return a glob as a regular expression: ** for any folders, * and ? within a name."""
    out = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^]]+\]|.", pattern, re.DOTALL):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token)
        out += known or (token.replace("[!", "[^") if token.startswith("[") and len(token) > 2 else re.escape(token))
    return out


def _opened(file: TableFile) -> TableFile:
    """Return a file with its kind and footer. Raises CorruptSample, StorageError."""
    with file.errors_named():
        if file.store is None:
            with open(file.place, "rb") as opened:
                head, tail = opened.read(8), b""
        else:
            begin = max(0, file.size - TAIL)
            tail = run_alone(file.store.read_part(file.key, begin, file.size, file.size, file.version))
            head = tail[:8] if begin == 0 else RemoteFile(file).read(8)
        kind = _kind_of(head)
        if kind is None:
            raise file.corrupt(f"it begins with {head!r}" if file.size else "it is empty")
        known = replace(file, kind=kind)
        if kind == "parquet" and file.store is None:
            return replace(known, footer=pq.read_metadata(file.place))
        if kind == "parquet":
            held = RemoteFile(file)
            held.parts[begin] = tail
            return replace(known, footer=pq.read_metadata(pa.PythonFile(held)))
        if file.store is not None:
            if kind == "stream":
                raise InvalidOption(
                    f"{file.place} is an Arrow IPC stream, whose rows are known only once all of it is read: write it "
                    "as Parquet or in Arrow's file format, or copy it to this machine"
                )
            return known
        return replace(known, mapped=_lies_plain(known))


def _kind_of(head: bytes) -> str | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "file"
    return "stream" if head.startswith(b"\xff\xff\xff\xff") else None


def _lies_plain(file: TableFile) -> bool:
    """Return whether the first record batch of a local IPC file is not compressed: its buffers are in the map."""
    with pa.memory_map(file.place) as source:
        whole = source.read_buffer()
        source.seek(0)
        for batch in file.batches(Part(0, 0, 0, 0, 0, 1), (), source):
            buffers = [one for column in batch.columns for one in column.buffers() if one is not None and one.size]
            return all(whole.address <= one.address < whole.address + whole.size for one in buffers)
    return True

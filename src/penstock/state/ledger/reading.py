"""The ledger: a file that records which samples each step of a run was given, as a hash chain, 24 bytes a step.

The file is a line of text, ``penstock-ledger VERSION CRC32 JSON``, with the facts of the run, and then records of 24
bytes, little-endian: epoch, step, count of samples (uint32 each), chain (8 bytes), CRC-32 (uint32). A record is

- a step: chain = BLAKE2b-64(chain before || epoch || step || IDs), so that equal chains at one step say that all IDs
  up to that step were equal (but for one chance in 2**64; who forges on purpose is not kept out);
- a mark (its count is 2**32 - 1): the run was resumed, and the next step is (epoch, step) or later. What the file holds
  of that position and later is abandoned: it stays, and belongs no more to the run's surviving line. The chain is
  that of the last step before the mark, or of a checkpoint, where the ledger of what was before is another file.

Each CRC goes on from the one before it, the first from that of the header line: flipped bytes, and records that were
lost, doubled or moved, are noticed. The IDs are not in the file: only who has them can tell whether a chain is theirs.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidOption

VERSION = 1

_MAGIC = b"penstock-ledger "
_MAX_HEADER = 1 << 16

#: As the count of a record.
MARK = 0xFFFFFFFF

#: The chain before the first step.
START = bytes(8)

#: A record but for its checksum.
BODY = struct.Struct("<III8s")

_CHECKED = struct.Struct(f"<{BODY.size}sI")  # a record's bytes, and their checksum
_RECORD = np.dtype([("epoch", "<u4"), ("step", "<u4"), ("samples", "<u4"), ("chain", "<u8"), ("check", "<u4")])
_BLOCK = 1 << 16  # records that are made Python objects together

Records = NDArray[np.void]


class Record(NamedTuple):
    """What a ledger holds of one step."""

    epoch: int
    step: int
    samples: int
    """The number of samples."""
    chain: bytes
    """8 bytes; a function of the IDs of this step and all before it."""


@dataclass(frozen=True, eq=False)
class LedgerFile:
    """A ledger that was read. Iterating gives the surviving steps, in the order of (epoch, step)."""

    path: str
    """As it was given."""
    run: Mapping[str, Any]
    """The facts of the header."""
    steps: Records
    """The surviving steps: an array with the fields epoch, step, samples, chain (a little-endian uint64), check."""
    abandoned: Records
    """Steps of branches that a resumption left, in the order of the file; fields as those of steps."""
    marks: int
    """How often the run went back, or went on from a checkpoint."""
    base: tuple[int, bytes]
    """Position (epoch << 32 | step) and chain that the first surviving step goes on from; (0, START) without a mark."""
    end: End
    """Where and how the next record would be written."""
    torn: int
    """Bytes behind the last whole record: of one that was not finished."""

    def __iter__(self) -> Iterator[Record]:
        return records(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def continued(self) -> bool:
        """Whether its chain covers steps that are in the ledger of an earlier part of the run."""
        return self.base[1] != START

    @property
    def last(self) -> Record | None:
        """The last surviving step."""
        return next(records(self.steps[-1:]), None)


class End(NamedTuple):
    """The end of a ledger, all that appending needs. Replaced as a whole, so that no signal meets half of it."""

    size: int  # bytes of the file
    check: int  # CRC-32 of the last record, or of the header
    chain: bytes
    last: int  # what comes next must be of a later position


def records(steps: Records) -> Iterator[Record]:
    """Yield the steps of one of LedgerFile's arrays."""
    for begin in range(0, len(steps), _BLOCK):
        for epoch, step, samples, chain, _ in steps[begin : begin + _BLOCK].tolist():
            yield Record(epoch, step, samples, chain.to_bytes(8, "little"))


def read(path: str | os.PathLike[str]) -> LedgerFile:
    """Read a ledger and check its header, every record's checksum, and that steps go on. It may be in use.

    Raises InvalidOption: no ledger, of another version, or damaged. OSError.
    """
    place = os.fspath(path)
    if not stat.S_ISREG(os.stat(place).st_mode):  # a named pipe would be waited for
        raise InvalidOption(f"{place!r} is no regular file, and so no ledger")
    with open(place, "rb") as file:
        return parse(place, file.read())


def header_line(run: Mapping[str, Any]) -> bytes:
    """Return the first line of the ledger of a run. Raises InvalidOption for facts that are no JSON."""
    try:
        facts = json.dumps(dict(run), sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"run={run!r} cannot be kept in a ledger: {error}; give numbers and strings") from None
    line = _MAGIC + b"%d %08x " % (VERSION, zlib.crc32(facts)) + facts + b"\n"
    if len(line) > _MAX_HEADER:
        raise InvalidOption(f"run= is {len(line):,} bytes as JSON; a ledger's header holds {_MAX_HEADER:,}")
    return line


def parse_header(path: str, data: bytes) -> tuple[dict[str, Any], int]:
    """Return the facts of the run and the length of the header line."""
    if not data.startswith(_MAGIC) and (not data or not _MAGIC.startswith(data)):
        what = "it is empty" if not data else f"it begins with {data[:16]!r}"
        raise InvalidOption(f"{path!r} is no ledger: {what}")
    length = data.find(b"\n", 0, _MAX_HEADER) + 1
    words = data[:length].split(b" ", 3)
    if not length and len(data) < _MAX_HEADER:
        raise InvalidOption(f"{path!r}: its header has no end, so it holds no step that can be read; delete it")
    if len(words) == 4 and words[1].isdigit() and int(words[1]) != VERSION:
        raise InvalidOption(
            f"{path!r} is a ledger of format {int(words[1])}, and this Penstock reads format {VERSION}; "
            "read it with the version that wrote it"
        )
    try:
        _, _, check, facts = words
        if check != b"%08x" % zlib.crc32(facts[:-1]):
            raise ValueError
        run = json.loads(facts)
    except ValueError:
        raise InvalidOption(f"{path!r}: the header of this ledger is damaged: its checksum does not fit") from None
    return run, length


def parse(path: str, data: bytes) -> LedgerFile:
    """Read a ledger from memory; path is for messages. Raises InvalidOption."""
    run, length = parse_header(path, data)
    whole = (len(data) - length) // _RECORD.itemsize
    seed = zlib.crc32(data[:length])
    sound = _sound(data[length : length + whole * _RECORD.itemsize], seed)
    size = length + sound * _RECORD.itemsize
    if sound < whole and not _is_torn(data[size:]):
        raise InvalidOption(
            f"{path!r} is damaged: record {sound + 1:,} of {whole:,} does not fit its checksum; the {sound:,} before "
            f"it are sound, and end at byte {size}: cut the file there, or name another"
        )
    table = np.frombuffer(data, _RECORD, sound, length)
    positions, is_mark = positions_of(table), table["samples"] == MARK
    goes_on = is_mark[1:] | (positions[1:] > positions[:-1]) | (is_mark[:-1] & (positions[1:] == positions[:-1]))
    if not goes_on.all():
        wrong = int(goes_on.argmin()) + 1
        raise InvalidOption(
            f"{path!r} is damaged: record {wrong + 1:,} is of {where(positions[wrong])}, after "
            f"{where(positions[wrong - 1])}"
        )
    surviving, base = _surviving(table, positions, is_mark)
    end = End(size, seed, START, -1)
    if sound:
        tail = table[-1]
        end = End(size, int(tail["check"]), chain_of(tail), int(positions[-1]) - int(is_mark[-1]))
    return LedgerFile(
        path,
        MappingProxyType(run),
        table[surviving],
        table[~surviving & ~is_mark],
        int(is_mark.sum()),
        base,
        end,
        len(data) - size,
    )


def _sound(data: bytes, check: int) -> int:
    """Return how many records, from the first, fit their checksums; check: what the first CRC goes on from."""
    sound = 0
    for body, found in _CHECKED.iter_unpack(data):
        check = zlib.crc32(body, check)
        if check != found:
            break
        sound += 1
    return sound


def _is_torn(rest: bytes) -> bool:
    """Return whether a loss of power left what follows the last sound record: zeros, or half a record and zeros."""
    written = len(rest.rstrip(b"\0"))
    return written == 0 or (written <= _RECORD.itemsize and len(rest) >= 2 * _RECORD.itemsize)


def _surviving(
    table: Records, positions: NDArray[np.uint64], is_mark: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], tuple[int, bytes]]:
    """Return which records are steps of the surviving line, and position and chain of its base."""
    kept: list[tuple[int, int]] = []  # ranges of records, in the order of their positions
    base, begin = (0, START), 0
    for end in [*np.flatnonzero(is_mark).tolist(), len(table)]:
        if end > begin:
            kept.append((begin, end))
        if end == len(table):
            break
        back_to = positions[end]
        while kept and positions[kept[-1][0]] >= back_to:
            kept.pop()
        if kept:
            first, last = kept[-1]
            kept[-1] = first, first + int(np.searchsorted(positions[first:last], back_to))
        else:
            base = int(back_to), chain_of(table[end])
        begin = end + 1
    mask = np.zeros(len(table), bool)
    for first, last in kept:
        mask[first:last] = True
    return mask, base


def positions_of(table: Records) -> NDArray[np.uint64]:
    """Return epoch << 32 | step of each record."""
    epochs: NDArray[np.uint64] = table["epoch"].astype(np.uint64)
    epochs <<= np.uint64(32)
    epochs |= table["step"]
    return epochs


def where(position: int | np.uint64) -> str:
    """Return a position in words."""
    epoch, step = divmod(int(position), 1 << 32)
    return f"the beginning of epoch {epoch + 1}" if step == 0xFFFFFFFF else f"epoch {epoch} step {step}"


def chain_of(record: Any) -> bytes:
    """Return the chain of an element of a record array."""
    return int(record["chain"]).to_bytes(8, "little")


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name and both values, as text, of each fact that is not the same in both."""
    names = [name for name in sorted({*a, *b}) if (name in a) != (name in b) or a[name] != b[name]]
    return [(name, *(json.dumps(run[name]) if name in run else "not said" for run in (a, b))) for name in names]  # type: ignore[misc]

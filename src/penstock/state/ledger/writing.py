"""Appending to a ledger.

A record is one write of the operating system. Whenever the process is killed, what was appended stays, and of the
record that it was writing a part at most, which readers pass over and the next run cuts off. Nothing is synced to the
disk: a machine that loses power may lose the last steps, or leave zeros in their place, which count as such a part.
"""

from __future__ import annotations

import fcntl
import operator
import os
import stat
import struct
import weakref
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from penstock.errors import InvalidOption
from penstock.state.ledger.ids import COUNT
from penstock.state.ledger.reading import (
    BODY,
    MARK,
    START,
    End,
    chain_of,
    header_line,
    parse,
    parse_header,
    positions_of,
    unlike,
    where,
)
from penstock.system.file_lock import lock_file, unlock_file

# How long to wait for the lock of a process that is being killed.
LOCK_SECONDS = 10.0

_PERSON = b"penstock ledger"
_LINK = struct.Struct("<8sII")


class Ledger:
    """Appends to a ledger: a file of one run, and of one rank; it is made when there is none.

    One thread at a time may use it, and one process: the file is locked, and a copy (forked or pickled) is closed.
    An append takes a few microseconds.

    Args:
        path: the file; its folder must exist.
        run: facts that make this run what it is, as JSON; by custom seed, fingerprint, rank, world, batch_size.

    Raises:
        InvalidOption: the file is no ledger, or damaged, or of a run with other facts, or another process writes it.
        OSError: it cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, run: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        header = header_line(run)
        self.run: Mapping[str, Any] = MappingProxyType(parse_header(self.path, header)[0])
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        self._release = weakref.finalize(self, _unlock, self._descriptor)
        _open.add(self)
        try:
            _lock(self._descriptor, self.path)
            self._end = self._take_up(header)
        except BaseException:
            self.close()
            raise

    def _take_up(self, header: bytes) -> End:
        data = self._content(-1)
        if header.startswith(data):  # new, or its writer was killed before it could append
            self._write(header, 0)
            return End(len(header), zlib.crc32(header), START, -1)
        found = parse(self.path, data)
        if found.run != self.run:
            others = "; ".join(
                f"{name} is {one} there, and {two} here" for name, one, two in unlike(found.run, self.run)
            )
            raise InvalidOption(f"{self.path!r} is the ledger of another run: {others}. Name another file")
        if found.torn:
            os.ftruncate(self._descriptor, found.end.size)
        return found.end

    def append(self, epoch: int, step: int, ids: bytes) -> None:
        """Record a step. ids: what ids_bytes() made of its samples.

        Raises InvalidOption (a step that does not follow the last one: call rewind() first; a closed ledger), OSError
        (a full disk); the ledger is then as before, and the same step may be tried again.
        """
        epoch, step = operator.index(epoch), operator.index(step)  # NumPy's would overflow
        end, position = self._end, epoch << 32 | step
        if not (0 <= epoch < MARK and 0 <= step < MARK - 1):
            raise InvalidOption(f"epoch {epoch} step {step}: a ledger counts both from 0 to {MARK - 2:,}")
        if position <= end.last:
            raise InvalidOption(
                f"epoch {epoch} step {step} does not follow {where(end.last)}, where the ledger {self.path!r} stands; "
                "tell it by rewind() that the run goes back"
            )
        if len(ids) < 5 or (count := COUNT.unpack_from(ids)[0]) == MARK:
            raise InvalidOption(f"ids={ids[:20]!r} are no IDs of samples: give what ids_bytes() returns")
        chain = blake2b(_LINK.pack(end.chain, epoch, step) + ids, digest_size=8, person=_PERSON).digest()
        self._add(epoch, step, count, chain, position)

    def rewind(self, epoch: int, step: int, *, chain: bytes | None = None) -> None:
        """Go on behind a step, the last one that the resumed run was given; -1 is before the first of the epoch.

        Records up to that step stay; later ones stay in the file and are abandoned. Without later ones, and without
        a chain, nothing is written, so that any pass may begin with a rewind().

        Args:
            chain: what the property of this name held at that step. With it a new file goes on with the chain of
                another, or with its own over steps that were lost.

        Raises:
            InvalidOption: the ledger has another chain at that step: its run parted from the checkpoint's before.
        """
        epoch, step = operator.index(epoch), operator.index(step)
        if not (0 <= epoch < MARK and -1 <= step < MARK - 1 and (chain is None or len(chain) == 8)):
            raise InvalidOption(f"rewind to epoch {epoch} step {step}, chain {chain!r}: no position of a ledger")
        position = (epoch << 32) + step
        if self._end.last <= position and chain in (None, self._end.chain):
            return
        found = parse(self.path, self._content(self._end.size))
        places = positions_of(found.steps)
        kept = int(np.searchsorted(places, np.uint64(position + 1)))
        before = START if found.base[0] > position + 1 else found.base[1]
        if kept:
            before = chain_of(found.steps[kept - 1])
            if places[kept - 1] == position and chain not in (None, before):
                raise InvalidOption(
                    f"the ledger {self.path!r} has the chain {before.hex()} at {where(position)}, and the checkpoint "
                    f"{(chain or b'').hex()}: they are of runs that parted before. Name another file"
                )
        self._add(epoch, step + 1, MARK, before if chain is None else chain, position)

    @property
    def chain(self) -> bytes:
        """The chain of the last step, 8 bytes: for a checkpoint, and for rewind()."""
        return self._end.chain

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        self._release()
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._descriptor < 0 else "open"
        end = self._end
        return f"Ledger({self.path!r}, {state}, at {where(end.last)}, {end.size:,} bytes, chain {end.chain.hex()})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "run": dict(self.run), "_descriptor": -1, "_release": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, run=MappingProxyType(state["run"]), _release=_nothing)

    def _content(self, size: int) -> bytes:
        with open(self._checked(), "rb", closefd=False) as file:
            file.seek(0)
            return file.read(size)

    def _add(self, epoch: int, step: int, count: int, chain: bytes, last: int) -> None:
        body = BODY.pack(epoch, step, count, chain)
        check = zlib.crc32(body, self._end.check)
        size = self._write(body + COUNT.pack(check), self._end.size)
        self._end = End(size, check, chain, last)

    def _write(self, data: bytes, at: int) -> int:
        """Write at a position of the file, over what a write that failed or was interrupted left; return the end."""
        descriptor = self._checked()
        try:
            while data:
                done = os.pwrite(descriptor, data, at)
                data, at = data[done:], at + done
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        return at

    def _checked(self) -> int:
        if self._descriptor < 0:
            raise InvalidOption(
                f"the ledger {self.path!r} is closed here; only the process that opened it may write it"
            )
        return self._descriptor

    def _forget(self) -> None:
        """Close the descriptor in a forked child, where it would keep the parent's lock after the parent's death."""
        if self._descriptor >= 0:
            self._release.detach()
            os.close(self._descriptor)
            self._descriptor = -1


def _nothing() -> None:
    """The release of a ledger that holds nothing."""


_open: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_open):
        ledger._forget()


os.register_at_fork(after_in_child=_after_fork)


def _lock(descriptor: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InvalidOption(f"{path!r} is no regular file, and so no ledger")
    try:
        lock_file(descriptor, path, fcntl.LOCK_EX, LOCK_SECONDS, required=False)
    except TimeoutError:
        raise InvalidOption(
            f"the ledger {path!r} is written by another process, or open in this one; "
            "give each rank and each run a file of its own"
        ) from None


def _unlock(descriptor: int) -> None:
    unlock_file(descriptor)
    os.close(descriptor)

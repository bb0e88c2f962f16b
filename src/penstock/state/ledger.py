"""The ledger: a text file that says which samples each step of a run was given, a line a step.

The first line is ``penstock-ledger VERSION JSON``, with the facts of the run. Each line behind it is
``EPOCH STEP SAMPLES HASH``: the hash is BLAKE2b-64, in hexadecimal digits, of the step's IDs in their order as JSON. A
step that does not come behind the one before it says that the run went back, as a resumed one does: what the file holds
of that position and later is abandoned.

A line is one write of the operating system. Whenever the process is killed, what was appended stays, and of the line
that it was writing a part at most, which readers pass over and the next run cuts off; so are the zeros that a loss of
power leaves.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import InvalidOption, pair
from penstock.observe import Delivery, Observer
from penstock.state.manifest import append_line
from penstock.system.deferred import deferred
from penstock.system.locks import HeldFile, lock_file

if TYPE_CHECKING:
    from penstock.order import batches, schedule
    from penstock.order.permutations import Order
    from penstock.settings import Settings
    from penstock.sources import naming
    from penstock.state.progress import Progress
else:  # whoever reads a ledger needs none of them
    batches, schedule = deferred("penstock.order", "batches", "schedule")
    (naming,) = deferred("penstock.sources", "naming")

#: How long to wait for the lock of a process that is being killed.
LOCK_SECONDS = 10.0
#: Facts that say which samples a step holds; ledgers in which one of them differs cannot be compared.
STEP_FACTS = ("batch_size", "rank", "world")

_VERSION = 2
_MAGIC = b"penstock-ledger "
_LINE = re.compile(rb"(\d{1,20}) (\d{1,20}) (\d{1,20}) ([0-9a-f]{16})")


class Record(NamedTuple):
    """What a ledger holds of one step."""

    epoch: int
    step: int
    samples: int
    hash: str
    """16 hexadecimal digits; a function of the samples' IDs."""


@dataclass(frozen=True, eq=False)
class LedgerFile:
    """A ledger that was read. Iterating gives its steps, in the order of (epoch, step)."""

    path: str
    """As it was given."""
    run: Mapping[str, Any]
    steps: Sequence[Record]
    """Those that were not abandoned."""
    abandoned: int
    """Steps that the run left when it went back."""
    resumed: int
    """How often it went back."""
    torn: int
    """Bytes behind the last whole line: of one that was not finished."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self.steps)


def read(path: str | os.PathLike[str]) -> LedgerFile:
    """Read a ledger. It may be in use. Raises InvalidOption: no ledger, of another version, or damaged. OSError."""
    place = os.fspath(path)
    if not stat.S_ISREG(os.stat(place).st_mode):  # a named pipe would be waited for
        raise InvalidOption(f"{place!r} is not a regular file, so it cannot be a ledger")
    with open(place, "rb") as file:
        return _parsed(place, file.read())


def _header(run: Mapping[str, Any]) -> bytes:
    return _MAGIC + b"%d " % _VERSION + json.dumps(dict(run), sort_keys=True).encode() + b"\n"


def _parsed(path: str, data: bytes) -> LedgerFile:
    end = data.rfind(b"\n") + 1
    first, *lines = data[:end].split(b"\n")[:-1] or [b""]
    words = first.split(b" ", 2)
    if not data.startswith(_MAGIC) or len(words) < 3:
        what = f"it begins with {data[:16]!r}" if data else "it is empty"
        raise InvalidOption(f"{path!r} is not a ledger: {what}")
    if words[1] != b"%d" % _VERSION:
        raise InvalidOption(
            f"{path!r} is a ledger of format {words[1].decode('ascii', 'replace')}, and this Penstock reads format "
            f"{_VERSION}; read it with the version that wrote it"
        )
    try:
        run = dict(json.loads(words[2]))
    except (ValueError, TypeError, RecursionError):
        raise InvalidOption(f"{path!r}: the first line of this ledger is damaged") from None
    steps: list[Record] = []
    abandoned = resumed = 0
    for number, line in enumerate(lines, 2):
        if (found := _LINE.fullmatch(line)) is None:
            raise InvalidOption(
                f"{path!r} is damaged: line {number:,} of {len(lines) + 1:,} is not a step; remove the line, or name "
                "another file"
            )
        step = Record(int(found[1]), int(found[2]), int(found[3]), found[4].decode())
        whole = len(steps)
        while steps and steps[-1][:2] >= step[:2]:
            steps.pop()
        abandoned, resumed = abandoned + whole - len(steps), resumed + (len(steps) < whole)
        steps.append(step)
    return LedgerFile(path, run, steps, abandoned, resumed, len(data) - end)


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name and both values, as text, of each fact that is not the same in both."""
    texts = [{name: json.dumps(value) for name, value in run.items()} for run in (a, b)]
    both = ((name, *(run.get(name, "not said") for run in texts)) for name in sorted({*a, *b}))
    return [(name, one, two) for name, one, two in both if one != two]


# --- two runs compared --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What compare() found."""

    equal: int
    """Steps that both hold, with equal samples, before they diverged."""
    at: tuple[int, int] | None
    """Epoch and step: the first at which they diverged, or that only the longer one has; None when they are equal."""
    a: Record | None
    """What a holds of that step; None: nothing."""
    b: Record | None
    """What b holds of that step; None: nothing."""
    ended: int | None
    """Which of them has no step behind those, 0 or 1, where the other one has; None: both or neither."""
    since: tuple[int, int] | None
    """Where one of them begins, when the other begins before that."""
    facts: tuple[tuple[str, str, str], ...]
    """Name and both values, as JSON, of each fact of the runs that is not the same."""


def compare(a: LedgerFile, b: LedgerFile) -> Comparison:
    """Return at which step two runs diverged first, from where both have begun.

    Raises InvalidOption where they cannot be compared: a fact of STEP_FACTS is not the same, or they have no step in
    common.
    """
    facts = unlike(a.run, b.run)
    for name, in_a, in_b in facts:
        if name in STEP_FACTS:
            raise InvalidOption(
                f"{a.path!r} and {b.path!r} cannot be compared: {name} is {in_a} and {in_b}, "
                "so that their steps hold other samples in any case"
            )
    begins = [file.steps[0][:2] for file in (a, b) if file.steps]
    begin = max(begins, default=(0, 0))
    one, two = ([step for step in file.steps if step[:2] >= begin] for file in (a, b))
    if len(begins) == 2 and not (one and two):
        raise InvalidOption(f"{a.path!r} and {b.path!r} cannot be compared: they have no step in common")
    equal = len(list(takewhile(lambda both: both[0] == both[1], zip(one, two, strict=False))))
    nexts = [line[equal] if equal < len(line) else None for line in (one, two)]
    ended = nexts.index(None) if nexts.count(None) == 1 else None
    at = min((record[:2] for record in nexts if record is not None), default=None)
    of_a, of_b = (record if record is not None and record[:2] == at else None for record in nexts)
    return Comparison(equal, at, of_a, of_b, ended, begin if len({*begins}) == 2 else None, tuple(facts))


# --- appending ----------------------------------------------------------------------------------------------------


class Ledger:
    """Appends to a ledger: a file of one run, and of one rank; it is made when there is none.

    One thread at a time may use it, and one process: the file is locked, and closed in a forked child.

    Args:
        path: the file; its folder must exist.
        run: facts that make this run what it is, as JSON; by custom seed, data, rank, world, batch_size.

    Raises:
        InvalidOption: the file is not a ledger, or damaged, or of a run with other facts, or another process writes it.
        OSError: it cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, run: Mapping[str, Any]) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = HeldFile(os.open(self.path, flags, 0o666))
        try:
            self._lock()
            self._take_up(_header(run))
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.descriptor).st_mode):
            raise InvalidOption(f"{self.path!r} is not a regular file, so it cannot be a ledger")
        try:
            lock_file(self._file.descriptor, self.path, fcntl.LOCK_EX, LOCK_SECONDS, required=False)
        except TimeoutError:
            raise InvalidOption(
                f"the ledger {self.path!r} is written by another process, or open in this one; "
                "give each rank and each run its own file"
            ) from None

    def _take_up(self, header: bytes) -> None:
        """Go on with what the file holds, or begin it."""
        descriptor = self._file.descriptor
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        if header.startswith(data):  # new, or its writer was killed before it could append
            os.ftruncate(descriptor, 0)
            append_line(descriptor, header)
            return
        found = _parsed(self.path, data)
        here = _parsed(self.path, header).run
        if others := unlike(found.run, here):
            said = "; ".join(f"{name} is {one} there, and {two} here" for name, one, two in others)
            raise InvalidOption(f"{self.path!r} is the ledger of another run: {said}. Name another file")
        os.ftruncate(descriptor, len(data) - found.torn)

    def append(self, epoch: int, step: int, ids: Sequence[str]) -> None:
        """Record a step by the IDs of its samples. A step that was recorded before is abandoned, and all behind it.

        Raises OSError with the path (a full disk); the ledger is then as before, and the same step may be tried again.
        """
        if self._file.descriptor < 0:
            raise InvalidOption(
                f"the ledger {self.path!r} is closed here; only the process that opened it may write it"
            )
        digest = blake2b(json.dumps(list(ids)).encode(), digest_size=8).hexdigest()
        try:
            append_line(self._file.descriptor, f"{epoch} {step} {len(ids)} {digest}\n".encode())
        except OSError as error:
            error.filename = self.path
            raise

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        self._file.close()

    def __repr__(self) -> str:
        return f"Ledger({self.path!r}, {'closed' if self._file.descriptor < 0 else 'open'})"


# --- of a loader --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Recorder(Observer):
    """Appends each step of a pass to a ledger."""

    ledger: Ledger
    dataset: Any
    """Names the samples."""
    settings: Settings
    progress: Progress
    """Of the pass; it counts a batch behind the recorder: one whose step cannot be written is not handed out."""
    order: Order | None = None
    """Made at the first step."""

    def delivered(self, delivery: Delivery) -> None:
        """Append the step of the batch that was handed out. Raises OSError.

        Steps are counted as they were given to the user: where batches come out of order the ledger holds them in the
        order in which they came, so that two runs are equal if each of their steps was given the same samples.
        """
        steps, progress = self.progress.schedule, self.progress
        if steps is None:
            return
        if self.order is None:
            seed, order = self.settings.seed or 0, batches.BatchOrder(self.settings)
            self.order = order.order(seed, progress.epoch, progress.drawn)()
        indices = schedule.indices_of(self.order, steps.part(progress.coming)).tolist()
        step = steps.step_at(progress.left.start) + len(progress.left.early) + progress.taken
        self.ledger.append(progress.epoch, step, naming.ids_of(self.dataset, indices))


class LoaderLedger:
    """The ledger of a loader, opened when its first pass begins. Not picklable."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None

    def of_pass(
        self, settings: Settings, progress: Progress, fingerprint: Callable[[Settings], dict[str, Any]]
    ) -> Recorder:
        """Return what writes the pass that begins to the ledger. Raises InvalidOption."""
        assert settings.ledger is not None
        order = batches.BatchOrder(settings)
        if settings.iterable or not (order.cuts_itself() or order.one_by_one()):
            raise InvalidOption("ledger= needs the loader's own order, without a sampler or an iterable dataset")
        if self._ledger is None:
            share = order.share() or schedule.Share()
            facts = {
                "seed": settings.seed,
                "batch_size": settings.batch_size,
                "data": fingerprint(settings),
                "order": order.kind(),
            }
            path = os.fspath(settings.ledger).replace("{rank}", str(share.rank))
            try:
                self._ledger = Ledger(path, run={**facts, "rank": share.rank, "world": share.world})
            except OSError as error:
                if isinstance(error, IsADirectoryError):
                    why = "it is a folder: name a file in it, such as run.ledger"
                else:
                    why = f"it cannot be opened or written: {error.strerror}"
                made: Any = pair(InvalidOption, type(error))(f"ledger={path!r}: {why}")
                made.errno = error.errno
                raise made from error
        return Recorder(self._ledger, settings.dataset, settings, progress)

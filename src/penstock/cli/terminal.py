"""How verbs are added to the command line, and what they print with: bytes to stdout, lines to stderr, tables."""

from __future__ import annotations

import argparse
import errno
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from penstock.showing import StatusLine, shown as shown
from penstock.system.words import size_of

Run = Callable[[argparse.Namespace], int]

#: The verbs: the module of penstock.cli that adds each, and what it does.
VERBS = {
    "ledger": ("ledger", "show or compare the ledgers of runs"),
    "quarantine": ("quarantine", "list, retry or export the bad samples of a manifest"),
    "run": ("run", "run a program, and print how long it waits for its data"),
    "pack": ("shards", "pack a dataset into tar shards"),
    "index": ("shards", "index tar files in WebDataset's naming, once"),
    "verify": ("shards", "compare shards with their checksums"),
    "unpack": ("shards", "write the packed files to a folder"),
    "info": ("info", "print what a folder of shards holds"),
    "doctor": ("doctor", "check the machine, or a dataset on it, for what slows loading down"),
    "plan-capacity": ("capacity", "compute the cores, bandwidths and cache that a job of many GPUs needs"),
    "view": ("view", "draw a batch as pictures, with IDs and labels"),
    "watch": ("watch", "show what the loaders of a running process do"),
}


def add_verb(verbs: Any, name: str, run: Run | None, words: str = "", description: str = "") -> argparse.ArgumentParser:
    """Add a verb, or an action of one, to what argparse's add_subparsers() returned, and return its parser.

    Args:
        run: takes the parsed arguments and returns an exit code; None: it has actions, which have their own.
        words: what an action does; of a verb VERBS says it. The description begins with them where it is empty or
            begins with a space.
    """
    words = words or VERBS[name][1]
    if description[:1] in ("", " "):
        description = f"{words[0].upper()}{words[1:]}.{description}"
    added: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=description, allow_abbrev=False)
    added.set_defaults(parser=added)
    if run is not None:
        added.set_defaults(run=run)
    return added


def add_actions(verbs: Any, name: str, description: str) -> Any:
    """Add a verb, and return what `add_verb` adds its actions to."""
    return add_verb(verbs, name, None, description=description).add_subparsers(
        required=True, metavar="ACTION", title="actions"
    )


def count(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if (number := count(text)) == 0:
        raise argparse.ArgumentTypeError("0 is too few: give at least 1")
    return number


def number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found


# --- output ----------------------------------------------------------------------------------------------------------

_EVERY = 10.0  # seconds between two lines of a Bar without a terminal


def raw(text: str) -> bytes:
    """Return text as the file system has it: bytes that are not UTF-8 stay."""
    # Only these surrogates mean a byte; others are in no name of a file, but may be in a message.
    parts = re.split("([\udc80-\udcff]+)", text)
    return b"".join(part.encode("utf-8", ("surrogatepass", "surrogateescape")[i % 2]) for i, part in enumerate(parts))


def write(data: bytes) -> None:
    """Write bytes to stdout. Raises OSError."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # an io.StringIO in its place
        sys.stdout.write(data.decode("utf-8", "backslashreplace"))
    else:
        rest = memoryview(data)
        while rest:  # of an unbuffered stdout (python -u) one write() may take a part
            taken = buffer.write(rest)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, "stdout does not wait for its reader")
            rest = rest[taken:]
        buffer.flush()


def write_lines(lines: Sequence[str]) -> None:
    """Write lines of text to stdout in its encoding; what that lacks as escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write("".join(line + "\n" for line in lines).encode(encoding, "backslashreplace"))


def say(line: str) -> None:
    """Write one line to stderr, if there is one."""
    if sys.stderr is not None:
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def say_last(stream: TextIO | None, lines: Sequence[str]) -> None:
    """Write lines to a stream such as stderr when a program has ended.

    Where the stream is closed, or nobody reads it, nothing is left in it: Python's own end would complain of that.
    """
    if stream is None:
        return
    try:
        stream.flush()
        rest = "".join(line + "\n" for line in lines).encode(stream.encoding or "utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]
    except (OSError, ValueError):
        return


def width() -> int | None:
    """Return the columns of the terminal that stdout is, None where it is not one."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return rows as lines of aligned columns; the last one is not padded. right: columns that end at the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]  # noqa: B905
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


class Bar:
    """Shows on stderr how far a command is, "packing": on a terminal in one line, else by a line now and then.

    Any thread may call update(), one at a time.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = self._shown = time.monotonic()
        self._first: tuple[int, int] | None = None
        self._line = StatusLine(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._line is not None:
            self._line.write()

    def update(self, done: int, of: int, bytes_: int = 0) -> None:
        """Show that so many samples of all, and so many bytes, are done."""
        now = time.monotonic()
        if self._first is None:  # what an earlier run had done counts for no rate
            self._first, self._begun = (done - 1, bytes_), now
        if now - self._shown < (_EVERY if self._line is None else 0.1) or done >= of:
            return
        self._shown = now
        seconds = max(now - self._begun, 1e-3)
        rate = (done - self._first[0]) / seconds
        words = f"{self._what}: {done:,} of {of:,}, {rate:,.0f} samples/s"
        if bytes_:
            words += f", {size_of(int((bytes_ - self._first[1]) / seconds))}/s"
        words += f", about {(of - done) / max(rate, 1e-9):,.0f} s left"
        if self._line is not None:
            self._line.write(words)
        else:
            say(words)

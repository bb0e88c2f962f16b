"""What the verbs print with: bytes to stdout, lines to stderr, and names that cannot disturb a terminal."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

from penstock.showing import shown as shown

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

T = TypeVar("T")


def raw(text: str) -> bytes:
    """Return text as the file system has it: bytes that are no UTF-8 as they are."""
    if text.isascii():
        return text.encode()
    return b"".join(char.encode("utf-8", _handler(char)) for char in text)


def _handler(char: str) -> str:
    # Only these surrogates stand for a byte; others are in no name of a file, but may be in a message.
    return "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"


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
    """Return the columns of the terminal that stdout is, None when it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items; where stderr is a terminal it shows how many are done: by tqdm, else as a count."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
    elif tqdm is not None:
        yield from tqdm(items, desc=what, leave=False, dynamic_ncols=True)
    else:
        shown_at = 0.0
        for done, item in enumerate(items):
            if time.monotonic() - shown_at > 0.1:
                shown_at = time.monotonic()
                sys.stderr.write(f"\r{what}: {done:,} of {len(items):,}")
                sys.stderr.flush()
            yield item
        sys.stderr.write("\r\x1b[K")

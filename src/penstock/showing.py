"""Names, paths and URLs as every message shows them: nothing that a terminal acts upon, nothing that opens a store.

And the line on a terminal that says how far something is.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"<>]*[^\s\"<>.,;:)\]}']")


def shown(text: str) -> str:
    """Return text on one line, as repr() would: line ends, control characters and bytes that are not UTF-8 are escapes.

    URLs in it have no user, password and query.
    """
    text = without_secrets(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown_lines(text: str) -> str:
    """Return text whose line ends are its author's, each line as shown() has it."""
    return "\n".join(map(shown, text.split("\n")))


def said(error: BaseException) -> str:
    """Return the message of an error; empty where its class, which may be the user's, fails to give one."""
    try:
        return str(error)
    except Exception:
        return ""


def without_secrets(text: str) -> str:
    """Return text whose URLs have no user, password and query."""
    return _URL.sub(_bare, text) if "://" in text else text


def _bare(url: re.Match[str]) -> str:
    scheme, _, rest = url[0].partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


class StatusLine:
    """One line on a terminal, written anew each time. It ends where the terminal can no longer be written to."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal: TextIO | None = terminal
        self._process = os.getpid()

    def write(self, text: str = "") -> None:
        """Show a text in the place of the one before; empty: take the line off the terminal."""
        if self._terminal is None or os.getpid() != self._process:  # in a forked child it is the parent's
            return
        try:
            columns = os.get_terminal_size(self._terminal.fileno()).columns or 80
            # The cursor goes back to where the line begins: what a program prints does not begin behind it.
            self._terminal.write(f"\r\x1b[K{text[: columns - 1]}\r" if text else "\r\x1b[K")
            self._terminal.flush()
        except (OSError, ValueError):  # it is gone, or closed
            self._terminal = None

    def end(self) -> None:
        self._terminal = None

"""Names, paths and URLs as every message shows them: nothing that a terminal acts upon, nothing that opens a store."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"<>]*[^\s\"<>.,;:)\]}']")


def shown(text: str) -> str:
    """Return text on one line, as repr() would: line ends, control characters and bytes that are no UTF-8 are escapes.

    URLs in it have no user, password and query.
    """
    text = without_secrets(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown_lines(text: str) -> str:
    """Return text whose line ends are its author's, each line as shown() has it."""
    return "\n".join(map(shown, text.split("\n")))


def without_secrets(text: str) -> str:
    """Return text whose URLs have no user, password and query."""
    return _URL.sub(_bare, text) if "://" in text else text


def _bare(url: re.Match[str]) -> str:
    scheme, _, rest = url[0].partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

"""Which paths are URLs of an object store, and which nearly are."""

from __future__ import annotations

import difflib
import os
import re
from typing import TypeGuard

from penstock.errors import InvalidOption

#: URLs that are read from an object store.
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https", "http", "file", "memory")


def is_url(path: object) -> TypeGuard[str]:
    """Return whether a path is the URL of an object store. Raises InvalidOption for what is nearly one, as gs:/x."""
    text = os.fsdecode(path) if isinstance(path, str | os.PathLike) else ""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)", text)
    if found is None:
        return False
    scheme, known = found[1].lower(), found[1].lower() in SCHEMES
    if known and len(found[2]) > 1:
        return True
    if not (known or len(found[2]) > 1) or os.path.lexists(text):
        return False
    near = difflib.get_close_matches(scheme, SCHEMES, 1)
    meant = f"write {near[0]}://{text[found.end() :]}" if near else f"such URLs begin with {', '.join(SCHEMES)}"
    raise InvalidOption(f"{text!r} is not a URL of an object store, and there is no such local folder: {meant}")


def local_folder(path: str | os.PathLike[str], option: str) -> str:
    """Return the path of a folder of this machine, ~ expanded. Raises InvalidOption for a URL. option: its name."""
    if is_url(path):
        raise InvalidOption(f"{option}={path!r} is a URL, and a folder of this machine is needed: give its path")
    return os.path.expanduser(os.fsdecode(path))

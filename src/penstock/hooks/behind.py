"""What lies behind a call that is answered natively: functions that a program may have replaced, and file objects."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from penstock.recipe.originals import replaced_in


class Functions:
    """Functions that must be what their modules defined: a program that replaces one means it.

    Args:
        names: by module, the names of its functions; what a release does not have is not asked for.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        found = (replaced_in(module, behind) for module, behind in names.items())
        self._replaced = next((one.what for one in found if one is not None), None)
        self._looks = []
        for module, behind in names.items():
            now = vars(sys.modules[module]) if module in sys.modules else {}
            present = [name for name in behind.split() if name in now]
            if present:
                take = itemgetter(*present)
                self._looks.append((module, take, now, take(now)))

    def replaced(self) -> str | None:
        """Return what was replaced, or None."""
        for module, take, now, before in self._looks:
            try:
                if take(now) == before:
                    continue
            except Exception:  # one was deleted; or a comparison with something that is no function
                pass
            return f"a function of {module} was replaced"
        return None if self._replaced is None else f"{self._replaced} was replaced"


def content_of(file: Any) -> tuple[bytes | int, int] | None:
    """Return where a file object's content is (the bytes, or a descriptor) and the position that it is at.

    None for what is not an open io.BytesIO or a file opened by open(..., "rb").
    """
    try:
        if type(file) is io.BytesIO:
            return file.getvalue(), file.tell()
        if type(file) is io.BufferedReader and type(file.raw) is io.FileIO:
            return file.fileno(), file.tell()
    except (OSError, ValueError):  # closed, detached, or not seekable
        pass
    return None

"""What Python 3.10 lacks. A newer version's own is used where there is one."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    import exceptiongroup  # noqa: F401  prints the notes of errors

    class StrEnum(str, Enum):
        """Strings that are members of an enumeration."""

        __str__ = str.__str__


def write_note(error: BaseException, text: str) -> None:
    """Add a note to an error. Raises what an exception raises that takes no notes."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), text]

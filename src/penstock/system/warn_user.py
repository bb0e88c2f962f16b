"""Warnings that point at the user's line, whatever lies between that line and the one that warns."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection
from types import FrameType

from penstock.showing import shown_lines

#: The folder of the package, where Penstock's code lies.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn_user(message: str, category: type[Warning] = UserWarning, *, through: Collection[str] = ()) -> None:
    """Warn at the innermost line that is neither Penstock's nor of torch's loader: where the user called one of them.

    Args:
        message: says what is wrong and what to do.
        through: packages by name whose lines are passed over too, because the user called them.
    """
    level, frame = 1, sys._getframe(1)
    while _is_between(frame, through) and frame.f_back is not None:  # None: the first frame of a thread of ours
        level, frame = level + 1, frame.f_back
    warnings.warn(shown_lines(message), category, stacklevel=level + 1)


def _is_between(frame: FrameType, through: Collection[str]) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    if frame.f_code.co_filename.startswith(PACKAGE) or f"{module}.".startswith("torch.utils.data."):
        return True
    return module.partition(".")[0] in through

"""Tracebacks of errors that leave the package: they lead to the user's line, without the package's own frames."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from itertools import pairwise
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = __name__.partition(".")[0]
#: What torch's loader runs on: its frames are dropped where a frame of the package called them. torch._utils raises the
#: errors of workers, in a frame that holds the error: the two would be a cycle.
_TORCH = {"torch._utils", *(f"torch.utils.data.{name}" for name in ("dataloader", "_utils.fetch", "_utils.worker"))}
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.11 and later


def shorten(error: BaseException) -> None:
    """Drop the package's frames from the tracebacks of an error, its causes and contexts, and the errors of a group.

    The frame in which an error was raised stays, unless it is a PenstockError, whose message says all. ``python -X
    dev`` keeps all frames. To be called in an `except` clause of the outermost function of the package, before a bare
    `raise`.
    """
    if sys.flags.dev_mode:
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        with suppress(Exception):  # of a class of the user's that answers for these attributes
            trace = _shortened(one.__traceback__, keep_last=not isinstance(one, PenstockError))
            BaseException.with_traceback(one, trace)  # a frozen dataclass refuses to be assigned to
            pending += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, _GROUP) else ())]


def shortens(method: Callable[P, R]) -> Callable[P, R]:
    """Return a public function whose errors have short tracebacks."""

    @wraps(method)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(*arguments, **named)
        except Exception as error:
            shorten(error)
            wrong = re.search("unexpected keyword argument '(.+)'$", str(error)) if type(error) is TypeError else None
            if wrong and wrong[1] in named and (near := get_close_matches(wrong[1], signature(method).parameters, 1)):
                error.args = (f"{error}. Did you mean '{near[0]}'?",)  # as Python 3.13 asks
            raise

    return called


def _shortened(trace: TracebackType | None, *, keep_last: bool) -> TracebackType | None:
    """Return the entries of a traceback that are not the package's, linked to each other."""
    first, kept, inside = trace, [], False
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        own = module.partition(".")[0] == _PACKAGE
        inside = own or (inside and module in _TORCH)
        if not inside or (own and keep_last and trace.tb_next is None):
            kept.append(trace)
        trace = trace.tb_next
    if first is None:
        return None
    # In place: Python 3.10 raises an error again with the entry that it had first, whatever is set since.
    chain = kept if kept[:1] == [first] else [first, *kept]
    for entry, below in pairwise([*chain, None]):
        if entry is not None:
            entry.tb_next = below
    return kept[0] if kept else None

"""Reports: pytorch/pytorch#30147.

An exception whose class takes several arguments, raised in a worker, comes as a TypeError, or without its words.

The words, the class and the sample of the worker's error are kept.
"""

from __future__ import annotations

from typing import Any

from tests.data import Made
from tests.reports.report import Found


class Refused(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"refused with {code}: {reason}")


class Mute(RuntimeError):
    """Its words cannot be had, as of some libraries' errors."""

    def __str__(self) -> str:
        return str(self.args[1])


def failing(error: Exception) -> Made:
    def fail(index: int) -> int:
        raise error

    return Made(fail, 4)


def trouble(loader: Any, *, short: bool) -> Found:
    lost = 0
    for error, words in ((Refused(7, reason="no photo"), "no photo"), (Mute(), "Mute")):
        try:
            list(loader(failing(error), num_workers=1))
        except Exception as came:
            text = "\n".join([repr(came), *getattr(came, "__notes__", [])])
            lost += words not in text or isinstance(came, (TypeError, IndexError))
    return Found(lost, 2, "errors whose class or words are lost")

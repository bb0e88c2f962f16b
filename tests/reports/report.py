"""What a script of a public report says and finds: the parts of a row of docs/public-reports.md."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.utils.data

import penstock

FOLDER = Path(__file__).parent
#: The classes of loader that a script is run with, by the words of its command line.
LOADERS: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "penstock": penstock.DataLoader}


class Found(NamedTuple):
    """What a script counted with one class of loader."""

    bad: int
    """How often the trouble came."""
    of: int
    what: str
    """What was counted, in the plural: "batches with the augmentations of another worker"."""
    said: str = ""
    """What the loader said of it: its warning or error, shortened by the script."""

    def __str__(self) -> str:
        measured = self.what.startswith(("MB", "seconds", "microseconds"))
        count = f"{self.bad:,}" if measured else f"{self.bad:,} of {self.of:,}"
        return f"{count} {self.what}" + (f"; it says: {self.said}" if self.said else "")


class Report(NamedTuple):
    """A row of the page, as the docstring of its script says it: links, trouble, and what Penstock's loader does."""

    number: int
    links: list[str]
    trouble: str
    ours: str
    script: Path

    @property
    def module(self) -> Any:
        """The script: `trouble(loader, short=)` returns Found."""
        return importlib.import_module(f"tests.reports.{self.script.stem}")

    def is_answered(self, found: Found) -> bool:
        """Return whether ours does what the row says: the trouble never comes, or what the script's `answered` asks."""
        answered = getattr(self.module, "answered", None)
        return found.bad == 0 if answered is None else bool(answered(found))


def reports() -> list[Report]:
    """Return all rows, in the order of their numbers."""
    found = []
    for script in sorted(FOLDER.glob("row_[0-9][0-9]_*.py")):
        text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        links, trouble, ours = text.split("\n\n")[:3]
        names = [name.strip(",") for name in links.removeprefix("Reports:").rstrip(".").split()]
        found.append(Report(int(script.name[4:6]), names, one_line(trouble), one_line(ours), script))
    return found


def one_line(text: str) -> str:
    return " ".join(text.split())


def found_in_child(measure: Callable[[], Found], seconds: float, what: str) -> Found:
    """Return what a script counts in a forked process of its own; one that hangs is killed, and counts as 1 of 1."""
    context: Any = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        os.setsid()
        sender.send(tuple(measure()))

    process = context.Process(target=child)
    process.start()
    sender.close()
    came = receiver.poll(seconds)
    try:
        found = Found(*receiver.recv()) if came else Found(1, 1, what)
    except EOFError:
        found = Found(1, 1, what)
    if process.is_alive() and not came:
        os.killpg(process.pid, signal.SIGKILL)
    process.join(5)
    return found

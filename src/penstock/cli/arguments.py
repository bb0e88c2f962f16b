"""How verbs of the command line are added, and the numbers among their arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int]


def add_verb(verbs: Any, name: str, run: Run | None, words: str, description: str = "") -> argparse.ArgumentParser:
    """Add a verb to what argparse's add_subparsers() returned, and return its parser.

    Args:
        run: takes the parsed arguments and returns an exit code; None: it has actions, which have their own.
        words: what it does. The description begins with them where it is empty or begins with a space.
    """
    if description[:1] in ("", " "):
        description = f"{words[0].upper()}{words[1:]}.{description}"
    added: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=description, allow_abbrev=False)
    if run is not None:
        added.set_defaults(run=run)
    return added


def add_actions(verbs: Any, name: str, words: str, description: str) -> Any:
    """Add a verb, and return what `add_verb` adds its actions to."""
    return add_verb(verbs, name, None, words, description).add_subparsers(
        required=True, metavar="ACTION", title="actions"
    )


def count(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if (number := count(text)) == 0:
        raise argparse.ArgumentTypeError("0 is too few: at least 1")
    return number


def number(text: str) -> float:
    """Return a number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return found

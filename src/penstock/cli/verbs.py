"""Verbs of the command line and their actions, as argparse knows them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def add_verb(verbs: Any, name: str, words: str, description: str) -> Callable[..., argparse.ArgumentParser]:
    """Add a verb, and return what adds an action to it: action(name, run, words, more="").

    run takes the parsed arguments and returns an exit code. The description of an action is its words, and more.
    """
    verb = verbs.add_parser(name, help=words, description=description, allow_abbrev=False)
    actions = verb.add_subparsers(required=True, metavar="ACTION", title="actions")

    def action(
        name: str, run: Callable[[argparse.Namespace], int], words: str, more: str = ""
    ) -> argparse.ArgumentParser:
        description = f"{words[0].upper()}{words[1:]}.{more}"
        added: argparse.ArgumentParser = actions.add_parser(
            name, help=words, description=description, allow_abbrev=False
        )
        added.set_defaults(run=run)
        return added

    return action

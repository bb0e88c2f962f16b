"""The options of a command that records what it runs: a trace and a report."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack

from penstock.insight.record import record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of recordings, to a command."""
    group = parser.add_argument_group("recordings")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="write what the loops and the workers did, slice by slice, for ui.perfetto.dev; compressed where FILE "
        "ends in .gz. '{rank}' in FILE is torchrun's RANK",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="write one HTML page: waiting and work over time, throughput, the share of each stage; '{rank}' as above",
    )


def words_of(arguments: argparse.Namespace) -> list[str]:
    """Return the options of `add_options` as words of a command line."""
    named = (("--trace", arguments.trace), ("--report", arguments.report))
    return [word for option, path in named if path is not None for word in (option, path)]


def begin(arguments: argparse.Namespace) -> Callable[[], list[str]]:
    """Begin to record as the options say; return what ends it, and returns lines for the user. Raises InvalidOption."""
    stack = ExitStack()
    if arguments.trace is not None or arguments.report is not None:
        stack.enter_context(record(arguments.trace, arguments.report))

    def end() -> list[str]:
        stack.close()
        named = (("trace", arguments.trace), ("report", arguments.report))
        return [f"the {what} is in {path}" for what, path in named if path is not None]

    return end

"""The pages of the documentation: their blocks of code and their tables, and the command line that they show."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
_COMMUNITY = ("CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "GOVERNANCE.md")
ALL_PAGES = [*PAGES, *(ROOT / name for name in (*_COMMUNITY, "benchmarks/README.md", "examples/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return FENCE.sub("", text)


class Block(NamedTuple):
    """A block of Python code on a page."""

    page: str
    line: int
    code: str
    output: str | None
    """What the page says that the code prints: the `text` block that follows it directly."""


def blocks_of(page: Path) -> Iterator[Block]:
    text = text_of(page)
    for found in FENCE.finditer(text):
        if found[1] == "python":
            follows = re.compile(r"\n```text\n(.*?)^```\n", re.DOTALL | re.MULTILINE).match(text, found.end())
            output = None if follows is None else follows[1]
            yield Block(name_of(page), text.count("\n", 0, found.start(2)) + 1, found[2], output)


def rows_of(page: Path, first: str) -> list[list[str]]:
    """Return the rows, cell by cell, of all tables of a page whose first column is called so."""
    tables = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text_of(page), re.MULTILINE)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for table in tables for row in table.splitlines()
    ]


def parts_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by name."""
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(below[0]) if below else {}

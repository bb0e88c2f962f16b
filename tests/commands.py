"""The command `penstock`, in this process, for tests of what it reads and writes."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.cli import main, parser


def command(*arguments: str | Path, code: int | None = 0) -> str:
    """Run the command, which ends with this code (None: with any); return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        ended = main(list(map(str, arguments)))
    assert code in (ended, None), out.getvalue()
    return out.getvalue()


def attempted(verb: str, *arguments: str | Path) -> str:
    """Run the command and return its output; what it would say of an error is raised, as the error it is."""
    out, parsed = io.StringIO(), parser({verb}).parse_args([verb, *map(str, arguments)])
    with contextlib.redirect_stdout(out):
        parsed.run(parsed)
    return out.getvalue()


def assert_equal_ledgers(one: str | Path, other: str | Path) -> None:
    """Assert that two ledgers hold the same steps, all of them."""
    assert command("ledger", "diff", one, other).startswith("equal: ")


@dataclass(frozen=True)
class BadSample:
    """A line of a manifest of bad samples (docs/bad-samples.md)."""

    id: str
    path: str | None
    error: str
    size: int | None
    time: str = "2025-11-20T13:03:00Z"
    index: int | None = None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def bad_samples(manifest: str | Path) -> list[BadSample]:
    """Return the lines of a manifest."""
    return [BadSample(**json.loads(line)) for line in Path(manifest).read_bytes().splitlines()]

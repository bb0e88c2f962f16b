"""The command `penstock`, in this process, for tests of what it reads and writes."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli import main, parser


class Said(NamedTuple):
    """What the command wrote to stdout and stderr."""

    out: str
    err: str


def ran(*arguments: object, code: int | None = 0) -> Said:
    """Run the command, which ends with this code (None: with any)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ended: object = main(list(map(str, arguments)))
        except SystemExit as stop:  # of argparse
            ended = stop.code
    said = Said(out.getvalue(), err.getvalue())
    assert code in (ended, None), (ended, said)
    return said


def command(*arguments: object, code: int | None = 0) -> str:
    """Run the command, which ends with this code (None: with any); return its output."""
    return ran(*arguments, code=code).out


def fails(*arguments: object) -> str:
    """Run the command: assert exit code 2, nothing on stdout, one line on stderr; return that."""
    out, err = ran(*arguments, code=2)
    assert (out, err.count("\n")) == ("", 1), (out, err)
    return err.rstrip("\n")


given: Any = None


def named(what: Any) -> str:
    """Return what names an object as the command's DATASET, until the next call."""
    global given
    given = what
    return f"{__name__}:given"


def attempted(verb: str, *arguments: object) -> str:
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

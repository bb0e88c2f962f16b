"""What a full run of the rows counted, and the table of docs/reliability.md: `python -m tests.faults.scoreboard`."""

from __future__ import annotations

import ast
import datetime
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import machine

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent.parent / "docs" / "reliability.md"
RESULTS = FOLDER / "results.json"
BEGIN, END = "<!-- table: python -m tests.faults.scoreboard -->\n", "<!-- end of the table -->\n"


class Row(NamedTuple):
    """A row: its number, the fault and what must happen, as the docstring of its script says."""

    number: int
    fault: str
    must: str
    script: str


def rows() -> list[Row]:
    """Return all rows, in the order of their numbers."""
    found = []
    for script in sorted(FOLDER.glob("test_[0-9][0-9]_*.py")):
        text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        fault, must = text.split("\n\n")[:2]
        what = " ".join(fault.split()).partition(": ")[2].rstrip(".")
        found.append(Row(int(script.name[5:7]), what[:1].upper() + what[1:], " ".join(must.split()), script.name))
    return found


def write_results(reports: Iterable[pytest.TestReport]) -> None:
    """Write what each row of a full run counted; rows that did not run keep what an earlier run wrote."""
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    ran: dict[str, dict[str, Any]] = defaultdict(lambda: {"cases": 0, "failed": 0, "seconds": 0.0, "skipped": []})
    for report in reports:
        found = re.search(r"faults/test_(\d\d)_", report.nodeid)
        if found is None:
            continue
        row = ran[found[1]]
        row["seconds"] = round(row["seconds"] + report.duration, 1)
        row["failed"] += report.failed
        if report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            row["skipped"] = sorted({*row["skipped"], reason.removeprefix("Skipped: ")})
        elif report.when == "call":
            row["cases"] += sum(int(str(count)) for name, count in report.user_properties if name == "cases") or 1
    if ran:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        facts = machine.describe()
        where = {name: facts[name] for name in ("cpu", "cores_usable", "kernel", "python", "packages")}
        held.update({number: {"date": now, "machine": where, **row} for number, row in ran.items()})
        RESULTS.write_text(json.dumps(dict(sorted(held.items())), indent=1) + "\n")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_table(page: str) -> str:
    """Return a page with the table of the results in its place."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    lines = ["| # | fault or bad input | must happen | cases | failed | minutes | last full run |", "|" + "---|" * 7]
    for row in rows():
        ran = results.get(f"{row.number:02}", {})
        cases, failed = f"{ran['cases']:,}" if ran else "", ran.get("failed", "")
        minutes = f"{ran['seconds'] / 60:.1f}" if ran else ""
        last = ran.get("date", "not yet run in full") + "".join(f"; {reason}" for reason in ran.get("skipped", []))
        script = f"[{row.number}](../tests/faults/{row.script})"
        lines.append(f"| {script} | {row.fault} | {row.must} | {cases} | {failed} | {minutes} | {last} |")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

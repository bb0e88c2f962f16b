"""Runs the scripts of the public reports with torch's loader and with Penstock's, and writes docs/public-reports.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from tests.reports.report import FOLDER, LOADERS, Found, Report, reports

PAGE = FOLDER.parent.parent / "docs" / "public-reports.md"
RESULTS = FOLDER / "results.json"
BEGIN, END = "<!-- table: python -m tests.reports -->\n", "<!-- end of the table -->\n"
_SECONDS = 300.0


def counted(report: Report, loader: str) -> Found:
    """Return what a script counts with a class of loader, in a process of its own."""
    command = [sys.executable, "-m", "tests.reports", "--one", str(report.number), loader]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=FOLDER.parent.parent
        )
    except subprocess.TimeoutExpired:
        return Found(1, 1, f"runs that hang (over {_SECONDS:.0f} s)")
    if done.returncode:
        raise RuntimeError(f"row {report.number} with {loader}'s loader:\n{done.stderr[-3000:]}")
    return Found(*json.loads(done.stdout.splitlines()[-1]))


def with_table(page: str, results: dict[str, dict[str, list[object]]]) -> str:
    """Return the page with the table of the results in its place."""
    lines = ["| # | reports | trouble | with torch's loader | with Penstock's | what Penstock does |", "|" + "---|" * 6]
    for row in reports():
        ran = results.get(f"{row.number:02}", {})
        cells = [str(Found(*ran[loader])) if loader in ran else "not run" for loader in LOADERS]  # type: ignore[arg-type]
        script = f"[{row.number}](../tests/reports/{row.script.name})"
        links = ", ".join(map(_link, row.links))
        lines.append(f"| {script} | {links} | {row.trouble} | {' | '.join(cells)} | {row.ours} |")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def _link(name: str) -> str:
    """Return the link to a report "owner/repository#number"."""
    repository, _, number = name.partition("#")
    return f"[{repository.partition('/')[2]}#{number}](https://github.com/{repository}/issues/{number})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="rows (all)")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "LOADER"), help="run one script and print what it counts")
    given = parser.parse_args()
    rows = {row.number: row for row in reports()}
    if given.one is not None:
        row, loader = rows[int(given.one[0])], given.one[1]
        print(json.dumps(row.module.trouble(LOADERS[loader], short=False)))  # noqa: T201
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for number in tqdm(given.numbers or list(rows), unit="row"):
        results[f"{number:02}"] = {loader: list(counted(rows[number], loader)) for loader in LOADERS}
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    PAGE.write_text(with_table(Path(PAGE).read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()

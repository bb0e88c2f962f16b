"""A program run twice, with torch's loader and with Penstock's in its place: what each took, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.insight.run_report import duration

Row = tuple[str, str, str, str]
#: The loops over one loader in one run, by the fields of a run's figures; None: that run had no such loop.
Loop = Mapping[str, Any] | None


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of two runs' figures (RunReport.as_json, parsed)."""
    rows: list[Row] = [("", "torch's loader", "Penstock's", "")]
    rows.append(_times("the program", before["seconds"], after["seconds"]))
    for name, one, other in _pairs(before, after):
        rows += [(name, "", "", ""), *_rows(one, other)]
    widths = [max(len(row[column]) for row in rows if row[1]) for column in range(4)]
    return [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in rows
    ]


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Loop, Loop]]:
    """Yield the loops of two runs side by side, with their name.

    They are over the loaders of one line and one type of dataset: the class may be another, and the number of workers.
    """
    names = ("place", "dataset", "batching")
    rest = list(after["loops"])
    for one in before["loops"]:
        other = next((other for other in rest if all(other[name] == one[name] for name in names)), None)
        if other is not None:
            rest.remove(other)
        yield _name(one), one, other
    yield from ((_name(other), None, other) for other in rest)


def _name(loop: Mapping[str, Any]) -> str:
    at = f" at {loop['place']}" if loop["place"] else ""
    return f"{loop['dataset']}, {loop['batching']}{at}"


def _rows(before: Loop, after: Loop) -> Iterator[Row]:
    counts = ["-" if one is None else f"{one['batches']:,}" for one in (before, after)]
    if counts[0] != counts[1]:
        yield "  batches", *counts, ""  # type: ignore[misc]
    if before is None or after is None:
        return
    seconds = [loop["waited"] + loop["worked"] for loop in (before, after)]
    yield _times("  the loop", *seconds)
    shares = [f"{100 * loop['wait_share']:.0f} %" for loop in (before, after)]
    yield "  waited", *shares, ""  # type: ignore[misc]
    for what, form in (("batches", ".1f"), ("samples", ".0f")):
        if before[what] and after[what]:
            one, other = (loop[what] / max(taken, 1e-9) for loop, taken in zip((before, after), seconds, strict=True))
            yield f"  {what}/s", f"{one:,{form}}", f"{other:,{form}}", f"{other / one:.2f}x"


def _times(name: str, before: float, after: float) -> Row:
    return name, duration(before), duration(after), f"{before / after:.2f}x" if after > 0 else ""


def parsed(text: str) -> Mapping[str, Any]:
    """Return the figures of a run from their JSON. Raises ValueError."""
    figures = json.loads(text)
    if not isinstance(figures, dict) or "loops" not in figures:
        raise ValueError("no figures of a run")
    return figures

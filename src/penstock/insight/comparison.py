"""A program run twice, with torch's loader and with Penstock's in its place: what each took, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.insight.run_report import duration

_COLUMNS = ("", "torch's loader", "Penstock's", "")


@dataclass(frozen=True)
class Pair:
    """The loops over one loader, before and after; None: that run had no such loop."""

    loader: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Pair]:
    """Return the loops of two runs side by side: those over the loaders of one line and one type of dataset.

    before, after: the figures of the runs (RunReport.as_json, parsed).
    """
    rest = list(after["loops"])
    found = []
    for one in before["loops"]:
        other = next((other for other in rest if _place(other) == _place(one)), None)
        if other is not None:
            rest.remove(other)
        found.append(Pair(_name(one), one, other))
    return [*found, *(Pair(_name(other), None, other) for other in rest)]


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of two runs' figures."""
    rows = [_COLUMNS, _times("the program", before["seconds"], after["seconds"])]
    for pair in pairs(before, after):
        rows.append((pair.loader, "", "", ""))
        rows += _rows(pair)
    widths = [max(len(row[column]) for row in rows if row[1]) for column in range(4)]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    if not row[1]:
        return row[0]
    name, first, second, ratio = row
    return f"{name:<{widths[0]}}  {first:>{widths[1]}}  {second:>{widths[2]}}  {ratio:>{widths[3]}}".rstrip()


def _rows(pair: Pair) -> list[tuple[str, str, str, str]]:
    before, after = pair.before, pair.after
    if before is None or after is None:
        known = before or after
        assert known is not None
        cells = [f"{known['batches']:,}" if one is known else "-" for one in (before, after)]
        return [("  batches", cells[0], cells[1], "")]
    rows = []
    if before["batches"] != after["batches"]:
        rows.append(("  batches", f"{before['batches']:,}", f"{after['batches']:,}", ""))
    rows.append(_times("  the loop", _loop_seconds(before), _loop_seconds(after)))
    rows.append(("  waited", _percent(before["wait_share"]), _percent(after["wait_share"]), ""))
    rows.append(_rates("  batches/s", _rate(before, "batches"), _rate(after, "batches"), ".1f"))
    if before["samples"] and after["samples"]:
        rows.append(_rates("  samples/s", _rate(before, "samples"), _rate(after, "samples"), ".0f"))
    return rows


def _times(name: str, before: float, after: float) -> tuple[str, str, str, str]:
    return name, duration(before), duration(after), _ratio(before, after)


def _rates(name: str, before: float, after: float, form: str) -> tuple[str, str, str, str]:
    return name, f"{before:,{form}}", f"{after:,{form}}", _ratio(after, before)


def _ratio(more: float, less: float) -> str:
    return f"{more / less:.2f}x" if less > 0 else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _loop_seconds(loop: Mapping[str, Any]) -> float:
    return float(loop["waited"] + loop["worked"])


def _rate(loop: Mapping[str, Any], what: str) -> float:
    seconds = _loop_seconds(loop)
    return loop[what] / seconds if seconds > 0 else 0.0


def _place(loop: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what is the same of a loop in both runs: the class may be another, and the number of workers too."""
    return loop["place"], loop["dataset"], loop["batching"]


def _name(loop: Mapping[str, Any]) -> str:
    at = f" at {loop['place']}" if loop["place"] else ""
    return f"{loop['dataset']}, {loop['batching']}{at}"


def parsed(text: str) -> Mapping[str, Any]:
    """Return the figures of a run from their JSON. Raises ValueError."""
    figures = json.loads(text)
    if not isinstance(figures, dict) or "loops" not in figures:
        raise ValueError("no figures of a run")
    return figures

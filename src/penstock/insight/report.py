"""A recording as one HTML page that needs nothing from outside: no script, no font, no picture, no network.

The page's Content-Security-Policy lets nothing be loaded or run, whatever a name in it says. The charts are SVG, whose
colours are classes of the page's style.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.insight.loop_rows import Numbers, column
from penstock.insight.recording import Loop, Recording
from penstock.insight.run_report import advice, plain_sentence
from penstock.insight.templates import page_of
from penstock.system.output_files import OutputFile
from penstock.system.words import compact, counted

#: Parts that the time of a chart is cut into.
PARTS = 200

#: Layers of the chart of the loop's time, by the classes of their colours.
_KEYS = (("worked", "worked"), ("waited", "waited"), ("waited for the first batch of a pass", "first"))


def write_report(recording: Recording, file: OutputFile, facts: Mapping[str, str]) -> None:
    """Write a recording as a page. facts: of the run, by name. Raises OSError."""
    with file.opened() as opened:
        opened.write(page(recording, facts).encode("utf-8", "backslashreplace"))


def page(recording: Recording, facts: Mapping[str, str]) -> str:
    end = recording.began if recording.ended is None else recording.ended
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.began_at))
    whole = {**facts, "began": began, "took": f"{compact(end - recording.began)} s"}
    missing = recording.unrecorded
    return page_of(
        "report.html",
        title=f"Penstock report: {facts.get('program', '')}",
        facts=whole.items(),
        loaders=[_of_loop(loop, recording.began, end) for loop in recording.all_loops()],
        keys=_KEYS,
        unrecorded=counted(missing, "pass", "passes") if missing else "",
    )


def _of_loop(loop: Loop, begin: float, end: float) -> dict[str, Any]:
    """Return what the page says of a loop, with charts of the time from begin to end."""
    stages = sorted(loop.stages.items(), key=lambda item: -item[1][0])
    samples = loop.samples or max((count for _, (_, count) in stages), default=0)
    done = [counted(loop.times.batches, "batch", "batches"), counted(samples, "sample")]
    done += [counted(loop.passes, "pass", "passes"), f"read by {loop.read_by}"]
    total = sum(seconds for _, (seconds, _) in stages) or 1.0
    failed, kinds = loop.meter.failed, ", ".join(sorted({kind for _, kind in loop.errors}))
    return {
        "number": loop.number,
        "title": loop.loader.place or loop.loader.dataset,
        "kind": str(loop.loader),
        "waited": loop.times.waited,
        "advice": advice(loop),
        "verdict": plain_sentence(loop),
        "done": ", ".join(done),
        "errors": f"{counted(failed, 'error')} came instead of a batch: {kinds}" if failed else "",
        "charts": list(_charts(loop, begin, end)) if loop.times.batches else [],
        "stages": [
            (name, f"{s / total:.1%}", compact(s), f"{n:,}", compact(s / n * 1e6), 100 * s / total)
            for name, (s, n) in stages
        ],
        "explained": loop.explained.splitlines(),
    }


# --- charts -------------------------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A chart of time, as the template draws it: lengths are shares of it."""

    title: str
    top: str
    """What is at its top; 0 is at its bottom."""
    times: list[str]
    """Along its foot, as far from each other."""
    bars: list[tuple[str, float, float, float, float, str]]
    """The class, place, size and text of each."""


def _charts(loop: Loop, begin: float, end: float) -> Iterator[Chart]:
    shares = time_shares(loop, begin, end, PARTS)
    length = float(shares.edges[1] - shares.edges[0])
    layers = [100 * amount / length for amount in (shares.worked, shares.waited, shares.first_waited)]
    yield _stacked("What the loop did", layers, shares.edges, "%", 100.0)
    # The samples of batches that go to a device are not known.
    what, amounts = ("samples", shares.samples) if loop.samples else ("batches", shares.batches)
    ran = shares.waited + shares.first_waited + shares.worked
    rates = np.where(ran > 0.01 * length, amounts / np.maximum(ran, 1e-9), 0.0)
    yield _stacked(f"{what.capitalize()} a second", [rates], shares.edges, f"{what}/s")


def _stacked(title: str, layers: Sequence[Numbers], edges: Numbers, unit: str, top: float = 0.0) -> Chart:
    """Return a chart of (n,) values over time that lie on each other, a layer for each of _KEYS."""
    bars = []
    floor = np.zeros(len(edges) - 1)
    step, top = 1 / len(floor), top or max(float(layers[0].max()), 1e-9)
    for (name, kind), values in zip(_KEYS, layers, strict=False):
        for place in np.flatnonzero(values > 1e-4 * top).tolist():
            low, high = (min(1.0, float(value) / top) for value in (floor[place], floor[place] + values[place]))
            said = f"{name}: {compact(values[place])} {unit}" if len(layers) > 1 else f"{compact(values[place])} {unit}"
            words = f"{said}, {compact(edges[place] - edges[0])} s after the beginning"
            bars.append((kind, place * step, 1 - high, 1.1 * step, high - low, words))
        floor += values
    times = [f"{compact((edges[-1] - edges[0]) * share)} s" for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return Chart(title, f"{compact(top)} %" if unit == "%" else compact(top), times, bars)


# --- numbers ------------------------------------------------------------------------------------------------------


class TimeShares(NamedTuple):
    """Sums in n equal parts of a stretch of time, each of shape (n,)."""

    edges: Numbers
    """(n + 1,): where the parts begin and end, by time.perf_counter()."""
    first_waited: Numbers
    """Seconds waited for the first batches of passes, in which workers start."""
    waited: Numbers
    """Seconds waited for the other batches."""
    worked: Numbers
    samples: Numbers
    """Handed to the loop, in as many batches:"""
    batches: Numbers


def time_shares(loop: Loop, begin: float, end: float, parts: int) -> TimeShares:
    """Return how the time from begin to end divides, which are times of time.perf_counter().

    A batch and its samples count evenly over the time from the batch before.
    """
    edges = np.linspace(begin, max(end, begin + 1e-6), parts + 1)
    sums = np.zeros((5, parts))
    for table in loop.rows.passes():
        start, got = np.maximum(column(table, "start"), begin), column(table, "got")
        asked = np.clip(got - column(table, "waited"), start, got)
        times = np.stack([start, asked, got], axis=1).ravel()
        even = (asked - start) / np.maximum(got - start, 1e-9)
        before_asking: dict[str, Numbers | float] = {
            "first_waited": 0.0,
            "waited": 0.0,
            "worked": 1.0,
            "samples": even,
            "batches": even,
        }
        for place, (name, share) in enumerate(before_asking.items()):
            amount = column(table, name)
            steps = np.stack([np.zeros_like(got), amount * share, amount * (1.0 - share)], axis=1)
            sums[place] += np.diff(np.interp(edges, times, np.cumsum(steps)))
    sums[1] -= sums[0]
    return TimeShares(edges, *np.maximum(sums, 0))

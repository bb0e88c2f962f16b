"""A recording as one HTML page that needs nothing from outside: no script, no font, no picture, no network.

The page's Content-Security-Policy lets nothing be loaded or run, whatever a name in it says. The charts are SVG, whose
colours are classes of the page's style.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from penstock.insight.batch_rows import PassRows, column, passes_of
from penstock.insight.recording import LoaderRecord, Recording
from penstock.insight.templates import page_of
from penstock.showing import shown
from penstock.system.output_files import OutputFile
from penstock.system.words import compact, counted

Numbers = NDArray[np.float64]
#: Returns what a report says of a loader in one sentence.
Verdict = Callable[[LoaderRecord], str]

#: Parts that the time of a chart is cut into.
PARTS = 200
#: Of a chart, in units of its viewBox.
_WIDTH, _HEIGHT = 896, 120
#: Stages that the sentence names, at the most.
_MOST_STAGES = 3

#: Layers of the chart of the loop's time, by the classes of their colours.
_KEYS = (("worked", "worked"), ("waited", "waited"), ("waited for the first batch of a pass", "first"))


def write_report(recording: Recording, file: OutputFile, facts: Mapping[str, str], verdict: Verdict) -> None:
    """Write a recording as a page. facts: of the run, by name. Raises OSError."""
    with file.opened() as opened:
        opened.write(page(recording, facts, verdict).encode("utf-8", "backslashreplace"))


def page(recording: Recording, facts: Mapping[str, str], verdict: Verdict) -> str:
    """Return the page."""
    end = recording.began if recording.ended is None else recording.ended
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.began_at))
    whole = {**facts, "began": began, "took": f"{compact(end - recording.began)} s"}
    missing = recording.unrecorded
    return page_of(
        "report.html",
        title=f"Penstock report: {facts.get('program', '')}",
        facts=whole.items(),
        loaders=[_of_loader(loader, verdict, recording.began, end) for loader in recording.loaders],
        keys=_KEYS,
        unrecorded=counted(missing, "pass", "passes") if missing else "",
    )


def _of_loader(loader: LoaderRecord, verdict: Verdict, begin: float, end: float) -> dict[str, Any]:
    """Return what the page says of a loader, with charts of the time from begin to end."""
    table, readings = loader.rows.table(), loader.readings
    samples = int(column(table, "samples").sum()) or (readings[-1].samples - readings[0].samples if readings else 0)
    done = [counted(int(column(table, "batches").sum()), "batch", "batches"), counted(samples, "sample")]
    done += [counted(loader.passes, "pass", "passes"), f"read by {loader.read_by}"]
    kinds = ", ".join(sorted({kind for _, kind in loader.errors}))
    stages = sorted(stage_seconds(loader).items(), key=lambda item: -item[1][0])
    total = sum(seconds for _, (seconds, _) in stages) or 1.0
    return {
        "number": loader.number,
        "title": loader.title,
        "verdict": verdict(loader),
        "done": ", ".join(done),
        "errors": f"{counted(loader.failed, 'error')} came in the place of a batch: {kinds}" if loader.failed else "",
        "charts": list(_charts(loader, begin, end)) if len(table) else [],
        "waits": _waits(loader),
        "stages": [
            (name, f"{s / total:.1%}", compact(s), f"{n:,}", compact(s / n * 1e6), 100 * s / total)
            for name, (s, n) in stages
        ],
        "explained": Markup("\n").join(map(shown, loader.explained.splitlines())),
        "options": sorted(loader.options.items()),
    }


def _charts(loader: LoaderRecord, begin: float, end: float) -> Iterator[Chart]:
    shares = time_shares(loader, begin, end, PARTS)
    length = float(shares.edges[1] - shares.edges[0])
    layers = [amount / length for amount in (shares.worked, shares.waited, shares.first_waited)]
    yield _stacked("What the loop did", layers, shares.edges)
    yield _curve("Samples a second", shares.samples / length, shares.edges, "samples/s")
    spent = shares.waited + shares.worked
    waits = np.divide(100 * shares.waited, spent, out=np.zeros_like(spent), where=spent > 0)
    yield _curve("Share of waiting, %", waits, shares.edges, "%")


def _waits(loader: LoaderRecord) -> list[tuple[str, str, float]]:
    """Return how many batches were waited for, in classes of length: of all passes of the loader."""
    if loader.stats is None or not any(waits := loader.stats.loop.waits):
        return []
    known = [place for place, count in enumerate(waits) if count]
    places = range(known[0], known[-1] + 1)
    return [(f"{compact(2**place / 1e3)} ms", f"{waits[place]:,}", 100 * waits[place] / max(waits)) for place in places]


# --- charts -------------------------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A chart of time, as the template draws it: lengths are in units of its viewBox."""

    title: str
    top: str
    """What is at its top; 0 is at its bottom."""
    times: list[tuple[float, str, str]]
    """Along its foot: the place, the text, and how the text lies there."""
    bars: list[tuple[str, float, float, float, float, str]]
    """The class, place, size and text of each."""
    points: str = ""
    """Of a line."""


def _stacked(title: str, layers: Sequence[Numbers], edges: Numbers) -> Chart:
    """Return a chart of (n,) shares, 0 to 1, that lie on each other, a layer for each of _KEYS."""
    bars = []
    floor = np.zeros(len(edges) - 1)
    step = _WIDTH / len(floor)
    for (name, kind), shares in zip(_KEYS, layers, strict=True):
        for place in np.flatnonzero(shares > 1e-4).tolist():
            low, high = float(floor[place]), min(1.0, float(floor[place] + shares[place]))
            words = f"{name}: {shares[place]:.0%}, {compact(edges[place] - edges[0])} s after the beginning"
            tall = max(0.0, _HEIGHT * (high - low))
            bars.append((kind, place * step, _HEIGHT * (1 - high), step + 0.1, tall, words))
        floor += shares
    return Chart(title, "100 %", _times(edges), bars)


def _curve(title: str, values: Numbers, edges: Numbers, unit: str) -> Chart:
    """Return a chart of (n,) values over time, from 0 to the greatest."""
    top, step = float(values.max()), _WIDTH / len(values)
    heights = _HEIGHT * (1 - values / top) if top > 0 else np.full(len(values), float(_HEIGHT))
    points = [f"{(i + side) * step:.2f},{y:.2f}" for i, y in enumerate(heights.tolist()) for side in (0, 1)]
    after = [f"{compact(at - edges[0])} s after the beginning" for at in edges[:-1].tolist()]
    bars = [
        ("hover", place * step, 0.0, step, float(_HEIGHT), f"{compact(value)} {unit}, {after[place]}")
        for place, value in enumerate(values.tolist())
    ]
    return Chart(title, compact(top), _times(edges), bars, " ".join(points))


def _times(edges: Numbers) -> list[tuple[float, str, str]]:
    places = ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end"))
    return [(_WIDTH * share, f"{compact((edges[-1] - edges[0]) * share)} s", anchor) for share, anchor in places]


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
    """Handed to the loop."""


def time_shares(recorded: LoaderRecord, begin: float, end: float, parts: int) -> TimeShares:
    """Return how the time from begin to end divides, which are times of time.perf_counter()."""
    edges = np.linspace(begin, max(end, begin + 1e-6), parts + 1)
    sums = np.zeros((4, parts))
    for one in passes_of(recorded.rows.table()):
        for place, name in enumerate(("first_waited", "waited", "worked")):
            sums[place] += _in_parts(one, name, edges)
        sums[3] += np.histogram(column(one.table, "got"), edges, weights=column(one.table, "samples"))[0]
    sums[1] -= sums[0]
    if not sums[3].any() and len(recorded.readings) > 1:  # batches that go to a device: their executor counts samples
        times, counts = zip(*((reading.time, reading.samples) for reading in recorded.readings), strict=True)
        sums[3] = np.diff(np.interp(edges, times, counts))
    return TimeShares(edges, *np.maximum(sums, 0))


def _in_parts(one: PassRows, name: str, edges: Numbers) -> Numbers:
    """Return how many of a column's seconds lie in each part: evenly within each wait, and each piece of work."""
    table, starts = one.table, one.starts
    got, amount = column(table, "got"), column(table, name)
    asked = np.clip(got - column(table, "waited"), starts, got)
    merged = column(table, "batches") > 1  # waits and work take turns within such a row
    middle = np.where(merged, (starts + got) / 2, asked)
    early = np.where(merged, amount / 2, amount if name == "worked" else 0.0)
    times = np.stack([starts, middle, got], axis=1).ravel()
    steps = np.stack([np.zeros_like(early), early, amount - early], axis=1).ravel()
    return np.diff(np.interp(edges, times, np.cumsum(steps)))


def stage_seconds(recorded: LoaderRecord) -> dict[str, tuple[float, int]]:
    """Return the seconds and samples of each stage while the loader was recorded."""
    if recorded.first is None or recorded.stats is None:
        return {}
    found = {}
    for name, time_ in recorded.stats.stages.items():
        seconds, samples = time_.seconds, time_.samples
        if (old := recorded.first.stages.get(name)) is not None:
            seconds, samples = seconds - old.seconds, samples - old.samples
        if samples > 0:
            found[name] = (max(0.0, seconds), samples)
    return found


def plain_verdict(recorded: LoaderRecord) -> str:
    """Return how long the loop waited, and in which stages the workers spent most of their time."""
    if recorded.stats is not None and recorded.stats.verdict:
        return recorded.stats.verdict
    table = recorded.rows.table()
    if not len(table):
        return "No batch was handed out."
    first = column(table, "first_waited").sum()
    waited, worked = column(table, "waited").sum() - first, column(table, "worked").sum()
    batches = int(column(table, "batches").sum())
    steps = max(batches - recorded.passes, 1)
    share = waited / (waited + worked) if waited + worked > 0 else 0.0
    said = f"The loop waited {share:.0%} of the time ({compact(waited / steps * 1e3)} ms a step)"
    said += f" for {counted(batches, 'batch', 'batches')}"
    if first > 0.05 * (first + waited + worked):
        said += f", and {compact(first)} s for the first batch of each pass, in which workers start"
    found = stage_seconds(recorded)
    if (total := sum(seconds for seconds, _ in found.values())) > 0:
        most = sorted(found.items(), key=lambda item: -item[1][0])[:_MOST_STAGES]
        said += f"; of the workers' time {', '.join(f'{name} took {s / total:.0%}' for name, (s, _) in most)}"
    return f"{said}."

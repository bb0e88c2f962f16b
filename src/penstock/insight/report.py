"""A recording as one HTML page that needs nothing from outside: no script, no font, no picture, no network.

The page's Content-Security-Policy lets nothing be loaded or run, whatever a name in it says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from penstock.insight.batch_rows import column
from penstock.insight.charts import columns, curve, stacked
from penstock.insight.output_file import OutputFile
from penstock.insight.recording import LoaderRecording, Recording
from penstock.insight.summary import Verdict, stage_seconds
from penstock.insight.time_shares import time_shares
from penstock.showing import shown
from penstock.system.words import compact, counted

#: Parts that the time of a chart is cut into.
PARTS = 200

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #66727f; --ground: #eef1f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --paper: #14191f; --faint: #94a1ae; --ground: #232b34; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
.verdict { font-size: 1.15rem; border-left: 4px solid #d1495b; padding: .3rem .9rem; background: var(--ground); }
.faint, svg text { color: var(--faint); fill: var(--faint); } svg { width: 100%; height: auto; font-size: 11px; }
.ground { fill: var(--ground); } .waited { fill: #d1495b; } .first { fill: #edae49; } .worked { fill: #3a8f7b; }
.line { fill: none; stroke: #2f6fb0; stroke-width: 1.5; } .bar { fill: #2f6fb0; } .hover { fill: transparent; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
td.number, th.number { text-align: right; } td.share { width: 20rem; }
td.share div { background: #2f6fb0; height: .9rem; }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
.key.waited { background: #d1495b; } .key.first { background: #edae49; } .key.worked { background: #3a8f7b; }
pre { background: var(--ground); padding: .8rem; overflow-x: auto; font-size: 13px; }
"""


def write_report(recording: Recording, file: OutputFile, facts: Mapping[str, str], verdict: Verdict) -> None:
    """Write a recording as a page. facts: of the run, by name. Raises OSError."""
    with file.opened() as opened:
        for part in page(recording, facts, verdict):
            opened.write(part.encode("utf-8", "backslashreplace"))


def page(recording: Recording, facts: Mapping[str, str], verdict: Verdict) -> Iterator[str]:
    """Yield the page, part by part."""
    title = text(f"Penstock report: {facts.get('program', '')}")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n<body>\n'
    end = recording.began if recording.ended is None else recording.ended
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.began_at))
    yield f"<h1>{title}</h1>\n"
    yield _table(
        ("", ""), [*facts.items(), ("began", began), ("took", f"{compact(end - recording.began)} s")], head=False
    )
    if not recording.loaders:
        yield "<p>No loader of Penstock's was gone through.</p>\n"
    for loader in recording.loaders:
        yield from _LoaderSection(loader, verdict).parts(recording.began, end)
    if recording.unrecorded:
        yield f"<p>{counted(recording.unrecorded, 'pass', 'passes')} of further loaders were not recorded.</p>\n"
    yield "</body>\n</html>\n"


class _LoaderSection:
    """What the page says of one loader."""

    def __init__(self, loader: LoaderRecording, verdict: Verdict) -> None:
        self._loader = loader
        self._verdict = verdict

    def parts(self, begin: float, end: float) -> Iterator[str]:
        """Yield the section, whose charts are of the time from begin to end."""
        loader = self._loader
        yield f"<section>\n<h2>Loader {loader.number}: {text(loader.title)}</h2>\n"
        yield f'<p class="verdict">{text(self._verdict(loader))}</p>\n'
        table = loader.rows.table()
        batches, samples = column(table, "batches").sum(), self._samples()
        done = [counted(int(batches), "batch", "batches"), counted(samples, "sample")]
        done += [counted(loader.passes, "pass", "passes"), f"read by {text(loader.read_by)}"]
        yield f"<p>{', '.join(done)}.</p>\n"
        if loader.failed:
            kinds = sorted({kind for _, kind in loader.errors})
            yield f"<p>{counted(loader.failed, 'error')} came in the place of a batch: {text(', '.join(kinds))}.</p>\n"
        if len(table):
            yield from self._charts(begin, end)
        yield from self._stages()
        if loader.explained:
            explained = "\n".join(text(line) for line in loader.explained.splitlines())
            yield f"<h3>What explain() says</h3>\n<pre>{explained}</pre>\n"
        yield f"<h3>Options</h3>\n{_table(('option', 'value'), sorted(loader.options.items()))}"
        yield "</section>\n"

    def _samples(self) -> int:
        readings = self._loader.readings
        counted_by_rows = int(column(self._loader.rows.table(), "samples").sum())
        return counted_by_rows or (readings[-1].samples - readings[0].samples if readings else 0)

    def _charts(self, begin: float, end: float) -> Iterator[str]:
        shares = time_shares(self._loader, begin, end, PARTS)
        length = shares.length
        layers = [
            ("worked", "worked", shares.worked / length),
            ("waited", "waited", shares.waited / length),
            ("waited for the first batch of a pass", "first", shares.first_waited / length),
        ]
        keys = "".join(f'<span class="key {kind}"></span>{text(name)}' for name, kind, _ in layers)
        yield f"<h3>What the loop did</h3>\n<p>{keys}</p>\n{stacked(layers, shares.edges, 'What the loop did')}\n"
        yield f"<h3>Samples a second</h3>\n{curve(shares.samples / length, shares.edges, 'Throughput', 'samples/s')}\n"
        spent = shares.waited + shares.worked
        waits = np.divide(100 * shares.waited, spent, out=np.zeros_like(spent), where=spent > 0)
        yield f"<h3>Share of waiting, %</h3>\n{curve(waits, shares.edges, 'Share of waiting', '%')}\n"
        yield from self._waits()

    def _waits(self) -> Iterator[str]:
        """Yield how long the loop waited for a batch, in classes of length: of all passes of the loader."""
        stats = self._loader.stats
        if stats is None or not any(waits := stats.loop.waits):
            return
        last = max(place for place, count in enumerate(waits) if count)
        first = min(place for place, count in enumerate(waits) if count)
        labels = [_microseconds(1 << place) for place in range(first, last + 1)]
        chart = columns(waits[first : last + 1], labels, "Waits by length")
        yield f"<h3>Batches that were waited for up to ...</h3>\n{chart}\n"

    def _stages(self) -> Iterator[str]:
        found = sorted(stage_seconds(self._loader).items(), key=lambda item: -item[1][0])
        total = sum(seconds for _, (seconds, _) in found) or 1.0
        if not found:
            yield "<p>The workers counted no stages: they are processes, or nothing was read.</p>\n"
            return
        yield "<h3>What the workers did, of all of their time</h3>\n<table><tr><th>stage</th><th></th>"
        yield '<th class="number">share</th><th class="number">seconds</th><th class="number">samples</th>'
        yield '<th class="number">us a sample</th></tr>\n'
        for name, (seconds, samples) in found:
            share = seconds / total
            bar = f'<td class="share"><div style="width: {share:.1%}"></div></td>'
            cells = (f"{share:.1%}", compact(seconds), f"{samples:,}", compact(seconds / samples * 1e6))
            numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
            yield f"<tr><td>{text(name)}</td>{bar}{numbers}</tr>\n"
        yield "</table>\n"


def text(words: str) -> str:
    """Return words as HTML: what is no printable character as an escape."""
    return escape(shown(words))


def _table(heads: Sequence[str], rows: Sequence[tuple[str, str]], *, head: bool = True) -> str:
    first = "<tr>" + "".join(f"<th>{text(one)}</th>" for one in heads) + "</tr>\n" if head else ""
    return (
        f"<table>{first}" + "".join(f"<tr><td>{text(a)}</td><td>{text(b)}</td></tr>\n" for a, b in rows) + "</table>\n"
    )


def _microseconds(value: int) -> str:
    if value < 1000:
        return f"{value} us"
    return f"{value / 1000:.3g} ms" if value < 1_000_000 else f"{value / 1e6:.3g} s"

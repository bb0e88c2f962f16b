"""A recording as a trace for ui.perfetto.dev and chrome://tracing.

The format is the JSON of the "Trace Event Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which Perfetto opens as a legacy
format (https://perfetto.dev/docs/getting-started/other-formats): complete events ("X"), nestable
asynchronous ones ("b", "e"), counters ("C") and metadata ("M"), with times in microseconds.

A process of the trace is a loader. Its first tracks are the loop's: slices `wait` and `work`, and where a long run was
recorded slices that stand for several batches. A batch's making, from when the sampler gave it until the loop got it,
is an asynchronous slice. Below are worker threads, with a slice for each piece of work by the name of its stage;
readers, with a slice a file; and the thread that brings batches to a device, with a slice `copy` for each.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.insight.batch_rows import BatchRow, Lane, column, passes_of
from penstock.insight.recording import LoaderRecord, Recording
from penstock.showing import shown
from penstock.system.output_files import OutputFile

Event = dict[str, Any]

#: Where the tracks of worker threads begin among the numbers of a loader's tracks.
_THREADS = 1000


def write_trace(recording: Recording, file: OutputFile, facts: dict[str, str]) -> None:
    """Write a recording as a trace. facts: of the run, for the trace's metadata. Raises OSError."""
    with file.opened() as opened:
        other = json.dumps({**facts, "recorded by": "penstock"})
        opened.write(f'{{"displayTimeUnit": "ms", "otherData": {other}, "traceEvents": [\n'.encode())
        separator = b""
        for event in (event for loader in recording.loaders for event in _LoaderTrace(recording, loader).events()):
            opened.write(separator + json.dumps(event, allow_nan=False).encode())
            separator = b",\n"
        opened.write(b"\n]}\n")


class _LoaderTrace:
    """The events of one loader, a process of the trace."""

    def __init__(self, recording: Recording, loader: LoaderRecord) -> None:
        self._loader = loader
        self._began = recording.began
        self._pid = loader.number

    def events(self) -> Iterator[Event]:
        """Yield all of them."""
        loader = self._loader
        title = f"loader {loader.number}: {shown(loader.title)}, read by {loader.read_by}"
        yield self._metadata("process_name", 0, name=title)
        yield self._metadata("process_labels", 0, labels=f"{loader.options.get('num_workers')} workers")
        yield self._metadata("process_sort_index", 0, sort_index=loader.number)
        yield from self._loops()
        yield from self._threads()
        yield from self._counters()

    # --- the loop -----------------------------------------------------------------------------------------------

    def _loops(self) -> Iterator[Event]:
        passes = passes_of(self._loader.rows.table())
        tracks = tracks_for([(float(one.starts[0]), float(column(one.table, "got")[-1])) for one in passes])
        for track in sorted(set(tracks)):
            yield from self._track(track, "loop" if track == 0 else f"loop of another pass ({track})")
        for one, track in zip(passes, tracks, strict=True):
            for numbers, start, first in zip(one.table, one.starts, one.first, strict=True):
                row = BatchRow(*numbers.tolist())
                yield from self._row(row, float(start), one.number, int(first), track)
        for at, kind in self._loader.errors:
            yield self._event("i", f"error: {shown(kind)}", at, s="p")

    def _row(self, row: BatchRow, start: float, number: int, first: int, track: int) -> Iterator[Event]:
        about: Event = {"pass": number, "batch": first, "samples": int(row.samples)}
        if row.batches > 1:
            share = row.waited / (row.waited + row.worked) if row.waited + row.worked > 0 else 0.0
            about |= {"batches": int(row.batches), "waited_s": row.waited, "worked_s": row.worked}
            yield self._slice(f"{int(row.batches)} batches, {share:.0%} waited", start, row.got, track, about)
            return
        asked = max(start, row.got - row.waited)
        if row.worked:
            yield self._slice("work", start, asked, track, {"pass": number, "before_batch": first})
        if not row.batches:
            return
        yield self._slice("wait", asked, row.got, track, {**about, "waited_s": row.waited})
        if row.begun and row.begun <= row.got:
            identity: Event = {"cat": "batch", "id": f"{self._pid}.{number}.{first}"}
            yield self._event("b", f"batch {first}", row.begun, args=about, **identity)
            yield self._event("e", f"batch {first}", row.got, **identity)

    # --- threads ------------------------------------------------------------------------------------------------

    def _threads(self) -> Iterator[Event]:
        track = _THREADS
        lanes = [lane for lane in self._loader.spans.lanes() if len(lane.table)]
        for name in sorted({lane.thread for lane in lanes}):
            alike = [lane for lane in lanes if lane.thread == name]
            places = tracks_for([(float(lane.table[0, 1]), float(lane.table[:, 2].max())) for lane in alike])
            for place in range(max(places) + 1):
                yield from self._track(track + place, shown(name))
            for lane, place in zip(alike, places, strict=True):
                yield from self._lane(lane, track + place)
            track += max(places) + 1
        if lost := self._loader.spans.lost:
            yield self._metadata("thread_name", track, name=f"{lost:,} earlier pieces of work are not kept")

    def _lane(self, lane: Lane, track: int) -> Iterator[Event]:
        end = -np.inf
        for stage, begin, ended, samples in lane.table[np.argsort(lane.table[:, 1], kind="stable")].tolist():
            start = max(begin, end)
            end = max(end, ended)
            if ended >= start:
                yield self._slice(shown(lane.stages[int(stage)]), start, ended, track, {"samples": int(samples)})

    # --- counters -----------------------------------------------------------------------------------------------

    def _counters(self) -> Iterator[Event]:
        for before, now in pairwise(self._loader.readings):
            waited = now.steady - before.steady
            total = waited + now.worked - before.worked
            if total > 0:
                yield self._counter("waited, %", now.time, 100 * min(1.0, max(0.0, waited / total)))
            if now.time > before.time:
                yield self._counter("samples/s", now.time, (now.samples - before.samples) / (now.time - before.time))
            yield self._counter("readers at work", now.time, now.depth)
        table = self._loader.rows.table()
        making = table[column(table, "begun") > 0]
        times = np.concatenate([column(making, "begun"), column(making, "got")])
        steps = np.repeat([1, -1], len(making))
        order = np.argsort(times, kind="stable")
        for at, count in zip(times[order].tolist(), np.cumsum(steps[order]).tolist(), strict=True):
            yield self._counter("batches in the making", at, count)

    def _counter(self, name: str, at: float, value: float) -> Event:
        return self._event("C", name, at, args={"value": round(value, 3)})

    # --- events -------------------------------------------------------------------------------------------------

    def _at(self, seconds: float) -> int:
        """Return a time in nanoseconds since the recording began. Rounded, ends stay where the next ones begin."""
        return max(0, round((seconds - self._began) * 1e9))

    def _event(self, kind: str, name: str, at: float, track: int = 0, **more: Any) -> Event:
        return {"ph": kind, "name": name, "pid": self._pid, "tid": track, "ts": self._at(at) / 1e3, **more}

    def _slice(self, name: str, begin: float, end: float, track: int, about: Event) -> Event:
        long = max(0, self._at(end) - self._at(begin))
        return self._event("X", name, begin, track, dur=long / 1e3, args=about)

    def _track(self, track: int, name: str) -> Iterator[Event]:
        yield self._metadata("thread_name", track, name=name)
        yield self._metadata("thread_sort_index", track, sort_index=track)

    def _metadata(self, kind: str, track: int, **about: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": self._pid, "tid": track, "args": about}


def tracks_for(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return for each (begin, end) the number of a track, the lowest that is free, so that none overlap on one."""
    order = sorted(range(len(spans)), key=lambda one: spans[one])
    tracks = [0] * len(spans)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for one in order:
        begin, end = spans[one]
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        tracks[one] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, tracks[one]))
    return tracks

"""A recording as a trace for ui.perfetto.dev and chrome://tracing.

The format is the JSON of the "Trace Event Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which Perfetto opens as a legacy
format (https://perfetto.dev/docs/getting-started/other-formats): complete events ("X"), nestable
asynchronous ones ("b", "e") and metadata ("M"), with times in microseconds.

A process of the trace is a loader. Its first tracks are the loop's, with slices `wait` and `work`. A batch's making,
from when the sampler gave it until the loop got it, is an asynchronous slice. Below are worker threads, with a slice
for each piece of work by the name of its stage; readers, with a slice a file; and the thread that brings batches to a
device, with a slice `copy` for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.insight.loop_rows import COLUMNS
from penstock.insight.recording import Loop, Recording
from penstock.showing import shown
from penstock.system.output_files import OutputFile

Event = dict[str, Any]

#: Where the tracks of worker threads begin among the numbers of a loader's tracks.
_THREADS = 1000
#: Work of one thread that seems to begin so many seconds before its last one ended follows it.
_CLOSE = 1e-6


def write_trace(recording: Recording, file: OutputFile, facts: dict[str, str]) -> None:
    """Write a recording as a trace. facts: of the run, for the trace's metadata. Raises OSError."""
    with file.opened() as opened:
        other = json.dumps({**facts, "recorded by": "penstock"})
        opened.write(f'{{"displayTimeUnit": "ms", "otherData": {other}, "traceEvents": [\n'.encode())
        separator = b""
        for event in (event for loop in recording.all_loops() for event in _LoopTrace(recording, loop).events()):
            opened.write(separator + json.dumps(event, allow_nan=False).encode())
            separator = b",\n"
        opened.write(b"\n]}\n")


class _LoopTrace:
    """The events of the loops over one loader, a process of the trace."""

    def __init__(self, recording: Recording, loop: Loop) -> None:
        self._loop, self._pid = loop, loop.number
        self._began = recording.began

    def events(self) -> Iterator[Event]:
        loop = self._loop
        yield self._metadata("process_name", 0, name=f"{shown(str(loop.loader))}, read by {loop.read_by}")
        yield self._metadata("process_sort_index", 0, sort_index=loop.number)
        yield from self._batches()
        yield from self._threads()

    # --- the loop -----------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Event]:
        passes = self._loop.rows.passes()
        tracks = tracks_for([(float(table[0, 0]), float(table[-1, 1])) for table in passes])
        for track in sorted(set(tracks)):
            yield from self._track(track, "loop" if track == 0 else f"loop of another pass ({track})")
        for table, track in zip(passes, tracks, strict=True):
            for row in table.tolist():
                yield from self._row(dict(zip(COLUMNS, row, strict=True)), track)
        for at, kind in self._loop.errors:
            yield self._event("i", f"error: {shown(kind)}", at, s="p")

    def _row(self, row: dict[str, float], track: int) -> Iterator[Event]:
        start, got, waited, worked = row["start"], row["got"], row["waited"], row["worked"]
        number, batches, first = int(row["number"]), int(row["batches"]), int(row["done"] - row["batches"])
        about: Event = {"pass": number, "batch": first, "samples": int(row["samples"])}
        asked = max(start, got - waited)
        if worked:
            yield self._slice("work", start, asked, track, {"pass": number, "before_batch": first})
        if not batches:
            return
        yield self._slice("wait", asked, got, track, {**about, "waited_s": waited})
        if 0 < row["begun"] <= got:
            identity: Event = {"cat": "batch", "id": f"{self._pid}.{number}.{first}"}
            yield self._event("b", f"batch {first}", row["begun"], args=about, **identity)
            yield self._event("e", f"batch {first}", got, **identity)

    # --- threads ------------------------------------------------------------------------------------------------

    def _threads(self) -> Iterator[Event]:
        first = _THREADS
        for name, done in self._loop.spans.by_thread().items():
            tracks = tracks_for([(one.begin, one.end) for one in done])  # threads of one name may work at the same time
            ends = [self._began] * (max(tracks) + 1)
            for (_, stage, begin, end, samples), track in zip(done, tracks, strict=True):
                begin = max(begin, ends[track])
                ends[track] = max(begin, end)
                yield self._slice(shown(stage), begin, ends[track], first + track, {"samples": int(samples)})
            for track in range(len(ends)):
                yield from self._track(first + track, shown(name))
            first += len(ends)

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
    tracks = [0] * len(spans)
    ends: list[float] = []  # of each track so far
    for one in sorted(range(len(spans)), key=lambda one: spans[one]):
        begin, end = spans[one]
        tracks[one] = next((track for track, busy in enumerate(ends) if busy <= begin + _CLOSE), len(ends))
        ends[tracks[one] : tracks[one] + 1] = [end]
    return tracks

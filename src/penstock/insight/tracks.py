"""Slices of a timeline on tracks, so that no two of a track overlap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.insight.batch_rows import column


class PassRows(NamedTuple):
    """The rows of one pass, by the time of its batches."""

    number: int
    """Of the pass."""
    table: NDArray[np.float64]
    """Rows as in BatchRows, by `got`."""
    starts: NDArray[np.float64]
    """When each row begins, at the end of the one before at the earliest."""
    first: NDArray[np.int64]
    """The number of each row's first batch in its pass, from 0 on."""


def passes_of(table: NDArray[np.float64]) -> list[PassRows]:
    """Return the rows of each pass, in the order in which the passes began."""
    found = []
    numbers = column(table, "number")
    for number in np.unique(numbers):
        rows = table[numbers == number]
        rows = rows[np.argsort(column(rows, "got"), kind="stable")]
        got, batches = column(rows, "got"), column(rows, "batches")
        # Threads that share a pass wait at the same time: what overlaps is the later one's.
        before = np.concatenate([[-np.inf], got[:-1]])
        starts = np.minimum(np.maximum(column(rows, "start"), before), got)
        first = (np.cumsum(batches) - batches).astype(np.int64)
        found.append(PassRows(int(number), rows, starts, first))
    return found


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

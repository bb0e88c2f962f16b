"""How the time of a recorded loader divides, in equal parts of the recording: waiting, work, samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.insight.batch_rows import column
from penstock.insight.recording import LoaderRecording
from penstock.insight.tracks import PassRows, passes_of

Seconds = NDArray[np.float64]


class TimeShares(NamedTuple):
    """Sums in n equal parts of a stretch of time, each of shape (n,)."""

    edges: Seconds
    """(n + 1,): where the parts begin and end, by time.perf_counter()."""
    first_waited: Seconds
    """Seconds waited for the first batches of passes, in which workers start."""
    waited: Seconds
    """Seconds waited for the other batches."""
    worked: Seconds
    samples: Seconds
    """Handed to the loop."""

    @property
    def length(self) -> float:
        """Return the seconds of a part."""
        return float(self.edges[1] - self.edges[0])


def time_shares(recorded: LoaderRecording, begin: float, end: float, parts: int) -> TimeShares:
    """Return how the time from begin to end divides, which are times of time.perf_counter()."""
    edges = np.linspace(begin, max(end, begin + 1e-6), parts + 1)
    sums = np.zeros((4, parts))
    for one in passes_of(recorded.rows.table()):
        for place, name in enumerate(("first_waited", "waited", "worked")):
            sums[place] += _in_parts(one, name, edges)
        sums[3] += np.histogram(column(one.table, "got"), edges, weights=column(one.table, "samples"))[0]
    sums[1] -= sums[0]
    if not sums[3].any():  # batches that go to a device: their executor has counted the samples
        times = np.array([reading.time for reading in recorded.readings])
        counts = np.array([reading.samples for reading in recorded.readings], dtype=np.float64)
        if len(times) > 1:
            sums[3] = np.diff(np.interp(edges, times, counts))
    return TimeShares(edges, *np.maximum(sums, 0))


def _in_parts(one: PassRows, name: str, edges: Seconds) -> Seconds:
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

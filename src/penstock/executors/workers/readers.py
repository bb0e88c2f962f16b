"""Native readers of files for passes whose samples native threads do not fill."""

from __future__ import annotations

import penstock._native as _native
from penstock.executors.workers.native import READERS, SAMPLES_AHEAD, read_ahead_bytes
from penstock.observe import Meter
from penstock.plan import PythonPlan
from penstock.sources.sample_reader import ReadAhead

#: Bytes of batches in flight, at the most, where more of them are in flight so that readers know of more samples.
IN_FLIGHT_BYTES = 64 << 20


class MeteredReaders:
    """Readers of files whose counts the loader's meter knows.

    Args:
        native: the readers.
        meter: of the loader.
    """

    def __init__(self, native: _native.FileReaders, meter: Meter) -> None:
        self.native = native
        self._meter, self._stages, self._reading = meter, native.stages, native.reading

    @classmethod
    def of(cls, program: _native.Program, meter: Meter, *, ahead: bool) -> MeteredReaders:
        """Return readers of a plan's files. ahead: False starts no thread."""
        return cls(_native.FileReaders(program, READERS if ahead else 0, read_ahead_bytes()), meter)

    def open(self) -> None:
        """Let the meter read their counts, until they are closed."""
        self._meter.open(self._stages)
        self._meter.reading.open(self._reading)

    def batches_ahead(self, samples: int, sample_bytes: int | None = None) -> int:
        """Return how many batches of so many samples are to be in flight for the readers; 0 where reads do not block.

        sample_bytes: of a sample in a batch in flight; None: a file.
        """
        if not self.native.depth:
            return 0
        if sample_bytes is None:
            counts = self.native.reading()
            sample_bytes = counts["bytes"] // max(1, counts["ahead"] + counts["awaited"])
        samples = max(1, samples)
        return min(-(-SAMPLES_AHEAD // samples), IN_FLIGHT_BYTES // max(1, samples * sample_bytes))

    def close(self) -> None:
        """End the readers, and wake the threads that wait for them."""
        self.native.close()
        self._meter.close(self._stages)
        self._meter.reading.close(self._reading)


class ThreadReaders(MeteredReaders):
    """Readers of the files that Python threads take.

    Attributes:
        ahead: knows the samples of batches in flight.
    """

    def __init__(self, ahead: ReadAhead, meter: Meter) -> None:
        super().__init__(ahead.native, meter)
        self.ahead = ahead

    def close(self) -> None:
        """End the readers, and wake the threads that wait for them."""
        self.ahead.close()
        super().close()


def readers_of(plan: PythonPlan, meter: Meter) -> ThreadReaders | None:
    """Return readers of the files that threads take from here on; None: no file of the plan's is known."""
    ahead = None if plan.assisted is None else plan.assisted.read_ahead(READERS, read_ahead_bytes())
    return None if ahead is None else ThreadReaders(ahead, meter)

"""Which worker process makes the next batch: each in turn, or, of an iterable dataset, the stream that is next."""

from __future__ import annotations

from penstock.state.streams import Streams


class Turns:
    """The turns of one pass.

    Args:
        prefetch: batches in flight for each worker.
        streams: of a dataset that has states; each worker may carry several.
        in_order: batches are handed out in the sampler's order.

    Attributes:
        depth: how many batches to keep in flight.
        loads: tasks of each worker without an answer.
        exhausted: workers of which nothing is asked any more.
    """

    def __init__(self, workers: int, prefetch: int, streams: Streams | None, *, in_order: bool) -> None:
        self._workers, self._prefetch = workers, prefetch
        self._count, self.in_order = workers, in_order
        if streams is not None and streams.split is not None:
            self._count = streams.split.count
            self.in_order = in_order or streams.split.deals
        # In a pass that continues it may be another than the first.
        self._next = streams.following if streams is not None and streams.given else 0
        self.loads = [0] * workers
        self.exhausted: set[int] = set()
        self._ended: set[int] = set()  # streams
        self._ask()

    def _ask(self) -> None:
        self._asked = {stream % self._workers for stream in range(self._count) if stream not in self._ended}
        self.depth = self._prefetch * len(self._asked)

    def take(self) -> int:
        """Return the stream that is next; number % workers is the worker that carries it."""
        while True:
            stream, self._next = self._next, (self._next + 1) % self._count
            if stream in self._ended:
                continue
            most = self._prefetch * self._workers // len(self._asked)
            if self.in_order or self.loads[stream % self._workers] < most:
                return stream

    def end(self, stream: int) -> bool:
        """Ask no more of a stream. Returns whether its worker carries no other."""
        self._ended.add(stream)
        self._ask()
        return stream % self._workers not in self._asked

    def exhaust(self, worker: int) -> None:
        """Note that a worker has made all its batches; what it was asked for behind them is not answered."""
        self.exhausted.add(worker)
        self.loads[worker] = 0

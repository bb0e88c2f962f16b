"""What a pass goes through, what it works with, and what is reported of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.cluster.option import Ray
from penstock.memory.buffers import Buffers
from penstock.memory.shared_memory import SharedBuffers
from penstock.observe import Meter
from penstock.order.permutations import Indices
from penstock.stats import ActorCounts
from penstock.system.words import counted, size_of
from penstock.workers.batch import BatchRequest

#: Bytes that batches in flight may take before fewer are kept in flight: what stays in a last-level cache is filled
#: faster. At least 3 always are in flight: one that the user waits for, one in work, one to continue with.
IN_FLIGHT_BYTES = 16 << 20
#: Batches in flight at the most, unless prefetch_factor= says otherwise.
IN_FLIGHT = 8


@dataclass(frozen=True)
class PassInput:
    """What a pass goes through, and the key of its random draws."""

    batches: Iterator[BatchRequest]
    """What the sampler gives for each batch, and where its samples stand in the order of the epoch."""
    length: int | None
    """Of the sampler, for len()."""
    seed: int
    epoch: int
    coming: Callable[[], Iterator[Indices]] | None = None
    """Returns the indices of each batch, independently of `batches`, for what looks ahead; None: they are not known."""
    samples: int = 0
    """Of the pass on all ranks, where they are known."""
    ready: Callable[[], bool] | None = None
    """Returns whether `batches` gives the next one at once: while others are in flight, it is not waited for. None:
    it always does."""


@dataclass(slots=True)
class ActorReport:
    """Where the fillers of a Ray cluster are, and what became of them: for explain() and stats(), over all passes.

    The latest pass keeps it up to date; any thread may read it.
    """

    wanted: int = 0
    places: dict[int, str] = field(default_factory=dict)
    """The node of each filler, by its number."""
    running: bool = False
    """The fillers have not been ended."""
    lost: int = 0
    """In all passes."""
    again: int = 0
    """Batches that were asked for again, because their filler was lost."""
    batches: int = 0
    """That came, and their bytes."""
    bytes: int = 0
    largest: int = 0
    """The most bytes of a batch."""
    seconds: float = 0.0
    """In which batches were taken out of Ray's object store."""
    _before: tuple[int, int] = (0, 0)
    """What was lost, and asked again, in earlier passes."""

    def begin(self, wanted: int) -> None:
        """Take note of new fillers."""
        self._before = self.lost, self.again
        self.wanted, self.places, self.running = wanted, {}, True

    def follow(self, places: dict[int, str], lost: int, again: int) -> None:
        """Take note of where the fillers are, and of what was lost and asked again in this pass."""
        self.places = places
        self.lost, self.again = self._before[0] + lost, self._before[1] + again

    def came(self, size: int, seconds: float) -> None:
        """Take note of a batch, its bytes and how long taking it took."""
        self.batches += 1
        self.bytes += size
        self.seconds += seconds
        self.largest = max(self.largest, size)

    def counts(self) -> ActorCounts:
        """Return what the fillers did, over all passes."""
        nodes = dict(Counter(list(self.places.values()))) if self.running else {}
        return ActorCounts(nodes, self.lost, self.again, self.batches, self.bytes, self.seconds)

    def lines(self, cluster: Ray, wanted: int) -> list[str]:
        """Return the fillers in words. wanted: fillers of the next pass."""
        nodes = Counter(list(self.places.values()))
        each = f"each takes {cluster.demand()}; at most {size_of(cluster.limit)} of batches in flight"
        if not nodes:
            return [f"ray      {counted(wanted, 'filler')} will be requested from Ray when a pass begins; {each}"]
        where = ", ".join(f"{count} on {place}" for place, count in sorted(nodes.items()))
        when = "at work" if self.running else "in the latest pass"
        missing = self.wanted - len(self.places)
        late = f"; {missing} more of {self.wanted} asked for did not start" if missing else ""
        lines = [f"ray      {counted(len(self.places), 'filler')} {when}: {where}{late}", f"ray      {each}"]
        if self.lost:
            again = counted(self.again, "batch", "batches")
            lines.append(f"ray      {counted(self.lost, 'filler')} lost; {again} requested again from other fillers")
        return lines


@dataclass(frozen=True)
class PassResources:
    """What a pass works with, from its loader."""

    workers: int
    """Threads; 0: the caller's thread does all work, in next()."""
    in_flight: int | None
    """Batches in flight; None: chosen by their size."""
    buffers: Buffers
    meter: Meter = field(default_factory=Meter)
    """Adds up what the workers spend in each stage."""
    shared: SharedBuffers | None = None
    """Batch memory that worker processes fill; None: each batch comes in its own memory, as torch's does."""
    timeout: float = 0
    """Seconds to wait for a batch, 0 for ever."""
    ahead: bool = True
    """Batches may be taken from the sampler before the user calls next() for them."""
    settled: bool = False
    """The sampler's indices are fixed at the start, so reading ahead has no visible effect."""
    persistent: bool = False
    """The iterator is used for the next pass too."""
    fillers: ActorReport | None = None
    """Is told where the fillers of a Ray cluster are."""

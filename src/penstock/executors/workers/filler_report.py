"""Where a loader's fillers are, and what became of them: what explain() and stats() say of worker_method="ray"."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.cluster.option import Ray
from penstock.stats import FillerCounts
from penstock.system.words import counted, size_of


@dataclass(slots=True)
class FillerReport:
    """The fillers of a loader, kept up to date by its latest pass. Any thread may read it."""

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

    def counts(self) -> FillerCounts:
        """Return what the fillers did, over all passes."""
        nodes = dict(Counter(list(self.places.values()))) if self.running else {}
        return FillerCounts(nodes, self.lost, self.again, self.batches, self.bytes, self.seconds)

    def lines(self, cluster: Ray, wanted: int) -> list[str]:
        """Return the fillers in words. wanted: fillers of the next pass."""
        nodes = Counter(list(self.places.values()))
        each = f"each takes {cluster.demand()}; at most {size_of(cluster.limit)} of batches in flight"
        if not nodes:
            return [f"ray      {counted(wanted, 'filler')} will be asked of Ray when a pass begins; {each}"]
        where = ", ".join(f"{count} on {place}" for place, count in sorted(nodes.items()))
        when = "at work" if self.running else "in the latest pass"
        missing = self.wanted - len(self.places)
        late = f"; {missing} more of {self.wanted} asked for did not start" if missing else ""
        lines = [f"ray      {counted(len(self.places), 'filler')} {when}: {where}{late}", f"ray      {each}"]
        if self.lost:
            again = counted(self.again, "batch", "batches")
            lines.append(f"ray      {counted(self.lost, 'filler')} lost; {again} asked for again elsewhere")
        return lines

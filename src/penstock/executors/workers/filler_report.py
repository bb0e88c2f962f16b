"""Where a loader's fillers are, and what became of them: what explain() and stats() say of worker_method="ray"."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.cluster.option import Ray
from penstock.loop_model import FillerWork
from penstock.stats import FillerCounts, TierCounts
from penstock.storage.tiers import tier_words
from penstock.system.words import counted, size_of


class Arriving:
    """How long batches were coming in: the time in which of one at least some bytes were here, and not all.

    Threads that receive call begin and end, each for its own batch.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection in any line may log the verdict of a loader
        self._coming: set[int] = set()
        self._since = self._before = 0.0

    def begin(self, name: int) -> None:
        """Take note of the first bytes of a batch; name: of who sends it. A second call does nothing."""
        with self._lock:
            if not self._coming:
                self._since = time.perf_counter()
            self._coming.add(name)

    def end(self, name: int) -> None:
        """Take note that all of a batch is here, or that its sender is lost. It need not have begun."""
        with self._lock:
            if name in self._coming:
                self._coming.remove(name)
                self._before += 0.0 if self._coming else time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        with self._lock:
            return self._before + (time.perf_counter() - self._since if self._coming else 0.0)


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
    arriving: Arriving = field(default_factory=Arriving)
    _tiers: dict[int, tuple[str, Mapping[str, TierCounts]]] = field(default_factory=dict)
    """Of each filler: its node, and what its tiers keep."""
    _before: dict[tuple[str, str], TierCounts] = field(default_factory=dict)
    """What the tiers of earlier fillers kept, by name and node."""

    def begin(self, wanted: int) -> None:
        """Take note of new fillers."""
        self._before = {key: self._joined(key) for key in self._keys()}
        self._tiers = {}
        self.wanted, self.places, self.running = wanted, {}, True

    def came(self, name: int, place: str, size: int, tiers: Mapping[str, TierCounts]) -> None:
        """Take note of a batch of a filler; tiers: what it keeps."""
        self.batches += 1
        self.bytes += size
        self.largest = max(self.largest, size)
        if tiers:
            self._tiers[name] = place, tiers

    def counts(self) -> FillerCounts:
        """Return what the fillers did, over all passes."""
        nodes = dict(Counter(list(self.places.values()))) if self.running else {}
        return FillerCounts(nodes, self.lost, self.again, self.batches, self.bytes, self.arriving.seconds)

    def tiers(self) -> dict[str, TierCounts]:
        """Return what the tiers of all fillers keep, by name and node; a folder is one for all fillers of a node."""
        return {f"{name} on {place}": self._joined((name, place)) for name, place in self._keys()}

    def work(self, cluster: Ray, steps: int) -> FillerWork:
        """Return what the model of a loop is to know, in numbers a step."""
        at_once = cluster.limit // self.largest if self.largest else 0
        each = max(1, steps)
        return FillerWork(cluster.threads, self.arriving.seconds / each, self.bytes / each, max(1, at_once))

    def _keys(self) -> list[tuple[str, str]]:
        now = [(name, place) for place, tiers in list(self._tiers.values()) for name in tiers]
        return sorted({*now, *self._before})

    def _joined(self, key: tuple[str, str]) -> TierCounts:
        name, place = key
        now = [tiers[name] for node, tiers in list(self._tiers.values()) if node == place and name in tiers]
        before = [self._before[key]] if key in self._before else []
        if name == MEMORY:  # each filler has its own, which ends with it
            return _joined([*now, *(replace(one, samples=0, bytes=0, limit=0, decoded=0) for one in before)], sum)
        return _joined([*now, *before], max)

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
        return lines + [f"cache    {tier_words(name, kept)}" for name, kept in self.tiers().items()]


#: The name of a tier that is no folder.
MEMORY = "memory"


def _joined(found: Sequence[TierCounts], join: Callable[[list[int]], int]) -> TierCounts:
    return TierCounts(
        samples=join([one.samples for one in found]),
        bytes=join([one.bytes for one in found]),
        limit=join([one.limit for one in found]),
        hits=sum(one.hits for one in found),
        dropped=sum(one.dropped for one in found),
        decoded=join([one.decoded for one in found]),
        error=next((one.error for one in found if one.error), None),
    )

"""What makes the batches of a pass: a `Filler`, of which each executor has its own, and what it takes and gives."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from torch.utils.data._utils.pin_memory import pin_memory

from penstock.cluster.option import Ray
from penstock.executors.buffers import Buffers
from penstock.executors.workers.shared_memory import SharedBuffers
from penstock.observe import Delivery, Meter
from penstock.order.permutations import Indices, Positions
from penstock.sources.tree import LeafNumbers, Unresolved
from penstock.stats import FillerCounts
from penstock.storage.stage import Ticket
from penstock.system.words import counted, size_of

#: What a sampler gave for a batch, and the positions of its samples in the order of the epoch.
BatchRequest = tuple[Any, Positions]

_NONE: Indices = np.empty(0, dtype=np.int64)


def no_indices() -> Indices:
    return _NONE


class BatchShards:
    """The shards of one batch, which are not deleted before they are released."""

    def __init__(self, tickets: list[Ticket]) -> None:
        self._tickets = tickets

    def ready(self) -> bool:
        """Return whether all of them are here. Raises StorageError."""
        return all(ticket.ready() for ticket in self._tickets)

    def wait(self, seconds: float | None) -> bool:
        """Wait until all of them are here; False: one was not within so many seconds. Raises StorageError."""
        return all(ticket.wait(seconds) for ticket in self._tickets)

    def release(self) -> None:
        for ticket in self._tickets:
            ticket.release()


@dataclass(slots=True, eq=False)
class Batch:
    """What a sampler gave for a batch, or the error that came in its place."""

    given: BatchRequest | None = None
    """What the sampler gave and its positions, as the pass keeps them."""
    place: int = -1
    """Of the batch in what the sampler gives, from the beginning of the pass."""
    error: BaseException | None = None
    """It is raised when the batch's turn has come."""
    begun: float = 0.0
    """When its making began, by time.perf_counter()."""
    shards: BatchShards | None = None
    """The shards of an object store that it is made of; None: it needs none."""

    @property
    def waits_for_shards(self) -> bool:
        """Whether the batch is to be submitted once its shards are here."""
        return False

    def let_shards_go(self) -> None:
        if self.shards is not None:
            self.shards.release()
            self.shards = None

    def let_go(self) -> None:
        """Drop the memory that an error's traceback would keep."""

    def raise_error(self) -> NoReturn:
        """Raise the error. What its traceback holds of the batch holds neither the error nor the memory."""
        error, self.error = self.error, None
        self.let_go()
        assert error is not None
        try:
            raise error
        finally:
            del error


@dataclass(slots=True, eq=False)
class IndexedBatch(Batch):
    """A batch of indices into a native plan."""

    indices: Indices = field(default_factory=no_indices)
    positions: Positions = range(0)
    """Where its samples stand in the order of the epoch."""
    wanted: Indices = field(default_factory=no_indices)
    """The indices that the sampler gave; others stand in `indices` where bad samples are replaced."""
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=no_indices)
    """In their leaf."""
    read_by_python: list[str] = field(default_factory=list)
    """Why Python read a sample, one reason a sample."""
    other: list[Any] | None = None
    """What a sampler gave that is no list of indices, or that only the dataset knows what to make of."""

    @property
    def count(self) -> int:
        return len(self.indices if self.other is None else self.other)

    def begin(self, work: Callable[[], None]) -> None:
        """Take what the sampler gave, and do the work that begins a batch of indices; an error is kept."""
        assert self.given is not None
        wanted, self.positions = self.given
        if isinstance(wanted, list):
            self.other = wanted
            return
        self.wanted = self.indices = wanted
        self.other = self.error = None
        try:
            work()
        except Unresolved:
            self.other = wanted.tolist()
        except Exception as error:  # of the user's dataset
            self.error = error


#: Bytes that batches in flight may take before fewer are kept in flight: what stays in a last-level cache is filled
#: faster. At least 3 always are in flight: one that the user waits for, one in work, one to go on with.
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
    """Returns the indices of each batch, independently of `batches`, for who looks ahead; None: they are not known."""
    samples: int = 0
    """Of the pass on all ranks, where they are known."""
    ready: Callable[[], bool] | None = None
    """Returns whether `batches` gives the next one at once: while others are in flight, it is not waited for. None:
    it always does."""


@dataclass(slots=True)
class FillerReport:
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

    def counts(self) -> FillerCounts:
        """Return what the fillers did, over all passes."""
        nodes = dict(Counter(list(self.places.values()))) if self.running else {}
        return FillerCounts(nodes, self.lost, self.again, self.batches, self.bytes, self.seconds)

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
    """Batch memory that worker processes fill; None: each batch comes in memory of its own, as torch's does."""
    timeout: float = 0
    """Seconds to wait for a batch, 0 for ever."""
    ahead: bool = True
    """Batches may be taken from the sampler before the user calls next() for them."""
    settled: bool = False
    """All indices of the pass are settled when the first is taken: it cannot be seen how far ahead they are taken."""
    persistent: bool = False
    """The iterator is used for the next pass too."""
    fillers: FillerReport | None = None
    """Is told where the fillers of a Ray cluster are."""


class Filler:
    """Makes the batches of passes in one way, and is told by the pass what comes and what goes.

    It never holds the pass, which can be collected: the filler is closed then. All but `close` are called by the thread
    that is in the pass's next(). A queue holds the batches that were begun and are not handed out.
    """

    in_order = True
    """Batches are handed out in the sampler's order."""
    closes_at_exit = True
    """It is closed where Python ends amid a pass."""
    profile_name = "Pass"
    """The class of iterator that torch's profiler names."""

    def __init__(self, resources: PassResources) -> None:
        self.resources = resources
        self.workers = resources.workers
        """Its threads, for programs that ask."""
        self.reads_ahead = bool(resources.workers) and resources.ahead
        """Batches are begun before the user calls next() for them."""
        self.shown: dict[str, Any] = {}
        """Attributes of torch's iterators, for programs that look: the pass has them from its start on."""

    # --- the life of a pass -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads. What it raises ends the pass."""

    def open(self, pass_input: PassInput) -> None:
        """Begin a pass: batches that were begun before are forgotten."""
        self._input = pass_input

    def rest(self) -> bool:
        """End the pass and keep the threads for another one; False: they cannot be kept."""
        return False

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made."""
        return True

    def interrupted(self) -> None:
        """Take note that a Ctrl-C came, which reaches other processes too: no other pass is made."""

    @abstractmethod
    def close(self) -> None:
        """End the threads."""

    # --- batches ----------------------------------------------------------------------------------------------------

    def new_batch(self) -> Any:
        return Batch()

    def prepare(self, queue: deque[Any]) -> None:
        """Do what comes before the sampler is asked for batches."""

    def depth(self, queue: deque[Any]) -> int:
        """Return how many batches to keep in flight."""
        return 1

    def begin(self, batch: Any) -> None:
        """Begin to make a batch of what the sampler gave."""

    def push(self, queue: deque[Any]) -> None:
        """Go on with the batches that were begun."""

    @abstractmethod
    def ready(self, queue: deque[Any]) -> Any:
        """Wait for a batch and return it, with its error where it failed; None: refill the queue, and call again.

        Raises WorkerStuck.
        """

    @abstractmethod
    def assemble(self, batch: Any) -> Any:
        """Return a batch as its user gets it."""

    def delivery(self, batch: Any, out: Any) -> Delivery:
        return Delivery(out, batch.count, read_by_python=batch.read_by_python)

    def report(self, batch: Any | None, *, came: bool) -> None:
        """Tell who follows the pass that a batch came, or an error: in its place, or of no batch (None)."""

    def drop(self, batch: Any) -> None:
        """Take note that a batch is not in flight any more."""

    def _in_flight_of(self, size: int) -> int:
        """Return how many batches of so many bytes are to be in flight."""
        if (given := self.resources.in_flight) is not None:
            return max(1, given)
        return IN_FLIGHT if size == 0 else max(3, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))


def pinned(batch: Any) -> Any:
    """Return a batch of any structure with its tensors in page-locked memory, as torch's loader gives it."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]

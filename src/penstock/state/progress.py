"""A pass: what its sampler gives for each batch, what of it was handed out; and the check of a loader's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from penstock.errors import InvalidOption
from penstock.observe import Delivery, Observer, PassCount
from penstock.order.batches import BatchOrder, as_indices, seeded, share_of_sampler, with_sample_numbers, without_skip
from penstock.order.permutations import Indices, Order, Positions
from penstock.order.schedule import WHOLE, Arrivals, Leftover, Steps, cut, cut_to_lists, step_of, without
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.state.samplers import Origin, SamplerStates, is_origin
from penstock.state.streams import Streams

#: The format of states.
FORMAT = 1


@dataclass
class Progress(Observer):
    """One pass: what was handed to the user, not what was read ahead. Changed by the iterator that the user calls."""

    epoch: int
    left: Leftover = WHOLE
    """What was left of the epoch when the pass began, by the state that it continues from."""
    skipped: int = 0
    """Samples, or batches, of a user's sampler that the pass began behind."""
    drawn: dict[str, int] = field(default_factory=dict)
    """Without a seed: what was drawn for the pass, "order" and "base"."""
    streams: Streams | None = None
    """The dataset's states in the workers, where it has any."""
    samplers: SamplerStates | None = None
    origin: Origin | None = None
    """What the order is drawn from, where a user's sampler or generator draws it."""
    unit: int = 1
    """What a batch counts in `skipped` and `left` where a user's sampler gives the batches: its samples; 1: one."""
    arrivals: Arrivals | None = None
    """Which batches came; None: they come in order."""
    schedule: Steps | None = None
    """None: a user's sampler gives the batches."""
    count: PassCount = field(default_factory=PassCount)
    """How far the pass is; counted here, or by the pass that this `follows`."""
    follows: bool = False
    done: bool = False
    """The pass came to its end."""
    named: bool = False
    """set_epoch() has said which epoch it is of."""

    @property
    def taken(self) -> int:
        """Return how many batches came, or failed."""
        return self.count.taken

    @property
    def handed(self) -> int:
        """Return the number of the last batch that came, from 1 on."""
        return self.count.handed

    @property
    def reads_counts(self) -> bool:
        return self.arrivals is None

    def follow(self, count: PassCount, clock: object) -> Callable[[], None] | None:
        """Read what a pass counts, from what was handed out on."""
        count.taken, count.handed = self.taken, self.handed
        self.count, self.follows = count, True
        return None if self.streams is None and self.samplers is None else self._states_follow

    def _states_follow(self) -> None:
        """Let the states of the dataset and the sampler be those behind the batch that came."""
        if self.streams is not None:
            self.streams.taken()
        if self.samplers is not None:
            self.samplers.handed(self.missing)

    @property
    def latest(self) -> int:
        """Return which step of the schedule was handed out last, -1 before the first."""
        latest = self.handed - 1 if self.arrivals is None else self.arrivals.latest
        return step_of(self.left.early, latest)

    @property
    def missing(self) -> int:
        """Return the first step, counted from where the pass began, that was not handed out."""
        return step_of(self.left.early, self.handed if self.arrivals is None else self.arrivals.prefix)

    @property
    def coming(self) -> int:
        """Return which batch of the schedule is handed out next."""
        return step_of(self.left.early, self.taken if self.arrivals is None else self.arrivals.coming)

    @property
    def position(self) -> int:
        """Return how many of the epoch's samples lie before the first that is missing, on all ranks."""
        return self.left.start if self.schedule is None else self.schedule.position_after(self.missing)

    @property
    def given(self) -> int:
        """Return how many samples, or batches, of a user's sampler lie before the first that is missing."""
        return 0 if self.schedule is not None else self.skipped + self.missing * self.unit

    def handed_early(self) -> list[int]:
        """Return which of the steps behind the first that is missing were handed out, counted from that one."""
        early, missing = self.left.early, self.missing
        came = [] if self.arrivals is None else [step_of(early, batch) for batch in self.arrivals.early()]
        return sorted(step - missing for step in (*early, *came) if step > missing)

    def delivered(self, delivery: Delivery) -> None:
        self.count.taken = self.count.handed = self.count.taken + 1
        if self.arrivals is not None:
            self.arrivals.took(handed=True)
        self._states_follow()

    def failed(self, error: Exception) -> None:
        """Count a batch whose error was raised."""
        if not self.follows:
            self.count.taken += 1
        if self.streams is not None:
            self.streams.taken()
        if self.arrivals is not None:
            self.arrivals.took(handed=False)

    def ended(self) -> None:
        """Note that the pass came to its end."""
        self.done = True
        if self.streams is not None:
            self.streams.finish()


Batches = Iterator[tuple[Any, Positions]]
"""What the sampler gives for each batch, and the positions of its samples in the order of the epoch."""


@dataclass(eq=False)
class PassBatches:
    """What the sampler of a pass gives; called with (seed, epoch) of the pass, when it begins.

    Indices are arrays for the native core, and what torch's samplers give, lists and numbers, for Python.

    Args:
        order: of the loader. The loader itself is not held: it may hold the iterator that holds these batches.
        progress: of the pass: where it begins; schedule and sampler's state are noted in it.
        seed_warnings: warns of samplers that the seed does not reach.
        native: the native core reads.
    """

    order: BatchOrder
    progress: Progress
    seed_warnings: SeedWarnings
    native: bool

    def __call__(self, seed: int, epoch: int) -> Batches:
        if self.order.cuts_itself():
            cut = self._cut(seed, epoch)
            return cut if self.native else ((indices.tolist(), positions) for indices, positions in cut)
        if self.native:
            return ((as_indices(batch), positions) for batch, positions in self.sampled(seed, epoch))
        if self.order.one_by_one():
            return (
                (index, range(position, position + 1))
                for indices, positions in self._cut(seed, epoch)
                for index, position in zip(indices.tolist(), positions, strict=True)
            )
        return self.sampled(seed, epoch)

    def without_positions(self, seed: int, epoch: int) -> Iterator[Any]:
        """Return what the sampler gives for each batch of the pass."""
        if not self.native and self.order.cuts_itself() and not self.progress.left.early:
            return cut_to_lists(*self._schedule(seed, epoch))
        return map(itemgetter(0), self(seed, epoch))

    def coming(self, seed: int, epoch: int) -> Iterator[Indices]:
        """Return the indices of each batch of a pass in an order of Penstock's, independently of the pass itself.

        Without a seed the first batch of the pass comes before them: it draws the seed of the order.
        """
        progress = self.progress
        order = _once(self.order.order(seed, epoch, progress.drawn))
        schedule = self.order.schedule(progress.left, order=order)
        return (indices for indices, _ in without(progress.left.early, cut(order, schedule)))

    def samples_left(self) -> int:
        """Return the number of samples of a pass in an order of Penstock's, on all ranks."""
        schedule = self.order.schedule(self.progress.left)
        return max(0, schedule.size - schedule.start)

    def drawn_first(self) -> bool:
        """Return whether the sampler draws before the base seed of the pass, as in torch's iterators."""
        ours = self.order.cuts_itself() or self.order.one_by_one()
        settings = self.order.settings  # with workers torch's iterators begin the sampler again behind the base seed
        return settings.seed is None and not ours and settings.on_demand

    def sampled(self, seed: int = 0, epoch: int = 0) -> Batches:
        """Return what a user's sampler gives; seed, epoch: used where the loader has a seed."""
        order, settings, progress = self.order, self.order.settings, self.progress
        inner = order.innermost()
        if order.share() is not None and not isinstance(inner, DistributedSampler):
            raise InvalidOption("shard= cuts the loader's own order, and a sampler was set since: give shard=None")
        if settings.iterable:
            return ((given, range(0)) for given in iter(settings.index_sampler))
        states = progress.samplers = progress.samplers or SamplerStates()
        batches, left_out = without_skip(settings.index_sampler)
        share = share_of_sampler(batches, inner)
        cut_by_torch = order.is_cut_by_torch()
        given = settings.sampler if cut_by_torch else batches
        if settings.seed is not None:
            given = seeded(given, settings.seeded, seed, epoch)
        # torch's BatchSampler begins its sampler at the first batch; another sampler begins with the pass.
        items = states.begun_later(given) if cut_by_torch else states.begin(given)
        if settings.seed is not None:
            items = self.seed_warnings.watched(items, inner if type(batches) is BatchSampler else batches)
        skipped = left_out if states.resumes else left_out + progress.skipped
        placed: Batches
        if order.counts_samples():
            items = islice(items, skipped, None)
            if cut_by_torch:
                progress.unit = settings.batch_sampler.batch_size
                items = iter(BatchSampler(items, progress.unit, settings.batch_sampler.drop_last))
            placed = with_sample_numbers(items, progress.skipped, batched=cut_by_torch)
        else:
            placed = islice(with_sample_numbers(items, states.samples, batched=True), skipped, None)
        followed = without(progress.left.early, states.followed(placed))
        if (share.start, share.step) == (0, 1):
            return followed
        return ((item, [share.start + share.step * number for number in numbers]) for item, numbers in followed)

    def _cut(self, seed: int, epoch: int) -> Iterator[tuple[Indices, Positions]]:
        early, batches = self.progress.left.early, cut(*self._schedule(seed, epoch))
        return without(early, batches) if early else batches

    def _schedule(self, seed: int, epoch: int) -> tuple[Callable[[], Order], Steps]:
        """Return the order of the pass, and which of its positions the batches hold."""
        progress, order = self.progress, self.order
        make = order.order(seed, epoch, progress.drawn)
        made = _once(make if progress.origin is None else progress.origin.drawing()(make))
        progress.schedule = order.schedule(progress.left, order=made)
        return made, progress.schedule


def _once(make: Callable[[], Order]) -> Callable[[], Order]:
    """Return what makes an order at its first call. To make a functools.cache() takes microseconds of each pass."""
    made: list[Order] = []

    def order() -> Order:
        if not made:
            made.append(make())
        return made[0]

    return order


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state that state_dict() has made. Raises TypeError, InvalidOption."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what state_dict() returns, not {type(state).__name__}")
    if state.get("format") != FORMAT:
        raise InvalidOption(
            f"a state of format {state.get('format')!r}: load_state_dict() of a loader reads what state_dict() of a "
            f"loader returns, of format {FORMAT}; this is a dict of {', '.join(map(repr, state))[:60] or 'nothing'}"
        )
    wrong = [name for name in ("epoch", "position", "batches") if not is_count(state.get(name))]
    wrong += [name for name in ("data", "drawn") if not isinstance(state.get(name), Mapping)]
    leaf = state.get("dataset")
    if leaf is not None and not (isinstance(leaf, list | tuple) and len(leaf) == 1 and _is_sound(leaf[0])):
        wrong.append("dataset")
    if wrong:
        raise InvalidOption(f"a state whose {wrong[0]!r} is not what state_dict() writes")
    return state


def _is_sound(own: Any) -> bool:
    """Return whether the parts that have a form have it, of what a state holds beside its numbers."""
    if not isinstance(own, Mapping) or not own:
        return False
    ahead, place = own.get("ahead", []), own.get("place", [0, 1, 1, False])
    return (
        isinstance(ahead, list | tuple)
        and all(map(is_count, ahead))
        and (not ahead or "place" in own)
        and isinstance(place, list | tuple)
        and len(place) == 4
        and is_count(own.get("samples", 0))
        and is_origin(own.get("origin", {}))
    )


def own_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a state holds beside its numbers.

    It lies in a tuple: torch.distributed.checkpoint, which takes dictionaries apart and reads the keys of a new loader,
    keeps tuples whole.
    """
    own: Mapping[str, Any] = {} if state.get("dataset") is None else state["dataset"][0]
    return own


def left_of(state: Mapping[str, Any]) -> Leftover:
    return Leftover(state["position"], tuple(sorted(own_of(state).get("ahead", ()))))


def is_count(value: object) -> bool:
    """Return whether a value is an int of 0 or more."""
    return type(value) is int and value >= 0

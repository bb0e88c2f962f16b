"""What the sampler of a pass gives for each batch, from the beginning of the pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from penstock.errors import InvalidOption
from penstock.order.batch_order import BatchOrder
from penstock.order.batches import as_indices, as_list, seeded, share_of_sampler, with_sample_numbers, without_skip
from penstock.order.leftover import without
from penstock.order.permutations import Indices, Order, Positions, once
from penstock.order.schedule import Steps, cut, cut_to_lists
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.state.progress import Progress
from penstock.state.samplers import SamplerStates

Batches = Iterator[tuple[Any, Positions]]
"""What the sampler gives for each batch, and the positions of its samples in the order of the epoch."""


@dataclass(eq=False)
class PassBatches:
    """What the sampler of a pass gives; called with (seed, epoch) of the pass, when it begins.

    Indices are arrays for the native core, and what torch's samplers give, lists and numbers, for Python.

    Args:
        order: of the loader. The loader itself is not held: it may hold the iterator that holds these batches.
        progress: of the pass: where it begins; schedule and sampler's state are noted in it.
        reach: warns of samplers that the seed does not reach.
        native: the native core reads.
    """

    order: BatchOrder
    progress: Progress
    reach: SeedWarnings
    native: bool

    def __call__(self, seed: int, epoch: int) -> Batches:
        """Return the batches of the pass."""
        if self.order.cuts_itself():
            cut = self._cut(seed, epoch)
            return cut if self.native else ((as_list(indices), positions) for indices, positions in cut)
        if self.native:
            return ((as_indices(batch), positions) for batch, positions in self.sampled(seed, epoch))
        if self.order.one_by_one():
            return (
                (index, range(position, position + 1))
                for indices, positions in self._cut(seed, epoch)
                for index, position in zip(as_list(indices), positions, strict=True)
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
        order = once(self.order.order(seed, epoch, progress.drawn))
        schedule = self.order.schedule(progress.left, order=order)
        return (indices for indices, _ in without(progress.left.early, cut(order, schedule)))

    def samples_left(self) -> int:
        """Return the number of samples of a pass in an order of Penstock's, on all ranks."""
        schedule = self.order.schedule(self.progress.left)
        return max(0, schedule.size - schedule.start)

    def drawn_first(self) -> bool:
        """Return whether the sampler draws before the base seed of the pass, as in torch's iterators."""
        ours = self.order.cuts_itself() or self.order.one_by_one()
        return self.order.settings.seed is None and not self.native and not ours

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
            items = self.reach.watched(items, inner if type(batches) is BatchSampler else batches)
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
        made = once(make if progress.origin is None else progress.origin.drawing()(make))
        progress.schedule = order.schedule(progress.left, order=made)
        return made, progress.schedule

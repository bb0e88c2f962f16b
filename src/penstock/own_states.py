"""What a loader's state holds beside its numbers: where datasets and samplers say they are, and what came early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed
from torch.utils.data import DistributedSampler, IterableDataset, IterDataPipe, MapDataPipe, SequentialSampler

from penstock.errors import InvalidOption
from penstock.order.batches import foretell
from penstock.order.schedule import Share
from penstock.ordering import Ordered, innermost
from penstock.state.ahead import Ahead
from penstock.state.progress import Progress, is_count
from penstock.state.sampler_states import between_passes
from penstock.state.streams import Streams, check_streams, says_where_it_is, state_of
from penstock.system.warn_user import warn_user

#: What a version that reads states of FORMAT alone would pass over.
BEYOND_FORMAT_1 = frozenset({"ahead", "sampler", "place"})


class OwnStates(Ordered):
    """The part of the loader that asks its dataset and sampler where they are, and tells them."""

    if TYPE_CHECKING:

        def _in_threads(self) -> bool: ...

    num_workers: int
    in_order: bool
    persistent_workers: bool
    generator: Any
    _iterator: Any
    _was_alone = False
    """shard="auto" found no other ranks in the latest pass."""

    def _own(self, progress: Progress | None, between: bool, now: Progress, ahead: Ahead) -> dict[str, Any] | None:
        """Return what a state holds that its numbers do not say; None: nothing."""
        own: dict[str, Any] = {}
        if (streams := self._streams_now(progress)) is not None:
            own.update(streams)
        if (sampler := self._sampler_now(progress, between)) is not None:
            own["sampler"] = sampler
        if self._warns_of_threads():
            warn_user(
                f"{type(self.dataset).__name__} has a state_dict(), and worker threads share the dataset: what it says "
                "belongs to no batch and is not saved. With worker_method='process' or num_workers=0 it is",
            )
        if now.handed and self.batch_size is not None and (now.given or isinstance(self.dataset, IterableDataset)):
            own["batch_size"] = self.batch_size
        if now.given and self._counts_samples():
            own["samples"] = now.given
        place = self._place()
        if now.handed and place.world > 1 and (now.arrivals is not None or now.given):
            own["place"] = [place.rank, place.world, self.batch_size, now.arrivals is not None]
        if ahead.ranges:
            own["ahead"] = [list(one) for one in ahead.ranges]
        return own or None

    def _streams_now(self, progress: Progress | None) -> dict[str, Any] | None:
        """Return where the dataset is in each worker, None where nobody says."""
        if progress is not None and progress.streams is not None:
            return progress.streams.as_state()
        if progress is None and self.num_workers == 0 and not isinstance(self.dataset, IterableDataset):
            state = state_of(self.dataset) if self._keeps_its_own_state() else None
            return None if state is None else {"states": [{**state, "between": True}], "next": 0}
        return None

    def _sampler_now(self, progress: Progress | None, between: bool) -> dict[str, Any] | None:
        """Return where a user's sampler is, None where it does not say."""
        if isinstance(self.dataset, IterableDataset) or self._draws_itself():
            return None
        if progress is not None and progress.samplers is not None:
            return progress.samplers.as_state(done=between)
        return between_passes(self.sampler if self._is_cut_by_torch() else self._index_sampler)

    def _warns_of_threads(self) -> bool:
        if isinstance(self.dataset, IterableDataset):
            return False  # what is done then is said when a state of it is loaded
        return says_where_it_is(self.dataset) and not self._keeps_its_own_state()

    def _place(self) -> Share:
        """Return which rank a pass is of, whoever cuts the batches."""
        inner = innermost(self.sampler, self.batch_sampler)
        if isinstance(inner, DistributedSampler):
            return Share(inner.rank, inner.num_replicas)
        share = self._share()
        if share is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return share or Share()

    def _foretold(self) -> dict[str, int]:
        """Return what the next pass would draw if it began now, where it is not a function of the seed."""
        if self.seed is not None or isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return {}
        kept = self._iterator is not None and self.persistent_workers
        base = self._progress.drawn if kept and self._progress is not None else {}
        draws_order = self._draws_itself() and type(self.sampler) is not SequentialSampler
        generator = self.sampler.generator if draws_order else None
        drawn = foretell(self.generator, generator, base_first="base" not in base)
        if not draws_order:
            del drawn["order"]
        return {**drawn, **({"base": base["base"]} if "base" in base else {})}

    def _check_own(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidOption where what a state holds beside its numbers is of another cut, or is no such thing."""
        own = state.get("dataset")
        if own is None:
            return
        if not isinstance(own, Mapping) or not _is_sound(own):
            raise InvalidOption("a state whose 'dataset' is not what state_dict() writes")
        iterable = isinstance(self.dataset, IterableDataset)
        if "states" in own and (iterable or self._keeps_its_own_state()):
            check_streams(own, self.num_workers)
        elif any(each is not None for each in own.get("states", ())):
            warn_user(
                f"the state holds what {type(self.dataset).__name__}.state_dict() said, and nobody can be told: it has "
                "no load_state_dict(), or worker threads share it. The dataset goes on as it is",
            )
        if iterable and not self._says(own) and own.get("batch_size", self.batch_size) != self.batch_size:
            raise InvalidOption(
                f"a state of an iterable dataset that does not say where it is, read in batches of "
                f"{own['batch_size']}, cannot go on with batch_size={self.batch_size}"
            )
        if ahead_of(state).ranges and "samples" in own and not self._counts_samples():
            raise InvalidOption(
                "a state whose batches came out of order, cut by the loader, cannot go on with a batch_sampler"
            )
        if "place" not in own:
            return
        rank, world, batch_size, unordered = own["place"]
        place = self._place()
        if unordered and (rank, world, batch_size) != (place.rank, place.world, self.batch_size):
            raise InvalidOption(
                f"a state of rank {rank} of {world} with in_order=False and batches of {batch_size} goes on there "
                f"only, not on rank {place.rank} of {place.world} with batch_size={self.batch_size}: each rank had "
                "handed out other batches. Save the state of every rank, or give in_order=True"
            )
        if world != place.world:
            raise InvalidOption(
                f"a state of a DistributedSampler of {world} ranks cannot go on with {place.world}: give shard= in its "
                "place, whose order does not depend on the ranks"
            )

    def _says(self, own: Mapping[str, Any]) -> bool:
        """Return whether a state holds what the dataset itself, or its iterator, said, and they can be told."""
        states = [each for each in own.get("states", ()) if each is not None]
        if self.num_workers and self._in_threads():
            return bool(states) and all("iterator" in each for each in states)
        return bool(states) and self._keeps_its_own_state()

    def _keeps_its_own_state(self) -> bool:
        """Return whether the dataset, or its iterator, may say where it is: not where threads share it."""
        if self.num_workers and self._in_threads():
            return False
        if isinstance(self.dataset, IterableDataset):
            return not isinstance(self.dataset, IterDataPipe)
        return says_where_it_is(self.dataset)

    def _warn_of_others(self) -> None:
        """Warn where shard="auto" found no other ranks in an earlier pass, and there are some now."""
        if self.shard != "auto":
            return
        alone = (self._share() or Share()).world == 1
        if self._was_alone and not alone:
            warn_user(
                "shard='auto': an earlier pass of this loader read the whole dataset, because no process group ran and "
                "RANK and WORLD_SIZE were not set. Call init_process_group() before the first pass",
            )
        self._was_alone = alone

    def _next_streams(self, own: Mapping[str, Any], *, resumed: bool) -> Streams | None:
        """Return where the dataset is in each worker of the pass that begins."""
        if not (self._keeps_its_own_state() or isinstance(self.dataset, IterableDataset)):
            return None
        if isinstance(self.dataset, IterDataPipe):
            return None
        before = None if self._progress is None or not self.persistent_workers else self._progress.streams
        given = dict(own) if "states" in own else None
        if given is not None and self.num_workers and self._in_threads() and not self._says(given):
            given["states"] = [None] * len(given["states"])  # which threads, that share a dataset, cannot tell it
        return Streams(
            self.num_workers,
            given,
            resumed=resumed,
            before=before,
            kept=self.persistent_workers or not self.num_workers,
        )


def ahead_of(state: Mapping[str, Any]) -> Ahead:
    """Return what was handed out ahead, of a state."""
    return Ahead.of((begin, end) for begin, end in (state.get("dataset") or {}).get("ahead", ()))


def _is_sound(own: Mapping[str, Any]) -> bool:
    """Return whether the parts of a state that have a form have it."""
    ranges, place = own.get("ahead", []), own.get("place", [0, 1, 1, False])
    return (
        bool(own)
        and isinstance(ranges, list | tuple)
        and all(isinstance(one, list | tuple) and len(one) == 2 and all(map(is_count, one)) for one in ranges)
        and isinstance(place, list | tuple)
        and len(place) == 4
        and is_count(own.get("samples", 0))
    )

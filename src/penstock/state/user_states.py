"""What a loader's state holds beside its numbers: states of the dataset and the sampler, and what came early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch.distributed
from torch.utils.data import DistributedSampler, IterDataPipe, MapDataPipe, SequentialSampler

from penstock.errors import InvalidOption
from penstock.order.batches import BatchOrder
from penstock.order.permutations import KeyedSampler, draw_seed
from penstock.order.schedule import Share
from penstock.state.hugging_face_streams import is_hugging_face_stream
from penstock.state.progress import Progress, left_of, own_of
from penstock.state.samplers import Origin, Source, between_passes, drawn_from, encoded, generator_copy
from penstock.state.stream_split import NOT_OF_STREAMS, check_pipeline, fresh_split, is_of_streams, resumed_split
from penstock.state.streams import Streams, check_streams, is_stateful_dataset, state_of
from penstock.system.warn_user import warn_user


@dataclass(frozen=True)
class UserStates:
    """Reads and writes the states that a loader's dataset and sampler keep themselves.

    in_threads: returns whether Python threads of this process read the dataset.
    """

    order: BatchOrder
    in_threads: Callable[[], bool]

    def has_none(self) -> bool:
        """Return whether the pass that begins has no state beside its numbers."""
        settings = self.order.settings
        plain = self.order.draws_itself() and not isinstance(settings.sampler, KeyedSampler)
        return plain and not is_stateful_dataset(settings.dataset)

    def of_pass(
        self, progress: Progress | None, now: Progress, coming: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return what a state holds beside its numbers; None: nothing.

        Args:
            progress: of the latest pass, where there was one.
            now: what the numbers are taken from; another one than `progress` where no pass is under way.
            coming: what `foretold` returns of an order that is yet to be drawn.
        """
        settings = self.order.settings
        own: dict[str, Any] = {}
        if (streams := self._streams_now(progress)) is not None:
            own.update(streams)
        if (sampler := self._sampler_now(progress, between=now is not progress)) is not None:
            own["sampler"] = sampler
        elif (known := (now.origin and now.origin.as_state()) or coming) is not None:
            own["origin"] = known
        # A state of an iterable dataset is warned of when it is loaded.
        if not settings.iterable and is_stateful_dataset(settings.dataset) and not self.keeps_dataset_state():
            warn_user(
                f"{type(settings.dataset).__name__} has a state_dict(), and worker threads share the dataset: what it "
                "says belongs to no batch and is not saved. With worker_method='process' or num_workers=0 it is"
            )
        if now.handed and settings.batch_size is not None and (now.given or settings.iterable):
            own["batch_size"] = settings.batch_size
        if now.given and self.order.counts_samples():
            own["samples"] = now.given
        place = self.place()
        early = now.handed_early()
        own_places = settings.iterable and is_hugging_face_stream(settings.dataset)
        if early or (not own_places and now.handed and place.world > 1 and (now.arrivals is not None or now.given)):
            own["place"] = [place.rank, place.world, settings.batch_size, bool(early) or now.arrivals is not None]
        if early:
            own["ahead"] = early
        return own or None

    def _streams_now(self, progress: Progress | None) -> dict[str, Any] | None:
        """Return the dataset's state in each worker, None where it has none."""
        settings = self.order.settings
        if progress is not None and progress.streams is not None:
            return progress.streams.as_state()
        if progress is not None or settings.num_workers or settings.iterable or not self.keeps_dataset_state():
            return None
        state = state_of(settings.dataset)
        return None if state is None else {"states": [{**state, "between": True}], "next": 0}

    def _sampler_now(self, progress: Progress | None, *, between: bool) -> dict[str, Any] | None:
        """Return the state of a user's sampler, None where it has none."""
        settings = self.order.settings
        if settings.iterable or self.order.draws_itself():
            return None
        if progress is not None and progress.samplers is not None:
            return progress.samplers.as_state(done=between)
        return between_passes(settings.sampler if self.order.is_cut_by_torch() else settings.index_sampler)

    def place(self) -> Share:
        """Return which rank a pass is of, whoever cuts the batches."""
        inner = self.order.innermost()
        if isinstance(inner, DistributedSampler):
            return Share(inner.rank, inner.num_replicas)
        share = self.order.share()
        if share is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return share or Share()

    def foretold(self, base: int | None, *, begun: bool) -> tuple[dict[str, int], dict[str, Any] | None]:
        """Return the seeds that a pass is yet to draw, and what its order will be drawn from. Nothing is drawn by it.

        Args:
            base: the base seed, where the pass draws none.
            begun: the pass has begun, and has drawn its base seed; else it would begin now.
        """
        settings, copied = self.order.settings, cache(generator_copy)
        drawn = {} if base is None else {"base": base}
        keyed = settings.seed is not None or isinstance(settings.dataset, IterDataPipe | MapDataPipe)
        if not (keyed or begun or drawn):
            drawn["base"] = draw_seed(copied(settings.generator))
        generators = self._generators() or ()
        known = {"generators": [encoded(copied(one).get_state()) for one in generators]} if generators else None
        if not keyed and self.order.draws_itself() and type(settings.sampler) is not SequentialSampler:
            drawn["order"] = draw_seed(copied(settings.sampler.generator))
        return {} if keyed else drawn, known

    def origin(self, own: Mapping[str, Any], *, inside: bool) -> Origin | None:
        """Return what the order of the pass that begins is drawn from; None: it follows from the loader's state.

        Args:
            own: of the state that the pass continues from; empty: from none.
            inside: it continues in the middle of an epoch.
        """
        generators = self._generators()
        if generators is None:
            return None
        given = dict(own.get("origin", {}))
        if "place" in own and own["place"][0] != self.place().rank:
            given.pop("first", None)  # of another rank's share
        if not self.order.draws_itself() and None not in generators:
            generators = (*generators, None)  # the sampler may draw from torch's global generator too
        return Origin(self._drawing(), generators, given, inside=inside)

    def _generators(self) -> tuple[Source, ...] | None:
        """Return the generators that the sampler is known to draw the order of a pass from; None: as in origin()."""
        settings, seeded = self.order.settings, self.order.settings.seed is not None
        follows = self.order.draws_itself() and (seeded or not isinstance(settings.sampler, KeyedSampler))
        return None if settings.iterable or follows else drawn_from(self._drawing(), keyed=seeded)

    def _drawing(self) -> Any:
        return self.order.settings.sampler if self.order.draws_itself() else self.order.settings.index_sampler

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidOption where a state was cut otherwise than this loader cuts."""
        settings, own = self.order.settings, own_of(state)
        if is_hugging_face_stream(settings.dataset) and "states" in own:
            if not is_of_streams(own):
                raise InvalidOption(NOT_OF_STREAMS)
            check_pipeline(settings.dataset, own)
        elif "held" in own:
            raise InvalidOption(
                f"a state of a Hugging Face IterableDataset cannot continue with a {type(settings.dataset).__name__}"
            )
        elif "states" in own and self.keeps_dataset_state():
            check_streams(own, settings.num_workers)
        elif any(each is not None for each in own.get("states", ())):
            warn_user(
                f"the state holds what {type(settings.dataset).__name__}.state_dict() returned, and it is not loaded: "
                "the dataset has no load_state_dict(), or worker threads share it. The dataset continues unchanged"
            )
        size = own.get("batch_size", settings.batch_size)
        if settings.iterable and not self.can_restore(own) and size != settings.batch_size:
            raise InvalidOption(
                f"a state of an iterable dataset that does not say where it is, read in batches of {size}, cannot "
                f"continue with batch_size={settings.batch_size}"
            )
        if left_of(state).early and "samples" in own and not self.order.counts_samples():
            raise InvalidOption(
                "a state whose batches came out of order, cut by the loader, cannot continue with a batch_sampler"
            )
        if "place" not in own:
            return
        rank, world, batch_size, unordered = own["place"]
        place = self.place()
        if unordered and (rank, world, batch_size) != (place.rank, place.world, settings.batch_size):
            raise InvalidOption(
                f"a state of rank {rank} of {world} with in_order=False and batches of {batch_size} continues only "
                f"there, not on rank {place.rank} of {place.world} with batch_size={settings.batch_size}: its batches "
                "came out of order. Save the state of every rank, or give in_order=True"
            )
        if world != place.world:
            raise InvalidOption(
                f"a state of a DistributedSampler of {world} ranks cannot continue with {place.world}: give shard= "
                "instead, whose order does not depend on the ranks"
            )

    def can_restore(self, own: Mapping[str, Any]) -> bool:
        """Return whether a state holds states of the dataset, or of its iterator, and those can be loaded."""
        return any(each is not None for each in own.get("states", ())) and self.keeps_dataset_state()

    def keeps_dataset_state(self) -> bool:
        """Return whether the dataset, or its iterator, may have a state.

        Where worker threads share the dataset, no state of it belongs to a batch.
        """
        settings = self.order.settings
        if settings.iterable:
            return not isinstance(settings.dataset, IterDataPipe)
        return is_stateful_dataset(settings.dataset) and not (settings.num_workers > 0 and self.in_threads())

    def streams(self, own: Mapping[str, Any], before: Streams | None, *, resumed: bool) -> Streams | None:
        """Return the dataset's states in the workers of the pass that begins; None: it has none.

        Args:
            own: of the state that the pass continues from; empty: from none.
            before: of the latest pass.
            resumed: a state was loaded.
        """
        settings = self.order.settings
        if not self.keeps_dataset_state():
            return None
        given, split = own if "states" in own else None, None
        if settings.iterable and is_hugging_face_stream(settings.dataset):
            split = fresh_split(settings.dataset, settings.num_workers)
            if given is not None:
                split, given = resumed_split(settings.dataset, given)
        return Streams(
            settings.num_workers,
            given,
            resumed=resumed,
            before=before if settings.persistent_workers else None,
            kept=settings.persistent_workers or not settings.num_workers,
            split=split,
        )

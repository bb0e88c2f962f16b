"""state_dict() and load_state_dict() of a loader: take, validate, resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Literal

from penstock.errors import DatasetChanged, InvalidOption
from penstock.order.batches import BatchOrder
from penstock.order.permutations import Epochs, Indices, KeyedSampler, Positions, checked_epoch
from penstock.order.schedule import WHOLE, Arrivals, Share
from penstock.settings import Settings, known_size
from penstock.sources.naming import catalogue
from penstock.state.hugging_face_streams import is_hugging_face_stream, place_of
from penstock.state.progress import FORMAT, Progress, checked_state, left_of, own_of
from penstock.state.samplers import SamplerStates
from penstock.state.stream_split import is_of_another_epoch, merged
from penstock.state.user_states import UserStates
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

OnChange = Literal["raise", "continue"]


class Checkpoint:
    """What a loader's state is made of: the epoch, what the latest pass has handed out, the state to continue from.

    Args:
        in_threads: called with the loader's settings, returns whether Python threads of this process read its dataset.
    """

    def __init__(self, seed: int | None, in_threads: Callable[[Settings], bool]) -> None:
        self.epochs = Epochs(seed)
        self.progress: Progress | None = None
        """Of the pass that began last."""
        self.resume: Mapping[str, Any] | None = None
        """The state that the next pass continues from."""
        self._in_threads = in_threads
        self._was_alone = False  # shard="auto" found no other ranks in the latest pass
        self._fingerprint: tuple[object, dict[str, Any]] | None = None  # a dataset, and its fingerprint

    def copied(self, in_threads: Callable[[Settings], bool]) -> Checkpoint:
        """Return the checkpoint of a copy of the loader, which counts on by itself."""
        twin = copy(self)
        twin.epochs, twin._in_threads = self.epochs.copy(), in_threads
        return twin

    def begin_with(self, epoch: int) -> None:
        """Make the next pass epoch number `epoch`, from its start. Raises TypeError, InvalidOption."""
        self.epochs.number = number = checked_epoch(epoch)
        if self.resume is not None and self.resume["epoch"] != number:
            self.resume = None

    def begins_anew(self, settings: Settings, *, reached: bool) -> bool:
        """Let the latest pass, of these settings, be the one that set_epoch() means, where it has handed out nothing.

        Returns whether it was of another epoch, and is to be begun anew. reached: set_epoch() has reached a sampler of
        the user's, which a pass in workers has begun.
        """
        progress = self.progress
        if progress is None or progress.taken or progress.done:
            return False
        if settings.iterable or (settings.seed is None and (settings.on_demand or not reached)):
            return False  # its order is not a function of the epoch, or was not drawn yet
        progress.named = True
        if progress.epoch == self.epochs.number:
            self.epochs.number += 1
            return False
        vars(progress).update(vars(self._of_epoch(settings)), named=True)  # its observers stay
        return True

    @property
    def resumes(self) -> bool:
        """Whether the next pass begins behind the start of its epoch, or with a state of the dataset."""
        state = self.resume
        return state is not None and (_is_inside(state) or bool(own_of(state)))

    @property
    def padded(self) -> int:
        """How many samples at the end of the latest batch repeat others."""
        progress = self.progress
        if progress is None or progress.schedule is None or not progress.handed:
            return 0
        return progress.schedule.part(progress.latest).padding

    def fingerprint(self, settings: Settings) -> dict[str, Any]:
        """Return what distinguishes a loader's dataset from others, once an object.

        Nothing, for an iterable dataset and one without a length.
        """
        if settings.iterable or known_size(settings.dataset) is None:
            return {}
        if self._fingerprint is None or self._fingerprint[0] is not settings.dataset:
            self._fingerprint = settings.dataset, catalogue(settings.dataset).fingerprint
        return self._fingerprint[1]

    def _own(self, settings: Settings) -> UserStates:
        return UserStates(BatchOrder(settings), lambda: self._in_threads(settings))

    def state_dict(self, settings: Settings, *, iterator_kept: bool) -> dict[str, Any]:
        """Return what DataLoader.state_dict() returns.

        iterator_kept: the iterator of the latest pass is there for the next one.
        """
        if self.resume is not None:
            return dict(self.resume)
        progress, user_states = self.progress, self._own(settings)
        drawn: dict[str, int] = {}
        now, coming = progress, None
        if now is None or now.done:
            base = now.drawn.get("base") if now is not None and iterator_kept else None
            drawn, coming = user_states.foretold(base, begun=False)
            now = Progress(self.epochs.number)
        elif not now.taken:
            drawn, coming = user_states.foretold(None, begun=True)
        drawn |= now.drawn
        own = user_states.of_pass(progress, now, coming)
        return {
            "format": FORMAT,
            "seed": settings.seed,
            "order": BatchOrder(settings).kind(),
            "epoch": now.epoch,
            "position": now.position,
            "batches": -(-now.given // now.unit),
            "drawn": {name: drawn.get(name) for name in ("order", "base")},
            "data": self.fingerprint(settings),
            "dataset": None if own is None else (own,),
        }

    def load_state_dict(self, settings: Settings, state: Any, on_change: OnChange) -> None:
        """Do what DataLoader.load_state_dict() does."""
        streams = settings.iterable and is_hugging_face_stream(settings.dataset)
        if streams and isinstance(state, list | tuple) and state:
            state = merged([checked_state(one) for one in state], own_of, place_of(settings.dataset))
        state = self._checked(settings, state, on_change)
        if streams and "held" in own_of(state):
            settings.dataset.set_epoch(own_of(state)["epoch"])
        restored = self._own(settings).can_restore(own_of(state))
        if settings.iterable and state["batches"] and not restored:
            warn_user(
                f"{type(settings.dataset).__name__} has no state_dict() and load_state_dict() that its workers could "
                f"call: {counted(state['batches'], 'batch', 'batches')} will be read and dropped to continue after them"
            )
        self.epochs.number = state["epoch"]
        self.resume, self.progress = state, None

    def _checked(self, settings: Settings, state: Any, on_change: OnChange) -> dict[str, Any]:
        """Return a state that this loader can continue from."""
        if on_change not in ("raise", "continue"):
            raise InvalidOption(f"on_change={on_change!r}: it is 'raise' or 'continue'")
        state = checked_state(state)
        if state.get("seed") != settings.seed:
            raise InvalidOption(f"a state of seed={state.get('seed')} cannot continue with seed={settings.seed}")
        self._check_changes(settings, state, on_change)
        self._own(settings).check(state)
        if state["position"] and not _draws_independently(settings):
            end = BatchOrder(settings).size()
            if state["position"] > end:
                raise InvalidOption(
                    f"a state at position {state['position']:,} of an epoch of {counted(end, 'sample')}"
                )
        return {**state, "data": self.fingerprint(settings), "order": BatchOrder(settings).kind()}

    def _check_changes(self, settings: Settings, state: Mapping[str, Any], on_change: OnChange) -> None:
        """Raise DatasetChanged where the dataset, or the sampler, has changed; InvalidOption where it cannot go on.

        In the middle of an epoch what is left of it is known where the samples are the same, in the loader's own order,
        and where each draw is independent of those before.
        """
        before, order = str(state.get("order")), BatchOrder(settings).kind()
        kind = order.partition(" ")[0]
        if before != order and (not isinstance(settings.sampler, KeyedSampler) or before.partition(" ")[0] != kind):
            raise InvalidOption(f"a state of an epoch {before} cannot continue {order}")
        then, now = state["data"], self.fingerprint(settings)
        changes = _differences(then, now) if then and now else ""
        if changes:
            changes = f"the dataset is not what it was when the state was taken: {changes}"
        elif before != order:
            changes = f"{kind} is not what it was when the state was taken: it draws differently"
        if not changes:
            return
        same_ids = all(then.get(name) == now.get(name) for name in ("size", "ids"))
        same = before == order and same_ids and not state["batches"]
        if _is_inside(state) and not (same or _draws_independently(settings)):
            changes += (
                "; which samples are left of this epoch is not known: begin the next one with "
                f"set_epoch({state['epoch'] + 1})"
            )
            raise (InvalidOption if on_change == "continue" else DatasetChanged)(changes)
        if on_change == "raise":
            remedy = "load_state_dict(state, on_change='continue') continues with the present dataset"
            raise DatasetChanged(f"{changes}; {remedy}")

    def replayed(
        self, settings: Settings, epoch: int, step: int, rank: int | None, state: Mapping[str, Any] | None
    ) -> tuple[Indices, Positions]:
        """Return the indices of a past batch, and their positions in the epoch's order."""
        if state is None:
            return BatchOrder(settings).indices_at(epoch, step, rank)
        state = self._checked(settings, state, "raise")
        if state["epoch"] != epoch:
            raise InvalidOption(f"a state of epoch {state['epoch']} does not cover epoch {epoch}")
        return BatchOrder(settings).indices_at(epoch, step, rank, left_of(state))

    def next_progress(self, settings: Settings) -> Progress:
        """Return the record of the pass that begins: from the start of the next epoch, or where a state was taken."""
        if settings.shard == "auto":
            alone = (BatchOrder(settings).share() or Share()).world == 1
            if self._was_alone and not alone:
                warn_user(
                    "shard='auto': an earlier pass of this loader read the whole dataset, because no process group ran "
                    "and RANK and WORLD_SIZE were not set. Call init_process_group() before the first pass"
                )
            self._was_alone = alone
        before = self.progress
        if before is not None and before.named and not before.taken:
            self.epochs.number = before.epoch  # set_epoch() meant this pass, if nothing continues the one before
        return self._of_epoch(settings)

    def _of_epoch(self, settings: Settings) -> Progress:
        state, self.resume = self.resume, None
        if state is not None and is_of_another_epoch(settings.dataset, own_of(state)):
            state = None
        if state is None and (settings.in_order or not settings.num_workers) and self._is_plain(settings):
            return Progress(self.epochs.number)
        user_states = self._own(settings)
        order = user_states.order
        own = {} if state is None else own_of(state)
        before = None if self.progress is None else self.progress.streams
        streams = user_states.streams(own, before, resumed=state is not None)
        inside = state is not None and _is_inside(state)
        origin = user_states.origin(own, inside=inside)
        progress = Progress(self.epochs.number, streams=streams, origin=origin)
        if not settings.in_order and settings.num_workers and not settings.iterable:
            progress.arrivals = Arrivals()
        if not settings.iterable and not order.draws_itself():
            latest = None if self.progress is None else self.progress.samplers
            pending = latest.pending if latest is not None and state is None else None
            progress.samplers = SamplerStates(own.get("sampler", pending), origin)
        if state is None:
            return progress
        progress.epoch, progress.left = state["epoch"], left_of(state)
        progress.drawn = {name: value for name, value in state["drawn"].items() if value is not None}
        if "order" in progress.drawn and (not inside or own.get("origin", {}).get("generators")):
            progress.drawn["foretold"] = 1
        progress.skipped = state["batches"]
        if order.counts_samples():
            progress.skipped = own.get("samples", state["batches"] * (settings.batch_size or 1))
        return progress

    def _is_plain(self, settings: Settings) -> bool:
        """Return whether passes have no state beside their numbers; found once for these settings."""
        known: dict[str, bool] = settings.known
        if "plain" not in known:
            known["plain"] = self._own(settings).has_none()
        return known["plain"]

    def forwarded(self, settings: Settings, batches: Any, progress: Progress) -> Any:
        """Return a pass behind the batches of an iterable dataset that were handed out before."""
        streams = progress.streams
        if not settings.iterable or (streams is not None and streams.given):
            return batches
        if streams is not None and any(streams.to_drop) and settings.num_workers:
            return batches  # each worker's are dropped as they come
        batches.observers = ()
        for _ in range(progress.skipped):
            next(batches, None)
            if streams is not None and not any(streams.to_drop):
                streams.taken()
        return batches


def _is_inside(state: Mapping[str, Any]) -> bool:
    return left_of(state) != WHOLE or bool(state["batches"])


def _draws_independently(settings: Settings) -> bool:
    return isinstance(settings.sampler, KeyedSampler) and settings.sampler.independent


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words how a dataset of one fingerprint differs from that of another; empty: not at all."""
    found = []
    had, has = then.get("size") or 0, now.get("size") or 0
    if had != has:
        found.append(f"it had {counted(had, 'sample')} and has {has:,} ({has - had:+,})")
    if then.get("ids") != now.get("ids"):
        found.append("its IDs, or their order, have changed")
    found += [f"its {name} are others" for name in ("labels", "sizes") if not found and then.get(name) != now.get(name)]
    return "; ".join(found)

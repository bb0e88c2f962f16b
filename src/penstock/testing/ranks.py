"""Some ranks, played one after the other in this process, in lockstep."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, islice
from typing import Any, NoReturn

from penstock.errors import InvalidOption
from penstock.loader import DataLoader

Make = Callable[..., DataLoader[Any]]
_END = object()


def fail(message: str) -> NoReturn:
    """Raise AssertionError; pytest does not show this frame."""
    __tracebackhide__ = True
    raise AssertionError(message)


class Ranks:
    """Several ranks, run in this process in lockstep.

    Args:
        make: returns the loader of one rank.
        ranks: how many.
        workers: num_workers= of each.
        epoch: of the next pass; None: as the loaders have it.
        state: a state_dict() that the loaders continue from.
        options: further arguments of make.

    Attributes:
        loaders: one for each rank.
    """

    def __init__(
        self,
        make: Make,
        ranks: int,
        *,
        workers: int = 0,
        epoch: int | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        shards = [(rank, ranks) for rank in range(ranks)] if ranks > 1 else [None]
        with without_advice():
            self.loaders = [make(num_workers=workers, shard=shard, **options) for shard in shards]
        self.epoch = epoch if epoch is not None else 0 if state is None else int(state["epoch"])
        for loader in self.loaders:
            if epoch is not None:
                loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)

    def __iter__(self) -> Iterator[list[Any]]:
        """Go through one pass: yield the batches of each step, one for each rank.

        Raises:
            AssertionError: a rank has no batch left and another has.
        """
        with without_advice():
            passes = [iter(loader) for loader in self.loaders]
        for step in count():
            batches = [next(one, _END) for one in passes]
            ended = [rank for rank, batch in enumerate(batches) if batch is _END]
            if len(ended) == len(batches):
                return
            if ended:
                going = next(rank for rank, batch in enumerate(batches) if batch is not _END)
                fail(
                    f"epoch {self.epoch}, step {step}: rank {ended[0]} has no batch left and rank {going} has one: in "
                    "a collective it would wait for ever"
                )
            yield batches

    def padded(self) -> list[int]:
        """Return how many samples at the end of each rank's latest batch are padding."""
        return [loader.padded for loader in self.loaders]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the ranks, as JSON gives it back.

        Raises:
            AssertionError: JSON cannot hold it, or the ranks have different ones.
        """
        states = [loader.state_dict() for loader in self.loaders]
        for rank, state in enumerate(states):
            if state != states[0]:
                fail(f"epoch {self.epoch}: rank {rank} has another state than rank 0: {state}, not {states[0]}")
        try:
            copy: dict[str, Any] = json.loads(json.dumps(states[0]))
        except (TypeError, ValueError) as error:
            fail(f"epoch {self.epoch}: the state cannot be written as JSON: {error}")
        return copy

    def name(self, step: int, rank: int, row: int) -> str | None:
        """Return the ID of a sample of a pass that began at the start of the epoch, None where it cannot be known."""
        with suppress(InvalidOption, IndexError):
            return self.loaders[rank].ids(self.epoch, step)[row]
        return None


def simulate(
    make: Make, ranks: int, steps: int | None = None, *, workers: int = 0, epoch: int | None = None
) -> list[list[Any]]:
    """Return the batches of several ranks, run in this process in lockstep: [step][rank].

    Args:
        make: returns the loader of one rank; see penstock.testing.
        ranks: how many.
        steps: how many steps are taken at the most; None: all.
        workers: num_workers= of each rank.
        epoch: its number; None: the loaders' next one.

    Raises:
        AssertionError: a rank has no batch left and another has.
    """
    return list(islice(Ranks(make, ranks, workers=workers, epoch=epoch), None if steps is None else max(0, steps)))


@contextmanager
def without_advice() -> Iterator[None]:
    """Keep loaders from warning of more workers than CPUs: a check reads few samples, and asks for them on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield

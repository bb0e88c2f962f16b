"""Whether the ledgers of an epoch, of all ranks and of runs that continued each other, give each sample once.

An order that holds each sample once is cut into steps from a position on, by the rules of `order.schedule.Schedule`. A
run that continues on other ranks begins at a step's end of the run before it; what that run did behind it does not
count. So the numbers of samples in the steps say whether the steps cover the order, each position once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import InvalidOption
from penstock.state.ledger import LedgerFile, unlike

#: Facts that may differ between the ledgers of one epoch.
_OF_RUNS = ("batch_size", "rank", "world")


@dataclass(frozen=True)
class Run:
    """The steps of one epoch that the ranks of one run took."""

    world: int
    batch_size: int
    first: int
    """Its first step, counted from the start of the epoch."""
    samples: Sequence[int]
    """Of each step, on all ranks."""

    @property
    def step_size(self) -> int:
        return self.world * self.batch_size

    def follows(self, rest: int) -> bool:
        """Return whether its steps are the first ones of what is left: of so many samples."""
        for samples in self.samples:
            if rest <= 0 or samples != min(self.step_size, -(-rest // self.world) * self.world):
                return False
            rest -= self.step_size
        return True


@dataclass(frozen=True)
class Seen:
    """What ledgers say of the samples of one epoch."""

    epoch: int
    size: int
    """Samples of the dataset."""
    parts: Sequence[tuple[Run, int]]
    """The runs, and how many of the steps of each count; empty: they do not continue each other."""

    @property
    def given(self) -> int:
        """Samples in the steps that count."""
        return sum(sum(run.samples[:steps]) for run, steps in self.parts)

    @property
    def once(self) -> bool:
        return bool(self.parts) and self.given == self.size


def seen(files: Iterable[LedgerFile]) -> list[Seen]:
    """Return what ledgers say of each epoch of which they hold steps.

    Raises InvalidOption: they are of several datasets, seeds or orders, of an order that does not hold each sample
    once, or the ledger of a rank is missing.
    """
    ledgers = list(files)
    first = ledgers[0]
    for other in ledgers:
        for name, one, two in unlike(first.run, other.run):
            if name not in _OF_RUNS:
                raise InvalidOption(f"{first.path!r} and {other.path!r} are of other runs: {name} is {one} and {two}")
    order = str(first.run.get("order"))
    if order != "in sequence" and not order.startswith("shuffled"):
        raise InvalidOption(f"{first.path!r} is of the order {order!r}, which need not hold each sample once")
    size, runs = first.run["data"]["size"], list(_runs(ledgers))
    epochs = sorted({epoch for steps in runs for epoch, _ in steps[1]})
    return [_of_epoch(epoch, size, runs) for epoch in epochs]


def _runs(ledgers: Sequence[LedgerFile]) -> Iterator[tuple[tuple[int, int], dict[tuple[int, int], int]]]:
    """Yield (ranks, batch size) and the samples of each (epoch, step), of steps that all ranks of a run took."""
    groups: dict[tuple[int, int], dict[int, dict[tuple[int, int], int]]] = {}
    for file in sorted(ledgers, key=lambda file: file.steps[0][:2] if file.steps else (0, 0)):
        world, batch_size = file.run["world"], file.run["batch_size"] or 1
        taken = groups.setdefault((world, batch_size), {}).setdefault(file.run["rank"], {})
        for step in file.steps[:1]:  # what an earlier ledger of the same rank holds of it and later does not count
            for place in [place for place in taken if place >= step[:2]]:
                del taken[place]
        taken.update({step[:2]: step.samples for step in file})
    for (world, batch_size), ranks in groups.items():
        if missing := [rank for rank in range(world) if rank not in ranks]:
            raise InvalidOption(
                f"the ledger of rank {missing[0]} is missing, of a run of {world} ranks with batches of {batch_size}"
            )
        common = set.intersection(*(set(taken) for taken in ranks.values()))
        yield (world, batch_size), {place: sum(taken[place] for taken in ranks.values()) for place in common}


def _of_epoch(epoch: int, size: int, runs: Sequence[tuple[tuple[int, int], Mapping[tuple[int, int], int]]]) -> Seen:
    found = []
    for (world, batch_size), steps in runs:
        if numbers := sorted(step for of, step in steps if of == epoch):
            last = next((i for i, step in enumerate(numbers) if step != numbers[0] + i), len(numbers))
            samples = [steps[epoch, step] for step in numbers[:last]]
            found.append(Run(world, batch_size, numbers[0], samples))
    found.sort(key=lambda run: run.first * run.step_size)
    return Seen(epoch, size, _chain(found, 0, size) or ())


def _chain(runs: Sequence[Run], start: int, size: int) -> list[tuple[Run, int]] | None:
    """Return how many steps of each run count where the first one begins at a position, or None: they do not fit."""
    run, later = runs[0], runs[1:]
    if -(-start // run.step_size) != run.first or not run.follows(size - start):
        return None
    if not later:
        return [(run, len(run.samples))]
    for steps in range(len(run.samples), -1, -1):
        if (rest := _chain(later, start + steps * run.step_size, size)) is not None:
            return [(run, steps), *rest]
    return None

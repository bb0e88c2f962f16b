"""What goes wrong behind a stop where the workers, the ranks, the batch size or the data are other than before.

Each number counts samples that came twice or not at all, or came with other random draws; all that were left count
where the state is refused. `unnoticed` counts changes of the data that were not refused.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch

from benchmarks.contestants import penstock_loader, torchdata_loader
from benchmarks.question import Contestant, Numbers, Role, Running, Setup, Table, Target, lower

SIZE, BATCH, SEED = 60, 4, 7
SMALL = Setup("", SIZE, BATCH, workers=0)
WORKERS = ((2, 0), (0, 2), (2, 4), (4, 2))
RANKS = ((2, 1), (2, 3), (1, 2))
BATCHES = ((4, 3), (4, 6))
SNAPSHOT = 3
"""Steps between two snapshots of torchdata's workers, in the case of batch sizes."""

OTHER_WORKERS = lower("other_workers", "samples")
OTHER_RANKS = lower("other_ranks", "samples")
OTHER_BATCH = lower("other_batch_size", "samples")
OTHER_DRAWS = lower("other_draws", "samples")
UNNOTICED = lower("unnoticed", "changes")
MEASURES = (OTHER_WORKERS, OTHER_RANKS, OTHER_BATCH, OTHER_DRAWS, UNNOTICED)
Sample = tuple[int, float]
"""The number and the random draw of a sample."""
Make = Callable[..., Any]
"""make(dataset, shard=None, snapshot=1, **options): a loader."""


class Labelled:
    """Numbers, with labels as torchvision's datasets have them."""

    def __init__(self, size: int = SIZE, classes: int = 10) -> None:
        self.targets = [index % classes for index in range(size)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return index, self.targets[index], torch.rand(())


def samples(loader: Any, batches: Iterable[Any]) -> list[Sample]:
    """Number and draw of each sample, without padding."""
    found: list[Sample] = []
    for numbers, _, draws in batches:
        pairs = zip(numbers.tolist(), draws.tolist(), strict=True)
        found += islice(pairs, len(numbers) - getattr(loader, "padded", 0))
    return found


def stopped(loader: Any, steps: int) -> tuple[Any, list[Sample]]:
    """The state behind some steps, and the samples before it."""
    batches = iter(loader)
    came = samples(loader, islice(batches, steps))
    return loader.state_dict(), came


def gone_on(loader: Any, state: Any) -> list[Sample]:
    loader.load_state_dict(state)
    return samples(loader, loader)


class Changes:
    """Each change, tried once: how many samples it disturbs, and a line on each in `results`."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.results: list[str] = []

    def workers(self, before: int, after: int) -> int:
        state, came = stopped(self.make(Labelled(), num_workers=before), 6)
        loader = partial(self.make, Labelled(), num_workers=after)
        return self.wrong(f"{before} -> {after} workers", came, lambda: gone_on(loader(), state))

    def ranks(self, before: int, after: int) -> int:
        begun = [stopped(self.make(Labelled(), shard=(rank, before)), 6 // before) for rank in range(before)]

        def rest() -> list[Sample]:
            loaders = [self.make(Labelled(), shard=(rank, after)) for rank in range(after)]
            states = [begun[min(rank, before - 1)][0] for rank in range(after)]
            return [pair for loader, state in zip(loaders, states, strict=True) for pair in gone_on(loader, state)]

        return self.wrong(f"{before} -> {after} ranks", [pair for _, came in begun for pair in came], rest)

    def batches(self, before: int, after: int) -> int:
        make = partial(self.make, Labelled(), num_workers=2, snapshot=SNAPSHOT)
        state, came = stopped(make(batch_size=before), 7)
        return self.wrong(f"batches of {before} -> {after}", came, lambda: gone_on(make(batch_size=after), state))

    def draws(self, workers: int) -> int:
        make = partial(self.make, Labelled(), num_workers=workers)
        torch.manual_seed(1)
        loader = make()
        whole = samples(loader, loader)
        torch.manual_seed(1)
        state, came = stopped(make(), 6)
        torch.manual_seed(1)  # as a program does that is started again
        after = gone_on(make(), state)
        other = sum(mine != theirs for mine, theirs in zip(came + after, whole, strict=True))
        self.results.append(f"random draws with {workers} workers: {other} of {len(after)} others")
        return other

    def data(self) -> int:
        """How many changes of the data are not noticed."""
        state, _ = stopped(self.make(Labelled()), 6)
        others = {"10 more": Labelled(SIZE + 10), "10 fewer": Labelled(SIZE - 10), "other labels": Labelled(classes=7)}
        rests = [self.tried(name, partial(gone_on, self.make(data), state)) for name, data in others.items()]
        return sum(rest is not None for rest in rests)

    def wrong(self, name: str, before: list[Sample], go_on: Callable[[], list[Sample]]) -> int:
        """How many samples came twice or not at all; all that were left, where the state is refused."""
        rest = self.tried(name, go_on)
        if rest is None:
            return SIZE - len(before)
        came = Counter(number for number, _ in before + rest)
        twice, missing = sum(came.values()) - len(came), len(set(range(SIZE)) - set(came))
        self.results[-1] = f"{name}: {twice} twice, {missing} missing"
        return twice + missing

    def tried(self, name: str, go_on: Callable[[], list[Sample]]) -> list[Sample] | None:
        """What comes behind the stop; None where the state is refused."""
        try:
            rest = go_on()
        except Exception as refused:
            self.results.append(f"{name}: refused, {type(refused).__name__}: {refused}".strip(": "))
            return None
        self.results.append(f"{name}: not noticed")
        return rest

    def epoch(self) -> Numbers:
        self.results.clear()
        return {
            OTHER_WORKERS.key: sum(self.workers(*pair) for pair in WORKERS),
            OTHER_RANKS.key: sum(self.ranks(*pair) for pair in RANKS),
            OTHER_BATCH.key: sum(self.batches(*pair) for pair in BATCHES),
            OTHER_DRAWS.key: sum(self.draws(workers) for workers in (0, 2)),
            UNNOTICED.key: self.data(),
        }


def running(make: Make) -> Running:
    """Each change, tried once; what came of each is in `explain`."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    changes = Changes(make)
    return Running(changes.epoch, lambda: "; ".join(changes.results))


def penstock(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7, shard=(rank, ranks)); each rank goes on with the state of any."""
    return running(lambda dataset, snapshot=1, **options: penstock_loader(SMALL, dataset, seed=SEED, **options))


def torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader, for ranks with its StatefulDistributedSampler: each goes on with its own state, a
    rank more than before with the last one's."""
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def make(dataset: Any, shard: Any = None, snapshot: int = 1, **options: Any) -> Any:
        sampler = StatefulDistributedSampler(dataset, shard[1], shard[0], seed=SEED) if shard else None
        options |= {"shuffle": None, "sampler": sampler} if sampler else {}
        return torchdata_loader(
            SMALL,
            dataset,
            snapshot_every_n_steps=snapshot,
            generator=torch.Generator().manual_seed(SEED),
            persistent_workers=False,
            **options,
        )

    return running(make)


TABLE = Table(
    "changes",
    "what is wrong behind a stop where something is other than before: samples that came twice or not at all; "
    "all that were left, where the state is refused. 60 samples, 24 to 28 of them before the stop",
    (
        Contestant("penstock, seed", Role.PENSTOCK, penstock),
        Contestant("torchdata", Role.PEER, torchdata, peers=("torchdata",)),
    ),
    tuple(Target("penstock, seed", 0, None, measure) for measure in MEASURES),
    MEASURES,
)

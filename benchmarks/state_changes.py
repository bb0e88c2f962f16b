"""What goes wrong behind a stop where the workers, the ranks, the batch size or the data are other than before.

Each number counts samples that came twice or not at all, or came with other random draws; all that were left count
where the state is refused. `unnoticed` counts changes of the data that were not refused.
"""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.harness import Measure, Numbers, Running, Setup

SIZE, BATCH, SEED = 60, 4, 7
WORKERS = ((2, 0), (0, 2), (2, 4), (4, 2))
RANKS = ((2, 1), (2, 3), (1, 2))
BATCHES = ((4, 3), (4, 6))
SNAPSHOT = 3
"""Steps between two snapshots of torchdata's workers, in the case of batch sizes."""

OTHER_WORKERS = Measure("other_workers", "samples", higher_is_better=False)
OTHER_RANKS = Measure("other_ranks", "samples", higher_is_better=False)
OTHER_BATCH = Measure("other_batch_size", "samples", higher_is_better=False)
OTHER_DRAWS = Measure("other_draws", "samples", higher_is_better=False)
UNNOTICED = Measure("unnoticed", "changes", higher_is_better=False)
MEASURES = (OTHER_WORKERS, OTHER_RANKS, OTHER_BATCH, OTHER_DRAWS, UNNOTICED)

Make = Callable[..., Any]
"""(dataset, workers=0, shard=None or (rank, ranks), batch=BATCH, snapshot=1) -> a loader."""


class Labelled:
    """Numbers, with labels as torchvision's datasets have them."""

    def __init__(self, size: int = SIZE, classes: int = 10) -> None:
        self.targets = [index % classes for index in range(size)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        import torch

        return index, self.targets[index], torch.rand(())


def samples(loader: Any, batches: Iterable[Any]) -> list[tuple[int, float]]:
    """Number and draw of each sample, without padding."""
    found: list[tuple[int, float]] = []
    for numbers, _, draws in batches:
        pairs = zip(numbers.tolist(), draws.tolist(), strict=True)
        found += islice(pairs, len(numbers) - getattr(loader, "padded", 0))
    return found


def stopped(loader: Any, steps: int) -> tuple[Any, list[tuple[int, float]]]:
    """The state behind some steps, and what came."""
    batches = iter(loader)
    came = samples(loader, islice(batches, steps))
    return loader.state_dict(), came


def gone_on(loader: Any, state: Any) -> list[tuple[int, float]]:
    loader.load_state_dict(state)
    return samples(loader, loader)


class Tried:
    """What was tried, and what came of it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def rest(self, name: str, before: list[tuple[int, float]], go_on: Callable[[], list[tuple[int, float]]]) -> int:
        """How many samples came twice or not at all."""
        try:
            came = Counter(number for number, _ in before + go_on())
        except Exception as refused:
            self.said.append(f"{name}: refused, {type(refused).__name__}: {refused}".strip(": "))
            return SIZE - len(before)
        twice, missing = sum(came.values()) - len(came), len(set(range(SIZE)) - set(came))
        self.said.append(f"{name}: {twice} twice, {missing} missing")
        return twice + missing

    def change(self, name: str, go_on: Callable[[], object]) -> int:
        """Whether a change of the data goes unnoticed."""
        try:
            go_on()
        except Exception as refused:
            self.said.append(f"{name}: refused, {type(refused).__name__}: {refused}")
            return 0
        self.said.append(f"{name}: not noticed")
        return 1


def all_changes(make: Make) -> Running:
    """Try each change once; what came of each is in `explain`."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tried = Tried()

    def workers(before: int, after: int) -> int:
        state, came = stopped(make(Labelled(), workers=before), 6)
        return tried.rest(f"{before} -> {after} workers", came, lambda: gone_on(make(Labelled(), workers=after), state))

    def ranks(before: int, after: int) -> int:
        begun = [stopped(make(Labelled(), shard=(rank, before)), 6 // before) for rank in range(before)]

        def rest() -> list[tuple[int, float]]:
            loaders = [make(Labelled(), shard=(rank, after)) for rank in range(after)]
            states = [begun[min(rank, before - 1)][0] for rank in range(after)]
            return [pair for loader, state in zip(loaders, states, strict=True) for pair in gone_on(loader, state)]

        return tried.rest(f"{before} -> {after} ranks", [pair for _, came in begun for pair in came], rest)

    def batches(before: int, after: int) -> int:
        options = {"workers": 2, "snapshot": SNAPSHOT}
        state, came = stopped(make(Labelled(), batch=before, **options), 7)
        return tried.rest(
            f"batches of {before} -> {after}", came, lambda: gone_on(make(Labelled(), batch=after, **options), state)
        )

    def draws(count: int) -> int:
        torch.manual_seed(1)
        whole_loader = make(Labelled(), workers=count)
        whole = samples(whole_loader, whole_loader)
        torch.manual_seed(1)
        state, came = stopped(make(Labelled(), workers=count), 6)
        torch.manual_seed(1)  # as a program does that is started again
        after = gone_on(make(Labelled(), workers=count), state)
        other = sum(mine != theirs for mine, theirs in zip(came + after, whole, strict=True))
        tried.said.append(f"random draws with {count} workers: {other} of {len(after)} others")
        return other

    def changed() -> int:
        state, _ = stopped(make(Labelled()), 6)
        others = {"10 more": Labelled(SIZE + 10), "10 fewer": Labelled(SIZE - 10), "other labels": Labelled(classes=7)}
        return sum([tried.change(name, partial(gone_on, make(data), state)) for name, data in others.items()])

    def epoch() -> Numbers:
        tried.said.clear()
        return {
            OTHER_WORKERS.key: sum(workers(*pair) for pair in WORKERS),
            OTHER_RANKS.key: sum(ranks(*pair) for pair in RANKS),
            OTHER_BATCH.key: sum(batches(*pair) for pair in BATCHES),
            OTHER_DRAWS.key: sum(draws(count) for count in (0, 2)),
            UNNOTICED.key: changed(),
        }

    return Running(epoch, lambda: "; ".join(tried.said))


def penstock(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7, shard=(rank, ranks)); each rank goes on with the state of any."""
    import penstock

    def make(dataset: Any, workers: int = 0, shard: Any = None, batch: int = BATCH, snapshot: int = 1) -> Any:
        return penstock.DataLoader(dataset, batch, shuffle=True, seed=SEED, num_workers=workers, shard=shard)

    return all_changes(make)


def torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader, for ranks with its StatefulDistributedSampler: each goes on with its own state, a
    rank more than before with the last one's."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def make(dataset: Any, workers: int = 0, shard: Any = None, batch: int = BATCH, snapshot: int = 1) -> Any:
        sampler = StatefulDistributedSampler(dataset, shard[1], shard[0], seed=SEED) if shard else None
        return StatefulDataLoader(
            dataset,
            batch,
            shuffle=None if sampler else True,
            sampler=sampler,
            num_workers=workers,
            snapshot_every_n_steps=snapshot,
            generator=torch.Generator().manual_seed(SEED),
        )

    return all_changes(make)

"""The checks of a loader; penstock.testing says what they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from torch.utils.data import default_collate

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.order.permutations import KeyedSampler, KeyedShuffle
from penstock.sources.naming import id_of
from penstock.system.randomness import generators_kept
from penstock.system.words import counted
from penstock.testing.bitwise import difference, digest, rows
from penstock.testing.ranks import Make, Ranks, fail

Key = Callable[[Any], Iterable[Hashable]]


def assert_each_sample_once(
    make: Make,
    *,
    ranks: Sequence[int] = (1, 2, 3),
    workers: Sequence[int] = (0, 2),
    epochs: int = 1,
    key: Key | None = None,
) -> None:
    """Assert that all ranks together get each sample of the dataset once, without padding.

    With drop_last=True only the samples of the last, incomplete step may be missing.

    Args:
        make: returns the loader of one rank; see penstock.testing.
        ranks: numbers of ranks to play.
        workers: numbers of workers to play each with.
        epochs: how many.
        key: returns what tells the samples of a batch apart, in the batch's order: ``lambda batch: batch[0].tolist()``.
            It is called with batches of one sample too, straight from the dataset. None: the IDs that the loader says
            it reads; of a batch only the number of rows is looked at.

    Raises:
        AssertionError: a sample is missing or came twice.
        InvalidOption: the loader draws samples by weight or by share; without a key: its order is not a function of
            (seed, epoch), so that IDs cannot be known.
    """
    for world, count, epoch in product(ranks, workers, range(epochs)):
        team = Ranks(make, world, workers=count, epoch=epoch)
        loader = team.loaders[0]
        if isinstance(loader.sampler, KeyedSampler):
            raise InvalidOption(f"{type(loader.sampler).__name__} draws samples more than once, as it should")
        tally = Tally(f"epoch {epoch}, {_team(world, count)}")
        names = _of_dataset(loader, key)
        tally.expect(names, names)
        for step, batches in enumerate(team):
            for rank, (batch, padding) in enumerate(zip(batches, team.padded(), strict=True)):
                found = _named(team, step, rank, batch) if key is None else list(key(batch))
                tally.add(found[: len(found) - padding], f"step {step}, rank {rank}")
        size = len(loader.dataset)
        full = (loader.batch_size or 1) * world
        tally.check(size // full * full if loader.drop_last else size)


def assert_worker_invariant(make: Make, workers: Sequence[int] = (0, 1, 2, 8), epochs: int = 1) -> None:
    """Assert that batches are bitwise the same for any number of workers.

    Args:
        make: returns the loader; see penstock.testing.
        workers: numbers of workers; the first is what the others are compared with.
        epochs: how many, one after the other from one loader.

    Raises:
        AssertionError: a batch differs; the message says where in it, and of which sample.
    """
    wanted: list[list[list[Any]]] = []
    for count in workers:
        team = Ranks(make, 1, workers=count, epoch=0)
        for epoch in range(epochs):
            team.epoch = epoch
            if count == workers[0] and len(wanted) == epoch:
                wanted.append(list(team))
            else:
                _compare(
                    team,
                    wanted[epoch],
                    team,
                    f"with {counted(count, 'worker')}",
                    f"with {counted(workers[0], 'worker')}",
                )


def assert_resume_exact(
    make: Make,
    *,
    stops: int | Sequence[int] = 20,
    workers: Sequence[int] = (0, 2),
    ranks: Sequence[int] = (1, 2, 3),
    batch_sizes: Sequence[int] = (),
    epochs: int = 1,
    key: Key | None = None,
    seed: int = 0,
) -> None:
    """Assert that new loaders continue a pass exactly after any stop, from a JSON copy of the state.

    The same number of ranks, with other workers, gets batches that are bitwise those of a pass that did not stop. Other
    numbers of ranks, and other batch sizes, get each remaining sample once, bitwise as in a pass that did not stop.

    Args:
        make: returns the loader of one rank; see penstock.testing. With batch_sizes it takes batch_size= too.
        stops: how many random places to stop at, in any of the epochs; or the numbers of batches to stop after, in
            epoch 0, at its end at the latest. Each stop has the next of the pairs of ranks and workers, in turn.
        workers: numbers of workers.
        ranks: numbers of ranks.
        batch_sizes: other batch sizes that passes continue with, besides the loader's own.
        epochs: how many there are to stop in.
        key: returns what tells the samples of a batch apart, in the batch's order. None: their contents, by rows of the
            batch's tensors.
        seed: of the random places.

    Raises:
        AssertionError: a batch differs, or a sample is missing or came twice.
        TypeError: without a key: a batch is not made of rows.
    """
    cases = list(product(ranks, workers))

    @cache
    def passes(world: int) -> list[_Pass]:
        return [_Pass(Ranks(make, world, workers=workers[0], epoch=epoch)) for epoch in range(epochs)]

    for number in range(stops if isinstance(stops, int) else len(stops)):
        world, before = cases[number % len(cases)]
        after = workers[(workers.index(before) + 1) % len(workers)]
        lengths = [len(one.batches) for one in passes(world)]
        epoch, stop = _place(number, lengths, seed) if isinstance(stops, int) else (0, min(stops[number], lengths[0]))
        whole, state = passes(world)[epoch], _stopped(make, world, before, epoch, stop)
        stopped = f"stopped after step {stop} with {_team(world, before)}, and continued with "
        resumed = Ranks(make, world, workers=after, state=state)
        ours, theirs = stopped + _team(world, after), "without a stop"
        _compare(resumed, whole.batches[stop:], whole.team, ours, theirs, first=stop)
        other = ranks[(number // len(cases) + ranks.index(world) + 1) % len(ranks)]
        size = {"batch_size": batch_sizes[number % len(batch_sizes)]} if batch_sizes else {}
        if other != world or size:
            resumed = Ranks(make, other, workers=after, state=state, **size)
            sized = "".join(f", batches of {given}" for given in size.values())
            tally = whole.tally(key, stop, f"epoch {epoch}, {stopped}{_team(other, after)}{sized}")
            _go_on(resumed, key, tally, state)


class Tally:
    """Which samples came, and where.

    Args:
        subject: what messages begin with.
        repeats: the order holds samples more than once by design.
    """

    def __init__(self, subject: str, *, repeats: bool = False) -> None:
        self._subject = subject
        self._repeats = repeats
        self.wanted: Counter[Hashable] = Counter()
        self._names: dict[Hashable, str | None] = {}
        self._came: dict[Hashable, list[str]] = {}

    def expect(self, names: Mapping[Hashable, str | None], keys: Iterable[Hashable]) -> None:
        """Expect a sample for each key. names: what messages call a sample, by key."""
        self.wanted.update(list(keys))
        self._names.update(names)

    def add(self, keys: Iterable[Hashable], where: str) -> None:
        for key in keys:
            self._came.setdefault(key, []).append(where)

    def check(self, count: int, spare: int = 0) -> None:
        """Fail unless so many samples came, each once, and no more than `spare` that were not expected."""
        for key, places in self._came.items():
            if len(places) > max(1, self.wanted[key]) + (spare if self._repeats else 0):
                fail(f"{self._subject}: {self._say(key)} came {len(places)} times: {'; '.join(places)}")
        strange = [key for key in self._came if key not in self.wanted]
        if len(strange) > spare:
            key = strange[0]
            fail(f"{self._subject}: {self._say(key)} is none that should have come: {self._came[key][0]}")
        came = sum(map(len, self._came.values()))
        if came != count:
            missing = [key for key, times in self.wanted.items() if len(self._came.get(key, ())) < times]
            one = f"; {self._say(missing[0])} did not come" if missing else ""
            fail(f"{self._subject}: {came} samples came, {count} should have{one}")

    def _say(self, key: Hashable) -> str:
        name = self._names.get(key)
        if name is not None:
            return f"sample {name}"
        return "a sample" if isinstance(key, bytes) else f"sample {key!r}"


class _Pass:
    """A pass that did not stop, and its batches by [step][rank]."""

    def __init__(self, team: Ranks) -> None:
        self.team = team
        steps = [(batches, team.padded()) for batches in team]
        self.batches, self._padding = [batches for batches, _ in steps], [padding for _, padding in steps]

    def tally(self, key: Key | None, stop: int, subject: str) -> Tally:
        """Return a tally that expects the samples of the pass, of which those before the stop came."""
        tally = Tally(subject, repeats=isinstance(self.team.loaders[0].sampler, KeyedSampler))
        for step, batches in enumerate(self.batches):
            for rank, loader in enumerate(self.team.loaders):
                keys = _samples(key, loader, batches[rank], self._padding[step][rank])
                tally.expect({one: self.team.name(step, rank, row) for row, one in enumerate(keys)}, keys)
                if step < stop:
                    tally.add(keys, f"step {step}, rank {rank} before the stop")
        return tally


def _place(number: int, lengths: Sequence[int], seed: int) -> tuple[int, int]:
    """Return a random (epoch, number of steps taken), another for each number as long as there are any."""
    places = [(epoch, step) for epoch, length in enumerate(lengths) for step in range(length + 1)]
    return places[int(KeyedShuffle(len(places), seed, 0).take(number % len(places), 1)[0])]


def _stopped(make: Make, world: int, workers: int, epoch: int, stop: int) -> dict[str, Any]:
    team = Ranks(make, world, workers=workers, epoch=epoch)
    steps = iter(team)
    for step in range(stop):
        if next(steps, None) is None:
            fail(f"epoch {epoch}, step {step}: a second pass with {_team(world, workers)} ended before the first did")
    return team.state_dict()


def _go_on(team: Ranks, key: Key | None, tally: Tally, state: Mapping[str, Any]) -> None:
    """Count what comes behind a stop, and check that it is all there was left."""
    for step, batches in enumerate(team):
        for rank, (batch, padding) in enumerate(zip(batches, team.padded(), strict=True)):
            keys = _samples(key, team.loaders[rank], batch, padding)
            tally.add(keys, f"step {step}, rank {rank} after it")
    loader = team.loaders[0]
    if not loader.drop_last:
        tally.check(tally.wanted.total())
    else:  # the last step that is not full may begin elsewhere, and hold others, than without a stop
        full = (loader.batch_size or 1) * len(team.loaders)
        done = int(state["position"])
        size = len(loader.sampler if isinstance(loader.sampler, KeyedSampler) else loader.dataset)
        tally.check(done + (size - done) // full * full, spare=size - tally.wanted.total())


def _compare(team: Ranks, wanted: list[list[Any]], named: Ranks, ours: str, theirs: str, first: int = 0) -> None:
    """Fail unless a pass gives these batches; `named` knows what samples are called."""
    step = first - 1
    for step, batches in enumerate(team, first):
        if step - first == len(wanted):
            fail(f"epoch {team.epoch}, step {step}: {ours}: there is a batch; {theirs} there is none")
        for rank, (mine, other) in enumerate(zip(batches, wanted[step - first], strict=True)):
            found = difference(mine, other)
            if found is not None:
                path, row, what = found
                name = None if row is None else named.name(step, rank, row)
                sample = "" if row is None else f", sample {name if name is not None else f'at row {row}'}"
                fail(f"epoch {team.epoch}, step {step}, rank {rank}{sample}: {ours}: batch{path} {what} {theirs}")
    if step + 1 < first + len(wanted):
        fail(f"epoch {team.epoch}, step {step + 1}: {ours}: there is no batch left; {theirs} there is one")


def _team(ranks: int, workers: int) -> str:
    return f"{counted(ranks, 'rank')}, {counted(workers, 'worker')}"


def _of_dataset(loader: DataLoader[Any], key: Key | None) -> dict[Hashable, str]:
    found: dict[Hashable, str] = {}
    at: dict[Hashable, int] = {}
    dataset: Any = loader.dataset
    for index in range(len(dataset)):
        name = id_of(dataset, index)
        keys: list[Hashable] = [name]
        if key is not None:
            with generators_kept():
                sample = dataset[index]
                keys = list(key(loader.collate_fn([sample] if loader.batch_sampler is not None else sample)))
        if len(keys) != 1:
            fail(f"key() gives {len(keys)} keys for a batch of one sample, of index {index}")
        if keys[0] in found:
            fail(f"indices {at[keys[0]]} and {index} of the dataset have one key, {keys[0]!r}: keys tell samples apart")
        found[keys[0]], at[keys[0]] = name, index
    return found


def _named(team: Ranks, step: int, rank: int, batch: Any) -> list[Hashable]:
    """Return the IDs that a rank says it reads. Fails where the batch, put together by torch, has not as many rows."""
    loader = team.loaders[rank]
    names: list[Hashable] = list(loader.ids(team.epoch, step))
    if loader.collate_fn is default_collate:
        size = len(rows(batch))
        if size != len(names):
            fail(f"epoch {team.epoch}, step {step}, rank {rank}: the batch has {size} rows, for {len(names)} samples")
    return names


def _samples(key: Key | None, loader: DataLoader[Any], batch: Any, padding: int) -> list[Hashable]:
    """Return what tells the samples of a batch apart, without padding."""
    if key is not None:
        keys = list(key(batch))
    else:
        keys = [digest(row) for row in (rows(batch) if loader.batch_sampler is not None else [batch])]
    return keys[: len(keys) - padding]

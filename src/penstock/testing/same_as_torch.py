"""The check that a dataset of the user's gives with Penstock's loader what it gives with torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import torch.utils.data

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.settings import Method, method_of
from penstock.system.randomness import generators_kept
from penstock.testing.bitwise import Difference
from penstock.testing.passes import Maker, Outcome, Pass, drawn_otherwise, form_of
from penstock.testing.ranks import fail

_TORCHS = torch.utils.data.DataLoader
#: Options of torch's loader that choose samples: with one of them, the check chooses none.
_CHOOSING = ("shuffle", "sampler", "batch_sampler")


def assert_same_as_torch(
    dataset: Any,
    *,
    batch_size: int | None = 4,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    samples: int | Sequence[int] | None = 32,
    worker_methods: Sequence[str | None] = (None, "process", "thread"),
    num_workers: Sequence[int] = (0, 2),
    seed: int | None = 7,
    worker_invariant: bool = False,
    **options: Any,
) -> None:
    """Assert that a dataset gives the same with penstock.DataLoader as with torch's, for each kind of worker.

    Compared are the length of the loader, batches (types, dtypes, shapes, strides, bits), classes and words of errors,
    warnings in the caller's thread, and the states of the global generators behind the pass. Each pass begins with a
    copy of the dataset, where it can be copied, and with the same global generators.

    With a seed there is no loader of torch's to compare with: the oracle is worker_method="process", where nothing is
    native. Only types, dtypes, numbers of dimensions and keys are compared where the loader promises no more: in
    threads, of a dataset that draws from global generators or changes attributes of its own (torch's batches then
    depend on the number of workers), and without a seed, of a recognised dataset with random transforms.

    Args:
        dataset: of the user's; any that torch's loader takes.
        batch_size: of the loaders.
        collate_fn: of the loaders.
        samples: how many are looked at, spread evenly over the dataset; or their indices, in order; None: all. Where an
            option chooses samples (shuffle=, sampler=, batch_sampler=), and of an iterable dataset: the first so many.
        worker_methods: of penstock.DataLoader.
        num_workers: numbers of workers, with each method.
        seed: of penstock.DataLoader in the second part of the check; None leaves that part out.
        worker_invariant: with the seed, batches must also be the same for each of num_workers, as they are where a
            sample depends on nothing but its index and global generators.
        options: further arguments of both loaders.

    Raises:
        AssertionError: something differs. The message names the worker method, the batch, the index of the sample and
            the path in it, where they are known, and both values.
        InvalidOption: threads cannot have copies of the dataset; see worker_method= of penstock.DataLoader.
        TypeError, ValueError: torch's loader does not take these options.
    """
    given = {"batch_size": batch_size, "collate_fn": collate_fn, **options}
    if "batch_sampler" in options:
        del given["batch_size"]
    size = given.get("batch_size") or 1
    if not isinstance(dataset, torch.utils.data.IterableDataset) and not any(name in options for name in _CHOOSING):
        given.update(_sampler(dataset, samples))
    limit = samples if isinstance(samples, int) else len(samples) if samples is not None else None
    check = _Check(Maker(dataset, given, 1 << 62 if limit is None else -(-limit // size)), tuple(num_workers))
    with generators_kept():
        for method, workers in product(worker_methods, num_workers):
            check.compare(method, workers, None)
        if seed is not None:
            for workers, method in product(num_workers, worker_methods):
                if method_of(method) is not Method.PROCESS:
                    check.compare(method, workers, seed)
            for workers in num_workers[1:] if worker_invariant else ():
                check.compare_workers(num_workers[0], workers, seed)


class _Check:
    """Compares passes of one dataset.

    Args:
        maker: makes the loaders.
        workers: numbers of workers.
    """

    def __init__(self, maker: Maker, workers: tuple[int, ...]) -> None:
        self._maker = maker
        self._workers = workers
        self._oracle = cache(self._read_oracle)

    def compare(self, method: str | None, workers: int, seed: int | None) -> None:
        """Compare a pass of Penstock's loader with that of its oracle."""
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        ours = self._maker.read(DataLoader, num_workers=workers, worker_method=method, **options)
        for outcome in ours.outcomes[:2]:
            if isinstance(outcome.error, InvalidOption):  # not a difference of batches: there are none
                raise outcome.error
        theirs = self._oracle(workers, seed)
        if theirs.refused is not None and ours.refused is not None:  # no loader, thus nothing to compare
            raise theirs.refused
        in_threads = method_of(method) in (Method.THREAD, Method.AUTO) and workers > 0
        subject = f"worker_method={method!r}, num_workers={workers}{'' if seed is None else f', seed={seed}'}"
        whose = "torch's loader" if seed is None else "worker_method='process'"
        if in_threads:
            loose = ours.unreached() or self._depends_on_workers(workers, seed)
        else:
            loose = ours.native and seed is None and self._draws(workers)
        self._compare_outcomes(subject, whose, ours, theirs, loose=loose, across=in_threads)
        if in_threads or loose or seed is not None:
            return
        if workers == 0 and ours.warned != theirs.warned:
            fail(f"{subject}: warns {_listed(ours.warned)}, and {whose} {_listed(theirs.warned)}")
        if drawn := drawn_otherwise(ours, theirs):
            names = " and ".join(drawn)
            fail(f"{subject}: the pass leaves the global generators of {names} in other states than {whose}")

    def compare_workers(self, first: int, workers: int, seed: int) -> None:
        """Compare passes of the oracle with two numbers of workers."""
        ours, theirs = self._oracle(workers, seed), self._oracle(first, seed)
        subject = f"worker_method='process', num_workers={workers}, seed={seed}"
        self._compare_outcomes(subject, f"num_workers={first}", ours, theirs, loose=False, across=True)

    def _read_oracle(self, workers: int, seed: int | None, draw: int = 0) -> Pass:
        if seed is None:
            return self._maker.read(_TORCHS, draw, num_workers=workers)
        return self._maker.read(DataLoader, draw, num_workers=workers, worker_method="process", seed=seed)

    def _depends_on_workers(self, workers: int, seed: int | None) -> bool:
        """Return whether a sample depends on which worker makes it, and when: by its draws, say, or by counting."""
        if self._maker.iterable:
            return self._draws(workers)
        return not self._oracle(workers, seed).same(self._oracle(0, seed))

    def _draws(self, workers: int) -> bool:
        """Return whether torch's batches depend on the states of the global generators before the pass."""
        return not self._oracle(workers, None).same(self._oracle(workers, None, 1))

    def _compare_outcomes(
        self, subject: str, whose: str, ours: Pass, theirs: Pass, *, loose: bool, across: bool = False
    ) -> None:
        for number, (mine, other) in enumerate(zip(ours.outcomes, theirs.outcomes, strict=False)):
            if loose:
                mine, other = _loose(mine), _loose(other)
            found = mine.difference(other, across=across)
            if found is not None:
                fail(f"{subject}: {self._place(number, found)} with {whose}{self._advice()}")
        if len(ours.outcomes) != len(theirs.outcomes):
            counts = [max(0, len(one.outcomes) - 1) for one in (ours, theirs)]
            fail(f"{subject}: there are {counts[0]} batches, and {counts[1]} with {whose}{self._advice()}")

    def _place(self, number: int, found: Difference) -> str:
        """Return where a difference lies and what it is."""
        if number == 0:
            return f"the loader{found.path} {found.what}"
        indices: list[Any] = []
        with suppress(Exception):  # a sampler of the user's
            indices = self._maker.indices(number - 1)
        if found.row is not None and found.row < len(indices):
            return f"batch {number - 1}, sample {indices[found.row]}: sample{found.path_in_sample()} {found.what}"
        named = f", samples {', '.join(map(str, indices))}" if indices else ""
        return f"batch {number - 1}{named}: batch{found.path} {found.what}"

    def _advice(self) -> str:
        """Return what is known of a dataset that differs from itself."""
        first = self._oracle(self._workers[0], None)
        if first.same(self._read_oracle(self._workers[0], None)):
            return ""
        return ". (Two passes of torch's loader differ too: the samples depend on more than the global generators)"


def _sampler(dataset: Any, samples: int | Sequence[int] | None) -> dict[str, Any]:
    """Return the option that chooses the samples to look at; nothing where all are looked at."""
    if samples is None:
        return {}
    if not isinstance(samples, int):
        return {"sampler": list(samples)}
    size = len(dataset)
    return {} if size <= samples else {"sampler": [number * size // samples for number in range(samples)]}


def _loose(outcome: Outcome) -> Outcome:
    return Outcome(form_of(outcome.value), outcome.error)


def _listed(warned: list[tuple[type[Warning], str]]) -> str:
    return ", ".join(f"{category.__name__}: {text}" for category, text in warned) or "of nothing"

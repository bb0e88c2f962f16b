"""The check that a dataset of the user's gives with Penstock's loader what it gives with torch's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption
from penstock.executors.copies import copied
from penstock.loader import DataLoader
from penstock.settings import Method, method_of
from penstock.system.randomness import (
    States,
    generator_states,
    generators_drawn_from,
    generators_kept,
    seed_globals,
)
from penstock.testing.bitwise import Difference, difference
from penstock.testing.ranks import fail, without_advice

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
    if not isinstance(dataset, IterableDataset) and not any(name in options for name in _CHOOSING):
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
            unreached = any(text.startswith("seed= does not reach") for _, text in ours.warned)  # draws
            loose = unreached or self._depends_on_workers(workers, seed)
        else:
            loose = ours.native and seed is None and self._draws(workers)
        self._compare_outcomes(subject, whose, ours, theirs, loose=loose, across=in_threads)
        if in_threads or loose or seed is not None:
            return
        if workers == 0 and ours.warned != theirs.warned:
            fail(f"{subject}: warns {_listed(ours.warned)}, and {whose} {_listed(theirs.warned)}")
        if any(
            not one.ended or any(outcome.error is not None for outcome in one.outcomes[1:2]) for one in (ours, theirs)
        ):
            return  # a pass that did not begin, or end, has not drawn all
        if drawn := generators_drawn_from(theirs.after, ours.after):
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
                mine, other = (Outcome(form_of(one.value), one.error) for one in (mine, other))
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
        if self._oracle(self._workers[0], None).same(self._read_oracle(self._workers[0], None)):
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


def _listed(warned: list[tuple[type[Warning], str]]) -> str:
    return ", ".join(f"{category.__name__}: {text}" for category, text in warned) or "of nothing"


# --- one pass ---------------------------------------------------------------------------------------------------------

#: Lines above the frames of an error: of a worker process, and of Python.
_TRACEBACKS = ("Original Traceback (most recent call last):", "Traceback (most recent call last):")
#: A line that a loader of Penstock's adds to the text of an error.
_NOTE = re.compile(r"in (__getitem__ of sample |a batch of samples |the batch of |\S+, sample )")


@dataclass(frozen=True)
class Outcome:
    """What one request for a batch gave."""

    value: Any = None
    """The batch, or what else a call returned."""
    error: Exception | None = None
    """The error that it raised, None where it returned."""

    def difference(self, other: Outcome, *, across: bool = False) -> Difference | None:
        """Return the first difference to another outcome.

        across: one of the two may have come through a worker process, so that its error has torch's words around its
            own.
        """
        if self.error is None and other.error is None:
            return difference(self.value, other.value, layout=True)
        if self.error is not None and other.error is not None:
            if across and (_carries(self.error, other.error) or _carries(other.error, self.error)):
                return None
            same = type(self.error) is type(other.error) and words_of(self.error) == words_of(other.error)
            if same and (_in_worker(self.error) or difference(self.error.args, other.error.args) is None):
                return None
        return Difference("", None, f"{self._said()}, and {other._said()}")

    def _said(self) -> str:
        if self.error is None:
            return f"is a {type(self.value).__name__}"
        return f"raises {type(self.error).__name__}({words_of(self.error)!r})"


#: What stands behind the outcomes of a pass that was not read to its end.
_MORE = Outcome()


@dataclass(frozen=True)
class Pass:
    """What one pass gave."""

    outcomes: list[Outcome]
    """The length of the loader, then each batch."""
    ended: bool
    """Whether the pass was read to its end."""
    warned: list[tuple[type[Warning], str]]
    """The category and text of each warning in this process."""
    after: States
    """The states of the global generators behind the pass."""
    native: bool
    """Whether the native core read the dataset."""
    refused: Exception | None
    """The error by which the loader could not be made, None where it was made."""

    def same(self, other: Pass) -> bool:
        """Return whether another pass, by workers of any kind, gave the same."""
        return len(self.outcomes) == len(other.outcomes) and all(
            a.difference(b, across=True) is None for a, b in zip(self.outcomes, other.outcomes, strict=True)
        )


class Maker:
    """Makes loaders over copies of one dataset, as each pass is to begin with what the dataset is now.

    Args:
        dataset: what is read. One that cannot be copied is read itself, pass after pass.
        options: of the loader; what can be copied with the dataset is.
        most: how many batches of a pass are read.
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any], most: int) -> None:
        self._given = (dataset, dict(options))
        self._most = most
        self.iterable = isinstance(dataset, IterableDataset)

    def copied(self) -> tuple[Any, dict[str, Any]]:
        """Return the dataset and the options, copied as for a worker thread, where that is possible."""
        try:
            return copied(self._given, type(self._given[0]).__qualname__)  # type: ignore[no-any-return]
        except Exception:  # of open files and locks, and code of the user's
            return self._given[0], dict(self._given[1])

    def read(self, kind: Any, draw: int = 0, **options: Any) -> Pass:
        """Return what a pass of a loader of a class gives, behind global generators that are a function of `draw`."""
        dataset, given = self.copied()
        seed_globals(draw, 0, 0, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what the garbage collector finds, at any time
            with without_advice(), _each_warning():
                loader = _outcome(partial(kind, dataset, **given), **options)
                outcomes = [loader] if loader.error is not None else list(self._outcomes(loader.value))
        return Pass(
            [outcome for outcome in outcomes if outcome is not _MORE],
            outcomes[-1] is not _MORE,
            [(one.category, str(one.message)) for one in caught],
            generator_states(),
            repr(loader.value).endswith("read by native threads>"),
            loader.error,
        )

    def indices(self, batch: int) -> list[Any]:
        """Return the indices of a batch of a pass, as the loader's sampler gives them; nothing where none does."""
        dataset, options = self.copied()
        seed_globals(0, 0, 0, 0)
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(dataset, **options)
        if self.iterable:
            return []
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the seed that torch's iterator draws
        batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        for number, given in enumerate(batches):
            if number == batch:
                return list(given) if isinstance(given, list | tuple) else [given]
        return []

    def _outcomes(self, loader: Any) -> Iterator[Outcome]:
        """Yield what len() and each request for a batch give, and _MORE where there may be more batches."""
        yield _outcome(len, loader)
        batches = _outcome(iter, loader)
        if batches.error is not None:
            yield batches
            return
        for _ in range(self._most):
            found = _outcome(next, batches.value, _MORE)
            if found.value is _MORE:
                return
            yield found
        yield _MORE


def words_of(error: BaseException) -> str:
    """Return an error's text without the frames of tracebacks, errors before it, and the notes of a loader."""
    lines = [line.rstrip() for line in str(error).rstrip().splitlines()]
    last = max((number for number, line in enumerate(lines) if line in _TRACEBACKS), default=0)
    kept = lines[:1] + [line for line in lines[max(1, last + 1) :] if not line.startswith("  ")]
    while kept and _NOTE.match(kept[-1]):
        kept.pop()
    return "\n".join(kept)


def _in_worker(error: BaseException) -> bool:
    return str(error).startswith("Caught ")


def _carries(error: BaseException, own: BaseException) -> bool:
    """Return whether an error is the other one, as it comes through a worker process: of its class where it can be."""
    if not _in_worker(error):
        return type(error) is type(own) and words_of(error) == words_of(own)
    kind = type(own).__name__
    same = type(error) is type(own) or (type(error) is RuntimeError and str(error).startswith(f"Caught {kind} in "))
    return same and words_of(error).endswith(words_of(own))


def form_of(value: Any) -> Any:
    """Return what the draws of a sample do not change, as a rule: types, dtypes, dimensions and keys."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__, str(value.dtype), value.ndim
    if isinstance(value, Mapping):
        return type(value).__name__, {key: form_of(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value).__name__, [form_of(part) for part in value[:1]]
    return type(value).__name__


@contextmanager
def _each_warning() -> Iterator[None]:
    """Have torch's C++ give each of its warnings every time, not to the first pass only."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


def _outcome(call: Any, *arguments: Any, **named: Any) -> Outcome:
    try:
        return Outcome(call(*arguments, **named))
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> Outcome:
    """Return the outcome of a request that raised, without the frames, which would keep a pass and its workers."""
    behind: BaseException | None = error
    while behind is not None and behind.__traceback__ is not None:
        behind.__traceback__ = None
        behind = behind.__cause__ or behind.__context__
    return Outcome(error=error)

"""The check that a dataset of the user's gives with Penstock's loader what it gives with torch's."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.recipe.unseeded_generators import held_generators
from penstock.settings import Method, method_of
from penstock.system.randomness import States, generator_states, generators_drawn_from, generators_kept, seed_globals
from penstock.testing.bitwise import Difference, difference
from penstock.testing.ranks import fail, without_advice
from penstock.workers.copies import copied

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
    """Assert that penstock.DataLoader gives the same batches of a dataset as torch's, for each kind of worker.

    Compared are the length of the loader, batches (types, dtypes, shapes, strides, bits), classes and words of errors,
    warnings in the caller's thread, and the states of the global generators after the pass. Each pass begins with a
    copy of the dataset, where it can be copied, and with the same global generators.

    With a seed there is no loader of torch's to compare with: the oracle is worker_method="process", where nothing is
    native. Only types, dtypes, numbers of dimensions and keys are compared where the loader promises no more: in
    threads, of a dataset that draws from global generators or changes attributes of its own (torch's batches then
    depend on the number of workers), and without a seed, of a recognised dataset with random transforms.

    Args:
        dataset: of the user's; any that torch's loader takes.
        batch_size: of the loaders.
        collate_fn: of the loaders.
        samples: how many are compared, spread evenly over the dataset; or their indices, in order; None: all. Where an
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
    check = _Check(Passes(dataset, given, 1 << 62 if limit is None else -(-limit // size)), num_workers[0])
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
    """Compares passes of one dataset."""

    def __init__(self, passes: Passes, workers: int) -> None:
        self._passes = passes
        self._workers = workers
        self._oracle = cache(self._read_oracle)

    def compare(self, method: str | None, workers: int, seed: int | None) -> None:
        """Compare a pass of Penstock's loader with that of its oracle."""
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        ours = self._passes.read(DataLoader, num_workers=workers, worker_method=method, **options)
        theirs = self._oracle(workers, seed)
        if theirs.refused is not None and ours.refused is not None:  # no loader, thus nothing to compare
            raise theirs.refused
        in_threads = method_of(method) in (Method.THREAD, Method.AUTO) and workers > 0
        subject = f"worker_method={method!r}, num_workers={workers}{'' if seed is None else f', seed={seed}'}"
        whose = "torch's loader" if seed is None else "worker_method='process'"
        if in_threads:
            unreached = any(text.startswith("seed= does not reach") for _, text in ours.warned)  # draws
            if not unreached and not self._passes.iterable:  # a sample may depend on which worker makes it, and when
                loose = not theirs.same(self._oracle(0, seed))
            else:
                loose = unreached or self._draws(workers)
        else:
            # The copies of a dataset that keeps generators draw from other places in each worker, and each pass.
            apart = workers > 0 and self._passes.keeps_generators
            loose = apart or (ours.native and seed is None and self._draws(workers))
        self._compare_outcomes(subject, whose, ours, theirs, loose=loose)
        if in_threads or loose or seed is not None:
            return
        if workers == 0 and ours.warned != theirs.warned:
            fail(f"{subject}: warns {_listed(ours.warned)}, and {whose} {_listed(theirs.warned)}")
        if any(not one.ended or any(outcome.error for outcome in one.outcomes[1:2]) for one in (ours, theirs)):
            return  # a pass that did not begin, or end, has not drawn all
        if drawn := generators_drawn_from(theirs.after, ours.after):
            names = " and ".join(drawn)
            fail(f"{subject}: the pass leaves the global generators of {names} in other states than {whose}")

    def compare_workers(self, first: int, workers: int, seed: int) -> None:
        ours, theirs = self._oracle(workers, seed), self._oracle(first, seed)
        subject = f"worker_method='process', num_workers={workers}, seed={seed}"
        self._compare_outcomes(subject, f"num_workers={first}", ours, theirs, loose=False)

    def _read_oracle(self, workers: int, seed: int | None, draw: int = 0) -> Pass:
        if seed is None:
            return self._passes.read(_TORCHS, draw, num_workers=workers)
        return self._passes.read(DataLoader, draw, num_workers=workers, worker_method="process", seed=seed)

    def _draws(self, workers: int) -> bool:
        """Return whether torch's batches depend on the states of the global generators before the pass."""
        return not self._oracle(workers, None).same(self._oracle(workers, None, 1))

    def _compare_outcomes(self, subject: str, whose: str, ours: Pass, theirs: Pass, *, loose: bool) -> None:
        for number, (mine, other) in enumerate(zip(ours.outcomes, theirs.outcomes, strict=False)):
            if loose:
                mine, other = (one._replace(value=form_of(one.value)) for one in (mine, other))
            if (found := mine.difference(other)) is not None:
                fail(f"{subject}: {self._place(number, found)} with {whose}{self._advice()}")
        if len(ours.outcomes) != len(theirs.outcomes):
            counts = [max(0, len(one.outcomes) - 1) for one in (ours, theirs)]
            fail(f"{subject}: there are {counts[0]} batches, and {counts[1]} with {whose}{self._advice()}")

    def _place(self, number: int, found: Difference) -> str:
        if number == 0:
            return f"the loader{found.path} {found.what}"
        indices: list[Any] = []
        with suppress(Exception):  # a sampler of the user's
            indices = self._passes.indices(number - 1)
        if found.row is not None and found.row < len(indices):
            return f"batch {number - 1}, sample {indices[found.row]}: sample{found.path_in_sample()} {found.what}"
        named = f", samples {', '.join(map(str, indices))}" if indices else ""
        return f"batch {number - 1}{named}: batch{found.path} {found.what}"

    def _advice(self) -> str:
        """Return what is known of a dataset that differs from itself."""
        if self._oracle(self._workers, None).same(self._read_oracle(self._workers, None)):
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
_NOTE = re.compile(r"in (__getitem__ of sample |a batch of samples |the batch of |\S+(, sample |$))")


class Outcome(NamedTuple):
    """What one request for a batch gave."""

    value: Any = None
    """The batch, or what else a call returned."""
    error: str = ""
    """The class and words of the error that it raised, empty where it returned."""

    def difference(self, other: Outcome) -> Difference | None:
        if not self.error and not other.error:
            return difference(self.value, other.value, layout=True)
        return None if self.error == other.error else Difference("", None, f"{self._said()}, and {other._said()}")

    def _said(self) -> str:
        return f"raises {self.error}" if self.error else f"is a {type(self.value).__name__}"


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
            a.difference(b) is None for a, b in zip(self.outcomes, other.outcomes, strict=True)
        )


class Passes:
    """Makes passes over copies of one dataset, as each pass is to begin with what the dataset is now.

    Args:
        dataset: what is read. One that cannot be copied is read itself, pass after pass.
        options: of the loader; what can be copied with the dataset is.
        most: how many batches of a pass are read.
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any], most: int) -> None:
        self._given = (dataset, dict(options))
        self._most = most
        self.iterable = isinstance(dataset, IterableDataset)
        self.keeps_generators = not self.iterable and bool(held_generators(dataset))

    def _copied(self) -> tuple[Any, dict[str, Any]]:
        """Return the dataset and the options, copied as for a worker thread, where that is possible."""
        try:
            return copied(self._given, type(self._given[0]).__qualname__)  # type: ignore[no-any-return]
        except Exception:  # of open files and locks, and code of the user's
            return self._given[0], dict(self._given[1])

    def read(self, kind: Any, draw: int = 0, **options: Any) -> Pass:
        """Return what a pass of a loader of a class gives, behind global generators that are a function of `draw`.

        Raises InvalidOption: Penstock's loader does not take the dataset, or the options.
        """
        dataset, given = self._copied()
        seed_globals(draw, 0, 0, 0)
        loader, refused, outcomes, ended = None, None, [], False
        with ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what the garbage collector finds, at any time
            stack.enter_context(without_advice())
            stack.callback(torch.set_warn_always, torch.is_warn_always_enabled())
            torch.set_warn_always(True)  # else torch's C++ warns the first pass only
            try:
                loader = kind(dataset, **given, **options)
            except InvalidOption:
                raise
            except Exception as error:
                refused = error
                outcomes = [Outcome(error=words_of(error))]
            else:
                outcomes, ended = self._outcomes(loader)
        warned = [(one.category, str(one.message)) for one in caught]
        native = repr(loader).endswith("read by native threads>")
        return Pass(outcomes, ended, warned, generator_states(), native, refused)

    def indices(self, batch: int) -> list[Any]:
        """Return the indices of a batch of a pass, as the loader's sampler gives them; nothing where none does."""
        dataset, options = self._copied()
        seed_globals(0, 0, 0, 0)
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(dataset, **options)
        if self.iterable:
            return []
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the seed that torch's iterator draws
        batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        given: Any = next(islice(batches, batch, None), [])
        return list(given) if isinstance(given, list | tuple) else [given]

    def _outcomes(self, loader: Any) -> tuple[list[Outcome], bool]:
        """Return what len() and each request for a batch give, and whether there are no more batches."""
        batches, end = _outcome(iter, loader), object()
        found = [_outcome(len, loader)]
        if batches.error:
            return [*found, batches], True
        while len(found) <= self._most:
            outcome = _outcome(next, batches.value, end)
            if outcome.value is end:
                return found, True
            found.append(outcome)
        return found, False


def words_of(error: BaseException) -> str:
    """Return an error's class and text, without the frames of tracebacks, errors before it, and notes of a loader.

    An error that came through a worker process has the same words as in it.
    """
    carried = str(error).startswith("Caught ")
    text = str(error) if carried else "".join(traceback.format_exception_only(error))
    lines = text.rstrip().splitlines()
    last = max((number for number, line in enumerate(lines) if line.rstrip() in _TRACEBACKS), default=-1)
    kept = [line.rstrip() for line in lines[last + 1 :] if not line.startswith("  ")]
    while kept and _NOTE.match(kept[-1]):
        kept.pop()
    return "\n".join(kept)


def form_of(value: Any) -> Any:
    """Return what the draws of a sample do not change, as a rule: types, dtypes, dimensions and keys."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__, str(value.dtype), value.ndim
    if isinstance(value, Mapping):
        return type(value).__name__, {key: form_of(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value).__name__, [form_of(part) for part in value[:1]]
    return type(value).__name__


def _outcome(call: Any, *arguments: Any) -> Outcome:
    try:
        return Outcome(call(*arguments))
    except InvalidOption:
        raise
    except Exception as error:
        return Outcome(error=words_of(error))

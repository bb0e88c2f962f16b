"""What one pass of a loader gives: batches and errors in order, warnings, and the generators that it leaves behind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.executors.copies import copied
from penstock.system.randomness import States, generator_states, generators_drawn_from, seed_globals
from penstock.testing.bitwise import Difference, difference
from penstock.testing.ranks import without_advice

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
    made: bool
    """Whether the loader could be made."""

    @property
    def refused(self) -> Exception | None:
        """The error by which the loader could not be made, None where it was made."""
        return None if self.made else self.outcomes[0].error

    def unreached(self) -> bool:
        """Return whether the loader warned of draws that its seed does not set."""
        return any(text.startswith("seed= does not reach") for _, text in self.warned)

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
            return copied(self._given, type(self._given[0]).__qualname__, iterable=self.iterable)  # type: ignore[no-any-return]
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
            loader.error is None,
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


def drawn_otherwise(ours: Pass, theirs: Pass) -> tuple[str, ...]:
    """Return the names of the global generators that two passes left in other states, where both began and ended."""
    if not all(one.ended and all(outcome.error is None for outcome in one.outcomes[1:2]) for one in (ours, theirs)):
        return ()
    return generators_drawn_from(theirs.after, ours.after)


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

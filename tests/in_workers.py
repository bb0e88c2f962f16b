"""Calls made as a dataset's own code makes them: in the samples of a loader of ours, in the caller's thread.

A function of a package has to be looked up within the call: it is exchanged while the pass is open.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import penstock
from tests.data import Made


def in_samples(work: Callable[[int], Any], count: int = 1, **options: Any) -> list[Any]:
    """Return what a function gives for each of so many samples, or raise what it raises."""
    found: list[Any] = []

    def sample(index: int) -> int:
        found.append(work(index))
        return index

    for _ in penstock.DataLoader(Made(sample, count), None, **options):
        pass
    return found


class Worker:
    """Makes calls in the samples of one loader, which counts them."""

    def __init__(self) -> None:
        self._loader = penstock.DataLoader(Made(self._sample, 1), None, num_workers=0)
        self._work: Callable[[], object] = dict

    def _sample(self, index: int) -> int:
        self._work()
        return index

    @property
    def calls(self) -> dict[str, Any]:
        """What stats() says of the calls so far, by function."""
        return self._loader.stats().calls

    @property
    def answered(self) -> int:
        """How many of them were answered natively."""
        return sum(counts.answered for counts in self.calls.values())

    def __call__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what a call gives, or raise what it raises."""
        found: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                found.append(call(*arguments, **named))
            except BaseException as error:
                errors.append(error)

        self._work = work
        for _ in self._loader:
            pass
        self._work = dict
        if errors:
            raise errors.pop()
        return found.pop()


_one_worker = functools.cache(Worker)


def within(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return what a call gives in one of our workers, or raise what it raises."""
    return _one_worker()(call, *arguments, **named)


def is_answered(call: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Return whether a call is answered natively."""
    worker = Worker()
    with contextlib.suppress(Exception):
        worker(call, *arguments, **named)
    return worker.answered > 0 and not any(counts.refused for counts in worker.calls.values())


def answered(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return what a call gives that is answered natively."""
    worker = Worker()
    found = worker(call, *arguments, **named)
    assert worker.answered == 1, worker.calls
    return found


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return why a call is not answered natively; what the original function gives or raises does not count."""
    worker = Worker()
    with contextlib.suppress(Exception):
        found = worker(call, *arguments, **named)
        getattr(found, "close", dict)()
    reasons = [reason for counts in worker.calls.values() for reason in counts.refused]
    assert reasons, worker.calls
    return "; ".join(reasons)

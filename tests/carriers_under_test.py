"""The ways in which a loader can have its batches made: options of DataLoader, by name, for parametrised tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest


class Executor(NamedTuple):
    """One way to read."""

    options: dict[str, Any]
    """Of penstock.DataLoader."""
    says: str
    """What the first line of explain() has in it."""
    torchs: dict[str, Any]
    """Options with which torch's loader gives the same."""

    @property
    def native(self) -> bool:
        """Whether it is of datasets that the native core reads."""
        return self in NATIVE.values()


def _of(says: str, torchs: dict[str, Any] | None = None, /, **options: Any) -> Executor:
    return Executor(options, says, torchs or {})


#: Of datasets that the native core reads.
NATIVE: dict[str, Executor] = {
    "native, caller": _of("the caller's thread fills batches", num_workers=0),
    "native, default": _of("fill batches"),
    "native, 1": _of("1 native thread fills", num_workers=1),
    "native, 2": _of("2 native threads fill", num_workers=2),
    "native, 8": _of("8 native threads fill", num_workers=8),
    "native, persistent": _of("2 native threads fill", num_workers=2, persistent_workers=True),
    "native, fed": _of("2 native threads fill", num_workers=2, device="cpu"),
}

_ONE: dict[str, Any] = {"num_workers": 1}
_TWO: dict[str, Any] = {"num_workers": 2}

#: Of datasets that Python reads.
PYTHON: dict[str, Executor] = {
    "caller": _of("in the caller's thread", num_workers=0),
    "caller, default": _of("in the caller's thread"),
    "caller, torch's": _of("in the caller's thread", num_workers=0, worker_method="process"),
    "caller, seed": _of("in the caller's thread", num_workers=0, seed=1),
    "caller, fed": _of("in the caller's thread", num_workers=0, device="cpu"),
    "threads, caller": _of("in the caller's thread", num_workers=0, worker_method="thread"),
    "threads, 1": _of("in 1 thread of this process", num_workers=1, worker_method="thread"),
    "threads, 2": _of("in 2 threads of this process", num_workers=2, worker_method="thread"),
    "threads, 5": _of("in 5 threads of this process", num_workers=5, worker_method="thread"),
    "threads, persistent": _of("in 2 threads", num_workers=2, worker_method="thread", persistent_workers=True),
    "processes, 1": _of("1 worker process", _ONE, num_workers=1),
    "processes, 1, seed": _of("1 worker process", _ONE, num_workers=1, seed=1),
    "processes, 2": _of("2 worker processes", _TWO, num_workers=2),
    "processes, persistent": _of("2 worker processes", _TWO, num_workers=2, persistent_workers=True),
    "processes, out of order": _of("2 worker processes", _TWO, num_workers=2, in_order=False),
    "processes, fed": _of("2 worker processes", _TWO, num_workers=2, device="cpu"),
}

EXECUTORS = NATIVE | PYTHON


def executors(*names: str) -> pytest.MarkDecorator:
    """Parametrise `executor` with those of these names."""
    return pytest.mark.parametrize("executor", [EXECUTORS[name] for name in names], ids=names)


def options(*names: str) -> pytest.MarkDecorator:
    """Parametrise `options` with the arguments of the executors of these names."""
    return pytest.mark.parametrize("options", [EXECUTORS[name].options for name in names], ids=names)

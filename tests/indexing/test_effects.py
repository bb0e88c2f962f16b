"""Code with effects runs as often, and in the same order, as with torch's loader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data as tud

import penstock
from tests.indexing import effects
from tests.indexing.both import assert_as_torch, seen
from tests.indexing.effects import EFFECTS

ids: Any = {"ids": lambda kind: kind.__name__}


class Caught(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        effects.CALLS.append(record.getMessage())


def made(kind: Any) -> Callable[[], Any]:
    def make() -> Any:
        effects.forget()
        return kind()

    return make


def state(data: Any) -> Any:
    """Return all that the code of a dataset may have left behind."""
    named = ("lock", "generator", "draws", "rng", "truth", "transform")
    own = {name: value for name, value in vars(data).items() if name not in named}
    drawn = data.generator.get_state(), repr(data.draws.getstate()), repr(data.rng.bit_generator.state)
    truth = data.truth.asked if hasattr(data, "truth") else 0
    return own, drawn, truth, effects.CALLS[:], effects.COUNT, type(data).__dict__.get("total")


@pytest.fixture(autouse=True)
def _caught() -> Any:
    logger, handler = logging.getLogger("tests.indexing"), Caught()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.parametrize("kind", EFFECTS, **ids)
def test_effects(kind: Any) -> None:
    for options in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 3, "shuffle": True, "drop_last": True}, {}):
        assert_as_torch(made(kind), lambda options=options: options, passes=3, state=state)  # type: ignore[misc]


class Left(Exception):
    """A loop that is left."""


def leave(batch: Any) -> None:
    raise Left


@pytest.mark.parametrize("kind", [kind for kind in EFFECTS if kind is not effects.Yielding], **ids)
def test_effects_of_a_pass_that_is_left(kind: Any) -> None:
    """What was not asked for has not been read."""
    found = []
    for loader in (tud.DataLoader, penstock.DataLoader):
        dataset: Any = made(kind)()
        with pytest.raises(Left):
            seen(loader, lambda: dataset, lambda: {"batch_size": 4}, {}, receive=leave)  # noqa: B023
        found.append(repr(state(dataset)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["Counter", "Drawing", "InPlace", "Caching", "AppendingToModule"])
def test_effects_in_worker_processes(name: str) -> None:
    """They are the worker's, anew in each pass or (where workers persist) from pass to pass."""
    for persistent in (False, True):
        options = {"batch_size": 4, "num_workers": 1, "persistent_workers": persistent}
        assert_as_torch(made(getattr(effects, name)), lambda options=options: options, state=state)  # type: ignore[misc]

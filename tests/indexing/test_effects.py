"""Code with effects runs as often, and in the same order, as with torch's loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data as tud

import penstock
from tests.indexing import effects
from tests.indexing.both import assert_as_torch, seen
from tests.indexing.effects import EFFECTS


def made(kind: Any) -> Callable[[], Any]:
    def make() -> Any:
        effects.forget()
        return kind()

    return make


def state(data: Any) -> Any:
    """Return all that the code of a dataset may have left behind."""
    own = {name: value for name, value in vars(data).items() if name not in ("lock", "truth", "transform")}
    truth = data.truth.asked if hasattr(data, "truth") else 0
    return own, truth, effects.CALLS[:], effects.COUNT


@pytest.mark.parametrize("name", EFFECTS)
def test_effects(name: str) -> None:
    for options in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 3, "shuffle": True, "drop_last": True}, {}):
        assert_as_torch(made(EFFECTS[name]), lambda options=options: options, passes=3, state=state)  # type: ignore[misc]


class Left(Exception):
    """A loop that is left."""


def leave(batch: Any) -> None:
    raise Left


@pytest.mark.parametrize("name", [name for name in EFFECTS if name != "yielding"])
def test_effects_of_a_pass_that_is_left(name: str) -> None:
    """What was not asked for has not been read."""
    found = []
    for loader in (tud.DataLoader, penstock.DataLoader):
        dataset: Any = made(EFFECTS[name])()
        with pytest.raises(Left):
            seen(loader, lambda: dataset, lambda: {"batch_size": 4}, {}, receive=leave)  # noqa: B023
        found.append(repr(state(dataset)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["counter", "drawing", "in_place", "caching", "appending_to_module"])
def test_effects_in_worker_processes(name: str) -> None:
    """They are the worker's, anew in each pass or (where workers persist) from pass to pass."""
    for persistent in (False, True):
        options = {"batch_size": 4, "num_workers": 1, "persistent_workers": persistent}
        assert_as_torch(made(EFFECTS[name]), lambda options=options: options, state=state)  # type: ignore[misc]

"""What batches hold, as plain Python values, and states as programs keep them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch


def flat(batches: Iterable[Any]) -> list[int]:
    """Return the numbers of all batches (of their first fields, where a batch has several) in one list."""
    firsts = (batch[0] if isinstance(batch, list | tuple) else batch for batch in batches)
    return [number for first in firsts for number in torch.as_tensor(first).reshape(-1).tolist()]


def listed(value: Any) -> Any:
    """Return a batch, or any iterable of batches, with lists in the places of tensors."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value if isinstance(value, str | int | float) else [listed(part) for part in value]


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state that was written as JSON and read again."""
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def taken(batches: Any, number: int) -> list[Any]:
    """Return so many batches from the front."""
    found = list(islice(batches, number))
    assert len(found) == number
    return found


def stopped(loader: Any, steps: int) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the first batches of a loader, its stored state behind them, and the pass."""
    batches = iter(loader)
    return taken(batches, steps), stored(loader.state_dict()), batches


def loaded(loader: Any, state: dict[str, Any], **options: Any) -> Any:
    """Return a loader that goes on where a state says."""
    loader.load_state_dict(state, **options)
    return loader


def resumed(begun: Any, again: Any, steps: int) -> tuple[list[Any], Any]:
    """Return the first batches of a loader, and another loader that goes on behind them from its stored state."""
    first, state, batches = stopped(begun, steps)
    del batches
    return first, loaded(again, state)

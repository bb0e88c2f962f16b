"""torchdata's StatefulDataLoader as penstock.install() makes it: a penstock.DataLoader that is an instance of both."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.derived import TORCHDATA
from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.state.checkpoint import OnChange

#: A key of each state that torchdata's loader writes: without workers, and with them.
_TORCHDATAS = {"_sampler_iter_yielded", "_snapshot"}


class _Stateful(DataLoader[Any]):
    """A penstock.DataLoader with torchdata's arguments. Its states are Penstock's."""

    def __init__(self, *arguments: Any, snapshot_every_n_steps: int | None = 1, **named: Any) -> None:
        super().__init__(*arguments, snapshot_every_n_steps=snapshot_every_n_steps, **named)
        self.snapshot_every_n_steps = snapshot_every_n_steps  # torchdata's __init__ was called without it

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], on_change: OnChange = "raise"
    ) -> None:
        """Do as penstock.DataLoader.load_state_dict; an empty state is none, as torchdata has it."""
        if state == {}:
            return
        if isinstance(state, Mapping) and "format" not in state and not _TORCHDATAS.isdisjoint(state):
            raise InvalidOption(
                "this state was written by torchdata's StatefulDataLoader, and a Penstock loader cannot continue from "
                "it: finish the epoch without penstock.install(), or begin it anew"
            )
        super().load_state_dict(state, on_change)


def __getattr__(name: str) -> Any:
    """Make the class StatefulDataLoader, when it is first needed: it is derived from torchdata's too."""
    if name != "StatefulDataLoader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    bases = _Stateful, getattr(importlib.import_module(TORCHDATA), name)
    made = globals()[name] = type(name, bases, {"__module__": __name__, "__doc__": _Stateful.__doc__})
    return made

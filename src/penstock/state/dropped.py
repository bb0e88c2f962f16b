"""Finds that Lightning has not loaded the state of a loader that its checkpoint holds.

Its fit loop loads the states of loaders as it sets them up. Where a program asks for `estimated_stepping_batches`
before (in configure_optimizers), they are set up before the checkpoint is read, and its states of them wait for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.observe import Delivery, Observer
from penstock.system.warn_user import warn_user

if TYPE_CHECKING:
    import penstock._native as _native
    from penstock.observe import PassCount

_PACKAGES = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_FRAMES = 40


class DroppedState(Observer):
    """Looks behind the first batch of a pass whether the fit loop that asked for it holds a state of the loader."""

    def __init__(self) -> None:
        self._looks = True

    @property
    def reads_counts(self) -> bool:
        return True

    def follow(self, count: PassCount, clock: _native.CallerClock) -> Callable[[], None] | None:
        return self._look

    def delivered(self, delivery: Delivery) -> None:
        self._look()

    def _look(self) -> None:
        if not self._looks:
            return
        self._looks = False
        frame: Any = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                return
            loop = frame.f_locals.get("self") if frame.f_globals.get("__name__") in _PACKAGES else None
            if loop is not None and getattr(loop, "_combined_loader_states_to_load", None):
                warn_user(
                    "Lightning did not load the state of this loader that its checkpoint holds: the epoch begins anew. "
                    "It set the loader up before it read the checkpoint, as trainer.estimated_stepping_batches in "
                    "configure_optimizers() makes it do: compute that number otherwise"
                )
                return
            frame = frame.f_back


def dropped_states() -> tuple[Observer, ...]:
    """Return the observer of a pass that begins, where Lightning is imported."""
    imported = _PACKAGES[0] in sys.modules or _PACKAGES[1] in sys.modules
    return (DroppedState(),) if imported else ()

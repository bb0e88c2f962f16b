"""What makes copies of a dataset fail in worker processes: handles that a fork shares, and what cannot be pickled."""

from __future__ import annotations

import multiprocessing.reduction
import types
from typing import Any

import numpy as np
import torch

from penstock.recipe.held_objects import FILES, held_objects, parts, shared_handles
from penstock.system.warn_user import warn_user

_DEEPEST = 8


def warn_of_shared_handles(dataset: object, workers: int) -> None:
    """Warn of what forked workers share with each other."""
    for held, what in shared_handles(held_objects(dataset)):
        if type(held.value) in FILES and not held.value.readable():
            continue  # a log, say, to which all of them write
        warn_user(
            f"{held.path} is {what}, which the {workers} worker processes share with each other after the fork, with "
            "its position and its locks: they read each other's bytes, or wait for ever. Write "
            f"self.{held.attribute} = None in __init__, and in __getitem__ before its first use: "
            f"if self.{held.attribute} is None: self.{held.attribute} = ... (open it there)"
        )


def not_picklable(**given: Any) -> str:
    """Return what of some objects cannot be pickled, and what to do; empty: nothing is found."""
    for name, value in given.items():
        if found := _first_refused(name, value, ()):
            path, one = found
            what = f"{path} ({_named(one)})"
            return (
                f"{what} cannot be pickled, which worker processes need that are not forked: define it at the top "
                "level of a module, or give multiprocessing_context='fork', or worker_method='thread', which pickles "
                "nothing."
            )
    return ""


def _first_refused(path: str, value: Any, above: tuple[Any, ...]) -> tuple[str, Any] | None:
    """Return the innermost object that pickle refuses, with the expression that leads to it. above: what holds it."""
    if isinstance(value, torch.Tensor | np.ndarray):  # to pickle a tensor moves it into shared memory
        return None
    try:
        multiprocessing.reduction.ForkingPickler.dumps(value)
        return None
    except Exception:  # of the user's __reduce__, too
        pass
    if len(above) < _DEEPEST and type(value) is not types.FunctionType and "<locals>" not in type(value).__qualname__:
        for suffix, part in parts(value):
            if any(part is one for one in above):
                continue  # a bound method holds what holds it
            if found := _first_refused(path + suffix, part, (*above, value)):
                return found
    return path, value


def _named(value: Any) -> str:
    if type(value) is types.FunctionType:
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
    kind = type(value)
    return f"of the local class {kind.__qualname__}" if "<locals>" in kind.__qualname__ else f"a {kind.__qualname__}"

"""torch.load and numpy.load, answered natively where a dataset's own code calls them in one of our workers.

The functions are exchanged once, in the modules that offer them, for ones that ask whether the calling thread is a
worker at work; in any other thread they are what they were. A function that a program has put in their place stays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from penstock.hooks import numpy_load, pillow, torch_load
from penstock.hooks.refused import Refused
from penstock.recipe import compose_hook
from penstock.recipe.compose_hook import this_thread
from penstock.recipe.originals import is_original
from penstock.system.process_lock import ProcessLock

#: What answers a call, and the modules that offer the function: the first one defines it.
_ANSWERS: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("load", torch_load.load, (torch.serialization, torch)),
    ("load", numpy_load.load, (np,)),
)
_lock = ProcessLock()
_exchanged: list[Any] = []


@contextmanager
def natively() -> Iterator[None]:
    """Answer the costly calls of the user's code in this thread natively, as far as that gives the same."""
    _exchange_all()
    with compose_hook.natively():
        yield


def natively_in_this_process() -> None:
    """Do so in all threads, for the life of a process that is a loader's own."""
    _exchange_all()
    compose_hook.natively_in_this_process()


def _exchange_all() -> None:
    if len(_exchanged) == len(_ANSWERS):
        return
    with _lock:
        pillow.exchange()
        for name, answer, modules in _ANSWERS:
            original = getattr(modules[0], name)
            if answer in _exchanged:
                continue
            own = is_original(original, modules[0].__name__, name)
            if own and all(vars(module)[name] is original for module in modules):
                asking = _asking(original, answer)
                for module in modules:
                    setattr(module, name, asking)
                _exchanged.append(answer)


def _asking(original: Any, answer: Callable[..., Any]) -> Any:
    """Return a function that has a call of a worker answered, and leaves all others to the original."""

    @functools.wraps(original)
    def load(*arguments: Any, **named: Any) -> Any:
        if this_thread.native:
            try:
                found = answer(*arguments, **named)
            except TypeError:  # of arguments that the original says more about
                found = None
            if found is not None and type(found) is not Refused:
                return found
        return original(*arguments, **named)

    load.__penstock_original__ = original  # type: ignore[attr-defined]
    return load

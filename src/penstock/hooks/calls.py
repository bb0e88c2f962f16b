"""torch.load and numpy.load, answered natively where a dataset's own code calls them in one of our workers.

While a pass is open the code of the functions is exchanged, for code that asks whether the calling thread is a worker
at work, so that a function that a program holds is answered too; in any other thread they do what they did. A function
that a program has put in their place stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.call_counts import CallMeter, CallSink, count_in_this_process
from penstock.hooks import image_folder, numpy_load, pillow, tally, torch_load
from penstock.hooks.refused import Refused
from penstock.recipe import compose_hook
from penstock.recipe.compose_hook import this_thread, working
from penstock.recipe.exchange import Exchange, Lease
from penstock.recipe.originals import is_original

#: The public name of a function, what answers a call, and the modules that offer the function: the first defines it.
_ANSWERS: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("torch.load", torch_load.load, (torch.serialization, torch)),
    ("numpy.load", numpy_load.load, (np,)),
)


def _find(exchange: Exchange) -> None:
    compose_hook.find(exchange)
    pillow.find(exchange)
    image_folder.find(exchange)
    for function, answer, modules in _ANSWERS:
        name = function.rpartition(".")[2]
        original = getattr(modules[0], name)
        if original in exchange or not is_original(original, modules[0].__name__, name):
            continue
        if all(vars(module)[name] is original for module in modules):
            exchange.add(original, partial(_asking, answer, function))


#: All functions that are answered. Threads that work while a lease on them is open say so by `working`.
ANSWERED = Exchange(_find)


@contextmanager
def natively(calls: CallMeter | None = None) -> Iterator[None]:
    """Answer the costly calls of the user's code in this thread natively, as far as that gives the same.

    Args:
        calls: counts them for the loader that the thread works for.
    """
    with Lease(ANSWERED), working(calls):
        yield


def natively_in_this_process(sink: CallSink | None = None) -> None:
    """Do so in all threads, for the life of a process that is a loader's own. sink: counts the calls."""
    _for_life.append(Lease(ANSWERED))
    count_in_this_process(sink)
    compose_hook.work_in_this_process()


_for_life: list[Lease] = []


def _asking(answer: Callable[..., Any], function: str, original: Any) -> Any:
    """Return a function that has a call of a worker answered, and leaves all others to the original."""

    def load(*arguments: Any, **named: Any) -> Any:
        if this_thread.native:
            try:
                found = answer(*arguments, **named)
            except TypeError:  # of arguments that the original says more about
                found = Refused("it is called with other arguments")
            if type(found) is not Refused:
                tally.answered(function)
                return found
            tally.refused(function, found.reason, tally.example_of(arguments[0]) if arguments else "")
        return original(*arguments, **named)

    return load

"""Costly calls of a dataset's own code, answered natively in our workers: torch.load, numpy.load, Pillow, torchvision.

While a pass is open other functions stand in their place (patches.py), in the modules of programs too that have
imported one by name; in any thread that is not a worker at work they do what they did. A function that a program has
put in their place stays.

`Image.open(...)` is Pillow's own: it reads the header only. Of a JPEG file `convert("RGB")` gives an image that is not
decoded until something looks at its pixels; torchvision's transforms have the native core decode what they need.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from PIL.JpegImagePlugin import JpegImageFile

from penstock import call_counts
from penstock.call_counts import CallMeter, ThreadCalls, count_in_this_process
from penstock.hooks import images
from penstock.hooks.loads import Refused, load_numpy, load_torch, look_at_settings
from penstock.recipe import compose_hook
from penstock.recipe.encoded_image import converted_to_rgb, leave_encoded
from penstock.recipe.originals import add_methods, is_original
from penstock.recipe.patches import Lease, Patches, standing_in, stood_for, work_in_this_process, working, works_here


@contextmanager
def natively(calls: CallMeter | None = None) -> Iterator[None]:
    """Answer the costly calls of the user's code in this thread natively, as far as that gives the same.

    Args:
        calls: counts them for the loader that the thread works for.
    """
    with Lease(ANSWERED), working(calls):
        yield


def natively_in_this_process(sink: ThreadCalls | None = None) -> None:
    """Do so in all threads, for the life of a process that is a loader's own. sink: counts the calls."""
    _for_life.append(Lease(ANSWERED))
    count_in_this_process(sink)
    work_in_this_process()


_for_life: list[Lease] = []


def _asking(answer: Callable[..., Any], function: str, original: Any) -> Callable[..., Any]:
    """Return a function that answers a call, and leaves to the original what is refused."""

    def load(*arguments: Any, **named: Any) -> Any:
        try:
            found = answer(*arguments, **named)
        except TypeError:  # of arguments that the original says more about
            found = Refused("it has other arguments")
        if type(found) is not Refused:
            call_counts.answered(function)
            return found
        call_counts.refused(function, found.reason, example_of(arguments[0]) if arguments else "")
        return original(*arguments, **named)

    return load


def _standing_in(original: Any, home: str, answer: Callable[..., Any], function: str, name: str) -> Any:
    """Return what answers for a function; None where a program has put another there before this was imported."""
    if not is_original(original, home, "load"):
        return None
    return standing_in(original, _asking(answer, function, original), works_here, (__name__, name))


load_of_torch = _standing_in(torch.load, "torch.serialization", load_torch, "torch.load", "load_of_torch")
load_of_numpy = _standing_in(np.load, "numpy", load_numpy, "numpy.load", "load_of_numpy")


def example_of(argument: Any) -> str:
    """Return the path that a function was called with, or that an open file has; empty where there is none."""
    if type(argument) is str:
        return argument
    if isinstance(argument, PurePath):
        return str(argument)
    name = argument.name if type(argument) is io.BufferedReader else None
    return name if type(name) is str else ""


def _converting(original: Any) -> Any:
    def convert(self: Any, mode: Any = None, *others: Any, **named: Any) -> Any:
        if type(self) is JpegImageFile and type(mode) is str and mode == "RGB" and not others and not named:
            why = leave_encoded(self)
            converted = converted_to_rgb(self)
            if converted is not None:
                call_counts.answered("PIL.Image.convert")
                return converted
            example = example_of(self.filename or self.fp)
            call_counts.refused("PIL.Image.convert", why or "the image has a transparent colour", example)
        return original(self, mode, *others, **named)

    return convert


def _find(patches: Patches) -> None:
    look_at_settings()
    compose_hook.find(patches)
    images.find(patches, _asking)
    add_methods(patches, (("PIL.Image", "Image", "convert", _converting),), works_here)
    for ours, module in ((load_of_torch, torch), (load_of_numpy, np)):
        if ours is not None:
            patches.add_function(stood_for(ours), ours, module)


#: All functions that are answered. Threads that work while a lease on them is open say so by `working`.
ANSWERED = Patches(_find)

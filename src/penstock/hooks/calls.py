"""Costly calls of a dataset's code, answered natively in our workers: of torch, numpy, image and audio libraries.

While a pass is open other functions stand in their place (patches.py), in the modules of programs too that have
imported one by name; in any thread that is not a worker at work they do what they did. A function that a program has
put in their place stays.

`Image.open(...)` is Pillow's own: it reads the header only. Of a JPEG file `convert("RGB")` gives an image that is not
decoded until something looks at its pixels; torchvision's transforms have the native core decode what they need.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL.JpegImagePlugin import JpegImageFile

from penstock import call_counts
from penstock.call_counts import CallMeter, ThreadCalls, count_in_this_process
from penstock.hooks import images, opencv
from penstock.hooks.arrays import from_file, load_safetensors, map_file
from penstock.hooks.audio import load_torchaudio, read_from, read_sound
from penstock.hooks.loads import Refused, load_numpy, load_torch, look_at_settings
from penstock.recipe import compose_hook
from penstock.recipe.encoded_image import converted_to_rgb, leave_encoded
from penstock.recipe.originals import add_methods, is_original
from penstock.recipe.patches import Lease, Patches, in_worker, original_of, work_in_this_process, working, wrap
from penstock.tables import hugging_face
from penstock.tables.column import NotGathered


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


def _answered_natively(answer: Callable[..., Any], function: str, original: Any) -> Callable[..., Any]:
    """Return a function that answers a call, and leaves to the original what is refused."""

    def load(*arguments: Any, **named: Any) -> Any:
        try:
            found = answer(*arguments, **named)
        except TypeError:  # of arguments that the original says more about
            found = Refused("it has other arguments")
        if type(found) is not Refused:
            call_counts.answered(function)
            return found
        given = arguments[isinstance(arguments[0], type) :] if arguments else ()  # __new__ is given the class before
        call_counts.refused(function, found.reason, example_of(given[0]) if given else "")
        return original(*arguments, **named)

    return load


def _wrapped(original: Any, home: str, answer: Callable[..., Any], function: str, name: str) -> Any:
    """Return what answers for a function; None where a program has put another there before this was imported.

    name: that it has in this module, where pickle finds it.
    """
    if not is_original(original, home, function.rpartition(".")[2]):
        return None
    return wrap(original, _answered_natively(answer, function, original), in_worker, (__name__, name))


#: Functions of packages that are imported here: the module that offers them, their name, and what answers.
OF_TORCH_AND_NUMPY: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch", "load", load_torch),
    ("numpy", "load", load_numpy),
    ("numpy", "fromfile", from_file),
)
load_of_torch = _wrapped(torch.load, "torch.serialization", load_torch, "torch.load", "load_of_torch")
load_of_numpy = _wrapped(np.load, "numpy", load_numpy, "numpy.load", "load_of_numpy")
fromfile_of_numpy = _wrapped(np.fromfile, "numpy", from_file, "numpy.fromfile", "fromfile_of_numpy")

#: Functions of packages that a program may import: the module that offers them, their name, and what answers.
OF_PACKAGES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("safetensors.torch", "load_file", load_safetensors),
    ("soundfile", "read", read_sound),
    ("torchaudio", "load", load_torchaudio),
    ("cv2", "imread", opencv.read_file),
    ("cv2", "imdecode", opencv.decode_bytes),
)
_of_packages: dict[tuple[str, str], tuple[Any, ModuleType]] = {}
"""By the module that offers it and its name: what answers for a function, and the module."""
_OURS = "_in_workers"


def __getattr__(name: str) -> Any:
    """Return a function of OF_PACKAGES to pickle: by its name the package's own during a pass, else ours.

    During a pass the package's own functions say that they are from this module. Those of OpenCV say nothing outside of
    passes, so that pickle looks for them in all modules, and must not find them here.
    """
    function = name.removesuffix(_OURS)
    home = next((home for home, known, _ in OF_PACKAGES if known == function), "")
    try:
        found = getattr(importlib.import_module(home), function)
    except (ImportError, ValueError):  # the package is not installed, or there is none
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    theirs = original_of(found) if name == function else None
    return theirs or _of_packages.get((home, function), (found, None))[0]


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


def _get_rows(dataset: Any, key: Any) -> Any:
    """Return what datasets.Dataset's `dataset[key]` returns, or Refused: in the formats of Python and arrays."""
    if type(key) not in (int, list) or not hugging_face.is_dataset(dataset):
        return Refused("it has another kind of index")
    rows = hugging_face.rows_of(dataset)
    if rows is None:
        return Refused(f"the package makes the format {dataset._format_type!r}")
    try:
        return rows.answer(dataset, key)
    except NotGathered as why:
        return Refused(str(why))


#: Methods that are answered; each is given itself, or the class, as the first argument.
METHODS = (
    ("PIL.Image", "Image", "convert", _converting),
    ("numpy", "memmap", "__new__", partial(_answered_natively, map_file, "numpy.memmap")),
    ("soundfile", "SoundFile", "read", partial(_answered_natively, read_from, "soundfile.SoundFile.read")),
    (
        "datasets.arrow_dataset",
        "Dataset",
        "__getitem__",
        partial(_answered_natively, _get_rows, "datasets.Dataset.__getitem__"),
    ),
)


def _find(patches: Patches) -> None:
    look_at_settings()
    compose_hook.find(patches)
    images.find(patches, _answered_natively)
    add_methods(patches, METHODS, in_worker)
    for home, name, answer in OF_PACKAGES:
        module = sys.modules.get(home)
        if (home, name) in _of_packages or module is None or not hasattr(module, name):
            continue
        if home == "cv2" and not hasattr(module, "__path__"):
            continue  # while cv2 is imported, the name means a module that it copies from
        ours = _wrapped(getattr(module, name), home, answer, f"{home}.{name}", name + _OURS)
        if ours is not None:
            _of_packages[home, name] = ours, module
    for ours, module in ((load_of_torch, torch), (load_of_numpy, np), (fromfile_of_numpy, np)):
        if ours is not None:
            patches.add_function(original_of(ours), ours, module)
    for ours, module in _of_packages.values():
        patches.add_function(original_of(ours), ours, module, found_in=__name__)


#: All functions that are answered. Threads that work while a lease on them is open say so by `working`.
ANSWERED = Patches(_find)

"""What torchvision's known random transforms draw, as a function of (seed, epoch, sample, position).

A thread that works on a sample of a loader with a seed says so by `turn_to`. From then on the known random transforms
(both generations) draw in that thread what the native core draws for that sample: the k-th of them that acts on it
draws as the k-th random operation of a recipe. So a pipeline draws the same whether the native core runs it, or part of
it, or torchvision's own Compose, or code of the user's that calls one transform by itself. In every other thread the
transforms are what they were.

Crops and flips draw from the sample's own numbers. Of all others the numbers are those of torch's generator after a
seed that is the sample's for that operation: torchvision's code draws from it as it is.

While a lease is open the hooks stand in the place of methods of torchvision's classes. A function that is not
torchvision's own is left alone.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

import penstock._native as _native
from penstock.recipe.originals import add_methods
from penstock.recipe.patches import Lease, Patches
from penstock.recipe.torchvision import AUTOMATIC, V1, V2
from penstock.system.process_lock import ProcessLock
from penstock.system.randomness import generator_states, restore_generators

_MASK = 0xFFFFFFFFFFFFFFFF


class _ThreadState(threading.local):
    draws: _native.SampleDraws | None = None
    """The draws of the sample that this thread works on."""
    beside_others = False
    """Other threads draw from torch's global generator at the same time."""


_this_thread = _ThreadState()


def turn_to(seed: int, epoch: int, sample: int, position: int) -> None:
    """Let the known transforms draw for a sample in this thread, from its first operation on."""
    _this_thread.draws = _native.SampleDraws(seed & _MASK, epoch & _MASK, sample & _MASK, position & _MASK)


@contextmanager
def given_back() -> Iterator[None]:
    """Let the known transforms draw afterwards as they did before, in a thread that is not ours."""
    before = _this_thread.draws
    try:
        yield
    finally:
        _this_thread.draws = before


@contextmanager
def of_sample(seed: int, epoch: int, sample: int, position: int) -> Iterator[None]:
    """Let the known transforms draw for a sample in this thread."""
    with Lease(HOOKS), given_back():
        turn_to(seed, epoch, sample, position)
        yield


def note_draws(operations: int) -> None:
    """Note that the native core has done the draws of so many operations for this thread's sample."""
    if _this_thread.draws is not None:
        _this_thread.draws.count = operations


@contextmanager
def beside_others() -> Iterator[None]:
    """Let this thread work beside others that draw from torch's global generator."""
    before, _this_thread.beside_others = _this_thread.beside_others, True
    try:
        yield
    finally:
        _this_thread.beside_others = before


def mark(*, foreign: bool = False) -> Any:
    """Return what rewind() needs to have everything drawn from now on drawn once more.

    None: nothing can be drawn once more, as other threads have drawn from the generator meanwhile.

    foreign: transforms draw from the global generators of Python and NumPy, too.
    """
    draws = _this_thread.draws
    if _this_thread.beside_others and (foreign or draws is None):
        return None
    if foreign:
        return generator_states(), None if draws is None else draws.count
    return torch.get_rng_state() if draws is None else draws.count


def rewind(marked: Any) -> None:
    """Have everything that was drawn since mark() drawn once more, where that can be."""
    if isinstance(marked, tuple):
        restore_generators(marked[0])
        marked = marked[1]
    if marked is None:
        return
    if _this_thread.draws is None:
        torch.set_rng_state(marked)
    else:
        _this_thread.draws.count = marked


def is_keyed() -> bool:
    """Return whether this thread works on a sample whose draws are a function of it."""
    return _this_thread.draws is not None


def shares(weights: Any, count: int) -> list[float] | None:
    """Return for each of some transforms the share of it and those before it, by their weights; None: by no weights."""
    given = [1.0] * count if weights is None else weights
    if not isinstance(given, list | tuple) or not count or len(given) != count:
        return None
    if not all(isinstance(one, int | float) and 0 <= one < math.inf for one in given) or not sum(given):
        return None
    sums = list(itertools.accumulate(map(float, given)))
    last = max(number for number in range(count) if given[number])
    return [1.0 if number >= last else value / sums[-1] for number, value in enumerate(sums)]


def flips(p: float) -> bool:
    """Return whether a random flip of probability p is done."""
    draws = _this_thread.draws
    return bool(torch.rand(1) < p) if draws is None else draws.flip(p)


def effects(recipe: _native.Recipe, height: int, width: int) -> _native.Effects:
    """Return what the next operation, a recipe's only augmentation, does to a picture of this size."""
    draws = _this_thread.draws
    if draws is not None:
        return _native.draw_effects_of_sample(recipe, height, width, draws)
    return _native.draw_effects(recipe, height, width, torch.default_generator)


@contextmanager
def of_next_operation() -> Iterator[None]:
    """Have torch's global generator give what the next operation draws, in a thread that works on a keyed sample.

    What is called meanwhile draws from that generator, too.
    """
    draws = _this_thread.draws
    if draws is None:
        yield
        return
    generator = torch.default_generator
    with _seeding:
        before = generator.get_state()
        try:
            generator.manual_seed(draws.word())
            _this_thread.draws = None
            yield
        finally:
            _this_thread.draws = draws
            generator.set_state(before)


# --- the hooks --------------------------------------------------------------------------------------------------------

_seeding = ProcessLock()
"""Held while torch's global generator is an operation's."""
_met: set[str] = set()
"""The modules that were imported when the hooks were put there last."""


def hook() -> None:
    """Put the hooks into what of torchvision was imported since the lease on HOOKS began."""
    if any(module in sys.modules for module in _HOOKS.keys() - _met):
        HOOKS.meet()


def _find(patches: Patches) -> None:
    _met.update(_HOOKS.keys() & sys.modules.keys())
    for module, rows in _HOOKS.items():
        made = ((module, name, method, partial(_hook_before, instead)) for name, method, instead in rows)
        add_methods(patches, made, is_keyed)


HOOKS = Patches(_find)


def _hook_before(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that knows the original that it stands before."""
    return lambda *args, **named: instead(_this_thread.draws, original, *args, **named)


def _resized_crop_v1(draws: _native.SampleDraws, original: Any, img: Any, scale: Any, ratio: Any) -> Any:
    _, height, width = original.__globals__["F"].get_dimensions(img)
    return _resized_crop(draws, scale, ratio, height, width) or original(img, scale, ratio)


def _resized_crop(draws: _native.SampleDraws, scale: Any, ratio: Any, height: int, width: int) -> Any:
    """Return (top, left, height, width), None for what a recipe would refuse."""
    if len(scale) != 2 or len(ratio) != 2 or not all(isinstance(number, int | float) for number in (*scale, *ratio)):
        return None
    least, most, narrow, wide = map(float, (*scale, *ratio))
    return draws.resized_crop(least, most, narrow, wide, height, width)


def _crop_v1(draws: _native.SampleDraws, original: Any, img: Any, output_size: Any) -> Any:
    _, height, width = original.__globals__["F"].get_dimensions(img)
    crop_height, crop_width = output_size
    whole = all(isinstance(side, int) for side in (crop_height, crop_width))
    drawn = draws.crop(crop_height, crop_width, height, width) if whole else None
    return drawn or original(img, output_size)


def _flip_v1(function: str) -> Callable[..., Any]:
    def flip(draws: _native.SampleDraws, original: Any, self: Any, img: Any) -> Any:
        if not isinstance(self.p, int | float):
            return original(self, img)
        return getattr(original.__globals__["F"], function)(img) if draws.flip(float(self.p)) else img

    return flip


def _resized_crop_v2(draws: _native.SampleDraws, original: Any, self: Any, flat_inputs: list[Any]) -> Any:
    height, width = original.__globals__["query_size"](flat_inputs)
    drawn = _resized_crop(draws, self.scale, self.ratio, height, width)
    if drawn is None:
        return original(self, flat_inputs)
    return dict(zip(("top", "left", "height", "width"), drawn, strict=True))


def _crop_v2(draws: _native.SampleDraws, original: Any, self: Any, flat_inputs: list[Any]) -> Any:
    height, width = original.__globals__["query_size"](flat_inputs)
    left, right, top, bottom = (0, 0, 0, 0) if self.padding is None else self.padding
    crop_height, crop_width = self.size
    height, width = height + top + bottom, width + left + right
    more_y = max(0, crop_height - height) if self.pad_if_needed else 0
    more_x = max(0, crop_width - width) if self.pad_if_needed else 0
    height, width = height + 2 * more_y, width + 2 * more_x
    whole = all(isinstance(side, int) for side in (crop_height, crop_width, height, width))
    drawn = draws.crop(crop_height, crop_width, height, width) if whole else None
    if drawn is None:
        return original(self, flat_inputs)
    padding = [left + more_x, top + more_y, right + more_x, bottom + more_y]
    return {
        "needs_crop": height > crop_height or width > crop_width,
        "top": drawn[0],
        "left": drawn[1],
        "height": crop_height,
        "width": crop_width,
        "needs_pad": any(padding),
        "padding": padding,
    }


def _of_operation(draws: _native.SampleDraws, original: Any, *args: Any, **named: Any) -> Any:
    with of_next_operation():
        return original(*args, **named)


def _choice(draws: _native.SampleDraws, original: Any, self: Any, *inputs: Any) -> Any:
    found = shares(self.p, len(self.transforms))
    with of_next_operation():
        if found is None:
            return original(self, *inputs)
        number = float(torch.rand(1))
        return self.transforms[next(i for i, share in enumerate(found) if number < share)](*inputs)


def _order_v1(draws: _native.SampleDraws, original: Any, self: Any, img: Any) -> Any:
    with of_next_operation():
        for number in torch.randperm(len(self.transforms)).tolist():
            img = self.transforms[number](img)
        return img


def _flip_v2(draws: _native.SampleDraws, original: Any, self: Any, *inputs: Any) -> Any:
    module = vars(sys.modules[V2])
    flips = (module["RandomHorizontalFlip"], module["RandomVerticalFlip"])
    if not isinstance(self, flips) or not inputs or not isinstance(self.p, int | float):
        known = type(self).__name__ in _WITH_PROBABILITY and type(self) is module.get(type(self).__name__)
        return _of_operation(draws, original, self, *inputs) if known else original(self, *inputs)
    if draws.flip(float(self.p)):
        return module["Transform"].forward(self, *inputs)
    one = inputs if len(inputs) > 1 else inputs[0]
    self.check_inputs(tree_flatten(one)[0])
    return one


#: The classes of the second generation that draw once more whether they act, beside the flips.
_WITH_PROBABILITY = (
    *("RandomGrayscale", "RandomInvert", "RandomPosterize", "RandomSolarize", "RandomAdjustSharpness"),
    *("RandomAutocontrast", "RandomEqualize", "RandomErasing", "RandomPerspective"),
)
_WITH_PARAMETERS = ("ColorJitter", "GaussianBlur", "RandomRotation", "RandomAffine")
_AUTOMATIC = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
#: By module: the class and the function that draws; and what is called in its place, with the draws and the original
#: function before its arguments, whose names are the same.
_HOOKS: dict[str, tuple[tuple[str, str, Callable[..., Any]], ...]] = {
    V1: (
        ("RandomResizedCrop", "get_params", _resized_crop_v1),
        ("RandomCrop", "get_params", _crop_v1),
        ("RandomHorizontalFlip", "forward", _flip_v1("hflip")),
        ("RandomVerticalFlip", "forward", _flip_v1("vflip")),
        *((name, "forward", _of_operation) for name in (*_WITH_PROBABILITY, *_WITH_PARAMETERS, "RandomApply")),
        ("RandomChoice", "__call__", _choice),
        ("RandomOrder", "__call__", _order_v1),
    ),
    AUTOMATIC: tuple((name, "forward", _of_operation) for name in _AUTOMATIC),
    V2: (
        ("RandomResizedCrop", "get_params", _resized_crop_v1),
        ("RandomCrop", "get_params", _crop_v1),
        ("RandomResizedCrop", "make_params", _resized_crop_v2),
        ("RandomCrop", "make_params", _crop_v2),
        ("RandomChoice", "forward", _choice),
        *((name, "make_params", _of_operation) for name in _WITH_PARAMETERS),
        *((name, "forward", _of_operation) for name in (*_AUTOMATIC, "RandomApply", "RandomOrder")),
    ),
    f"{V2}._transform": (("_RandomApplyTransform", "forward", _flip_v2),),
}

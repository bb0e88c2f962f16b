"""What torchvision's known random transforms draw, as a function of (seed, epoch, sample, position).

A thread that works on a sample of a loader with a seed says so by `turn_to`. From then on the known random transforms
(both generations) draw in that thread what the native core draws for that sample: the k-th of them that acts on it
draws as the k-th random operation of a recipe. So a pipeline draws the same whether the native core runs it, or part of
it, or torchvision's own Compose, or code of the user's that calls one transform by itself. In every other thread the
transforms are what they were.

Crops and flips draw from the sample's own numbers. Of all others the numbers are those of torch's generator after a
seed that is the sample's for that operation: torchvision's code draws from it as it is.

keyed_methods.py puts what asks this module in the place of torchvision's methods.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import penstock._native as _native
from penstock.recipe.torchvision import V1, V2
from penstock.system.locks import ProcessLock

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
def of_sample(seed: int, epoch: int, sample: int, position: int) -> Iterator[None]:
    """Let the known transforms draw for a sample in this thread, within the block."""
    with given_back():
        turn_to(seed, epoch, sample, position)
        yield


@contextmanager
def given_back() -> Iterator[None]:
    """Let the known transforms draw afterwards as they did before, in a thread that is not ours."""
    before = _this_thread.draws
    try:
        yield
    finally:
        _this_thread.draws = before


@contextmanager
def beside_others() -> Iterator[None]:
    """Let this thread work beside others that draw from torch's global generator."""
    before, _this_thread.beside_others = _this_thread.beside_others, True
    try:
        yield
    finally:
        _this_thread.beside_others = before


def mark() -> Any:
    """Return what rewind() needs to have everything drawn from now on drawn once more.

    None: nothing can be drawn once more, as other threads have drawn from the generator meanwhile.
    """
    draws = _this_thread.draws
    if draws is not None:
        return draws.count
    return None if _this_thread.beside_others else torch.get_rng_state()


def rewind(marked: Any) -> None:
    """Have everything that was drawn since mark() drawn once more, where that can be."""
    if marked is None:
        return
    if _this_thread.draws is None:
        torch.set_rng_state(marked)
    else:
        _this_thread.draws.count = marked


def of_this_thread() -> _native.SampleDraws:
    """Return the draws of the sample that this thread works on, which is keyed."""
    assert _this_thread.draws is not None
    return _this_thread.draws


def is_keyed() -> bool:
    """Return whether this thread works on a sample whose draws are a function of it."""
    return _this_thread.draws is not None


def flips(p: float) -> bool:
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


def of_operation(draws: _native.SampleDraws, original: Any, *args: Any, **named: Any) -> Any:
    """Return what a method of a transform returns that draws for the next operation."""
    with of_next_operation():
        return original(*args, **named)


_seeding = ProcessLock()
"""Held while torch's global generator is an operation's."""


#: Methods whose calls draw for one operation (see torchvision.Known): of classes that draw whether they act, of those
#: that always act, and of those whose whole work is of the operation.
BY_CHANCE = {(V1, "forward"): of_operation}
PARAMETERS = {(V1, "forward"): of_operation, (V2, "make_params"): of_operation}
WHOLE = {(V1, "forward"): of_operation, (V2, "forward"): of_operation}

"""What torchvision's known random transforms draw, as a function of (seed, epoch, sample, position).

A thread that works on a sample of a loader with a seed says so by `set_sample_key`. From then on the known random
transforms (both generations) draw in that thread what the native core draws for that sample: the k-th of them that acts
on it draws as the k-th random operation of a recipe. So a pipeline draws the same whether the native core runs it, or
part of it, or torchvision's own Compose, or code of the user's that calls one transform by itself. In every other
thread the transforms are what they were. Behind a call by which a program sets or reads the state of torch's generator
they draw from that generator until the sample ends.

Crops and flips draw from the sample's own numbers. Of all others the numbers are those of torch's generator after a
seed that is the sample's for that operation: torchvision's code draws from it as it is.

keyed_methods.py puts what asks this module in the place of torchvision's methods.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

import penstock._native as _native
from penstock.errors import InvalidOption
from penstock.recipe.patches import Patches, wrap
from penstock.recipe.torchvision import V1, V2
from penstock.system import randomness
from penstock.system.locks import ProcessLock
from penstock.system.process_events import at_fork

_MASK = 0xFFFFFFFFFFFFFFFF


class _ThreadState(threading.local):
    draws: _native.SampleDraws | None = None
    """The draws of the sample that this thread works on; None: torch's generator gives them."""
    torch_seed: int | None = None
    """What torch's generator was seeded with before the sample, where the thread owns it."""
    in_operation = False
    """Torch's generator is an operation's, and `draws` is None meanwhile."""
    beside_others = False
    """Other threads draw from torch's global generator at the same time."""


_this_thread = _ThreadState()


def _in_child() -> None:
    vars(_this_thread).clear()  # a child's generators are its own


def set_sample_key(seed: int, epoch: int, sample: int, position: int, *, owned: bool = False) -> None:
    """Key random draws of known transforms to a sample in this thread, from its first operation on.

    owned: until the sample ends, torch's generator is set by what this thread calls only.
    """
    _this_thread.torch_seed = torch.default_generator.initial_seed() if owned else None
    _this_thread.draws = _native.SampleDraws(seed & _MASK, epoch & _MASK, sample & _MASK, position & _MASK)


@contextmanager
def of_sample(seed: int, epoch: int, sample: int, position: int) -> Iterator[None]:
    """Let the known transforms draw for a sample in this thread, within the block."""
    with given_back():
        set_sample_key(seed, epoch, sample, position, owned=_this_thread.torch_seed is not None)
        yield


@contextmanager
def given_back() -> Iterator[None]:
    """Let the known transforms draw afterwards as they did before, in a thread that is not ours."""
    before = _this_thread.draws, _this_thread.torch_seed, _this_thread.in_operation
    try:
        yield
    finally:
        _this_thread.draws, _this_thread.torch_seed, _this_thread.in_operation = before


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
    if is_keyed():
        return of_this_thread().count
    return None if _this_thread.beside_others else torch.default_generator.get_state()


def rewind(marked: Any) -> None:
    """Have everything that was drawn since mark() drawn once more, where that can be."""
    if marked is None:
        return
    if isinstance(marked, torch.Tensor):
        torch.default_generator.set_state(marked)
    elif _this_thread.draws is not None:
        _this_thread.draws.count = marked


def of_this_thread() -> _native.SampleDraws:
    """Return the draws of the sample that this thread works on, which is keyed."""
    assert _this_thread.draws is not None
    return _this_thread.draws


def is_keyed() -> bool:
    """Return whether this thread works on a sample whose draws are a function of it."""
    here = _this_thread
    if here.torch_seed not in (None, torch.default_generator.initial_seed()) and not here.beside_others:
        here.draws = None  # the program has called a method of it
    return here.draws is not None


def flips(p: float) -> bool:
    return of_this_thread().flip(p) if is_keyed() else bool(torch.rand(1) < p)


def effects(recipe: _native.Recipe, height: int, width: int) -> _native.Effects:
    """Return what the next operation, a recipe's only augmentation, does to a picture of this size."""
    if is_keyed():
        return _native.draw_effects_of_sample(recipe, height, width, of_this_thread())
    return _native.draw_effects(recipe, height, width, torch.default_generator)


@contextmanager
def of_next_operation() -> Iterator[None]:
    """Have torch's global generator give what the next operation draws, in a thread that works on a keyed sample.

    What is called meanwhile draws from that generator, too. It stays where a program sets it meanwhile.
    """
    if not is_keyed():
        yield
        return
    draws, generator = of_this_thread(), torch.default_generator
    with _seeding:
        before = generator.get_state()
        try:
            generator.manual_seed(draws.word())
            _this_thread.draws, _this_thread.in_operation = None, True
            yield
        finally:
            if _this_thread.in_operation:
                _this_thread.draws, _this_thread.in_operation = draws, False
                generator.set_state(before)


def of_operation(draws: _native.SampleDraws, original: Any, *args: Any, **named: Any) -> Any:
    """Return what a method of a transform returns that draws for the next operation."""
    with of_next_operation():
        return original(*args, **named)


_seeding = ProcessLock()
"""Held while torch's global generator is an operation's."""


# --- a program that sets a global generator while it makes a sample ---------------------------------------------------


class SeededInThread(InvalidOption):
    """Code of a program has set a global generator in a worker thread."""


def _note_setting(name: str) -> None:
    """Take note that a program is to set a generator, or reads its state to set it later."""
    here = _this_thread
    if not here.beside_others:
        here.draws, here.in_operation = None, False
    elif name != "torch.get_rng_state":
        raise SeededInThread(
            f"{name}() was called in a worker thread, and all threads share that generator: what they draw would "
            "depend on timing. Give worker_method='process', or draw from torch.random.thread_safe_generator() or "
            "torch.utils.data.get_worker_info().rng, which are the thread's own"
        )


class _Watched:
    """Torch's global generator, as the functions of torch.random find it."""

    def __getattr__(self, name: str) -> Any:
        if name in ("get_state", "set_state", "manual_seed", "seed"):
            _note_setting(f"torch.{name.replace('state', 'rng_state')}")
        return getattr(torch.default_generator, name)


def _note_first(original: Any, name: str, *given: Any, **named: Any) -> Any:
    if sys._getframe(2).f_globals is not vars(randomness):  # behind the function that chose this one
        _note_setting(name)
    return original(*given, **named)


def _find(patches: Patches) -> None:
    at_fork(after_in_child=_in_child)
    patches.add_value(torch.random, "default_generator", torch.default_generator, _Watched())
    for module, name in randomness.SETTING:
        if (module, name) not in patches:
            original = getattr(module, name)
            noting = partial(_note_first, original, f"{module.__name__}.{name}")
            ours = wrap(original, noting, lambda: _this_thread.beside_others)
            patches.add_value(module, name, original, ours, searched=True)


#: A lease is open while threads make samples, and while samples with keyed draws are made.
SEEDING = Patches(_find)

#: Methods whose calls draw for one operation (see torchvision.Known): of classes that draw whether they act, of those
#: that always act, and of those whose whole work is of the operation.
BY_CHANCE = {(V1, "forward"): of_operation}
PARAMETERS = {(V1, "forward"): of_operation, (V2, "make_params"): of_operation}
WHOLE = {(V1, "forward"): of_operation, (V2, "forward"): of_operation}

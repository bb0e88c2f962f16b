"""Equality of samples and batches: structure, types, dtypes, shapes, strides and values; and of errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert that two samples or batches, or lists of them, are equal in all that a program could see."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, Image.Image):
        assert (ours.mode, ours.size, ours.format) == (theirs.mode, theirs.size, theirs.format)
        assert ours.info == theirs.info
        assert vars(ours).keys() == vars(theirs).keys()
        assert (ours.readonly, ours.palette) == (theirs.readonly, theirs.palette)
        assert ours.tobytes() == theirs.tobytes()
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    else:
        assert ours == theirs


def assert_same_batches(ours: Any, theirs: Any, native: bool = True) -> None:
    """Assert that two loaders give the same batches, and that ours runs on the native core (or does not)."""
    assert len(ours) == len(theirs)
    assert ours.explain().startswith("plan     torch's own") is not native, ours.explain()
    first, second = list(ours), list(theirs)
    assert_same(first, second)
    assert first, "an empty comparison proves nothing"


def assert_passes(loader: Any, wanted: list[Any], passes: int = 2) -> None:
    """Assert that each of so many passes of a loader gives these batches."""
    for _ in range(passes):
        assert_same(list(loader), wanted)


def assert_same_outcome(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Assert that two calls return the same, or raise errors of one type with the same words."""
    try:
        wanted = theirs()
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            ours()
        assert (type(caught.value), str(caught.value)) == (type(error), str(error))
    else:
        assert_same(ours(), wanted)


def outcomes(loader: Any) -> list[Any]:
    """Return each batch of a loader's pass, or the type's name and the text of the error in its place."""
    batches = iter(loader)
    found: list[Any] = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error).__name__, str(error)))


def generator_states() -> Any:
    """Return the states of the global generators."""
    numpys: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpys[1].tobytes(), numpys[2:]


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Assert that what is done meanwhile draws from no global generator."""
    before = generator_states()
    yield
    assert generator_states() == before


def seeded_outcome(call: Callable[[], Any], seed: int = 5) -> tuple[Any, Any]:
    """Return what a call gives or raises, and the states of the global generators after it."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats three stacks for devices that are not there
    random.seed(seed)
    np.random.seed(seed)
    try:
        value = call()
    except Exception as error:
        value = (type(error), str(error))
    return value, generator_states()

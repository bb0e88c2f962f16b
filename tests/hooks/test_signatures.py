"""Functions of other packages that are exchanged while a pass is open take the arguments of the originals."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import cv2  # noqa: F401
import numpy as np
import pytest
import safetensors.torch  # noqa: F401
import soundfile  # noqa: F401
import torch
import torchvision.transforms.v2

import penstock
from tests.data import Made

PACKAGES = ("PIL", "accelerate", "cv2", "numpy", "safetensors", "soundfile", "torch", "torchvision")


def held() -> dict[tuple[Any, str], Any]:
    """Return what the modules and classes of packages hold, by owner and name."""
    found: dict[tuple[Any, str], Any] = {}
    modules: list[Any] = list(sys.modules.values())
    for module in modules:
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in PACKAGES:
            values: list[Any] = list(vars(module).values())
            kinds = [one for one in values if issubclass(type(one), type)]
            found |= {(owner, name): value for owner in (module, *kinds) for name, value in list(vars(owner).items())}
    return found


def shape(function: Any) -> list[tuple[str, Any, Any]] | None:
    """Return names, kinds and defaults of a function's parameters; None: it does not say them."""
    try:
        return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
    except ValueError:  # a builtin
        return None


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "worker_method": "thread", "seed": 1}])
def test_every_exchanged_function_takes_the_arguments_of_its_original(options: dict[str, Any]) -> None:
    before = held()
    batches = iter(penstock.DataLoader(Made(lambda index: torch.tensor(np.array(index))), **options))
    next(batches)
    exchanged = {key: value for key, value in held().items() if before.get(key, value) is not value}
    of_ours = {key: getattr(value, "__wrapped__", held) is before[key] for key, value in exchanged.items()}
    exchanged = {key: value for key, value in exchanged.items() if of_ours[key]}
    assert (torch, "load") in exchanged and (torchvision.transforms.Compose, "__call__") in exchanged
    for (owner, name), ours in exchanged.items():
        both = ours, before[owner, name]
        function, original = (one.__func__ if isinstance(one, staticmethod) else one for one in both)
        assert shape(function) == shape(original), name
        kinds = [one.kind for one in inspect.signature(function, follow_wrapped=False).parameters.values()]
        assert kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD], name

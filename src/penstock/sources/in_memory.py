"""What a dataset in memory shows to a device that keeps a copy of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import _native


@dataclass(frozen=True)
class InMemory:
    """The arrays of a recognised dataset, and what is done to them."""

    arrays: tuple[torch.Tensor, ...]
    """One a field, sharing the dataset's memory: samples along dimension 0. Images are uint8 of shape (samples, height,
    width, channels), in memory in this order or with the channels apart."""
    recipe: _native.Recipe | None = None
    """What makes a field of each image of the only array; None: rows are the fields."""
    settled: bool = False
    """The labels are read without calling a function of the user's."""


def rows(tensors: Sequence[torch.Tensor]) -> InMemory:
    """Return tensors whose rows are the fields of the samples."""
    return InMemory(tuple(tensors))


def images(data: NDArray[np.uint8] | torch.Tensor, recipe: _native.Recipe, target_transform: Any) -> InMemory:
    """Return an array of images, of shape (samples, height, width) or (samples, height, width, channels)."""
    if isinstance(data, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only read
            data = torch.from_numpy(data)
    return InMemory((data if data.ndim == 4 else data.unsqueeze(-1),), recipe, target_transform is None)

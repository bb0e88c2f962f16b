"""The adapter of torchvision's datasets that hold their images in one array: CIFAR10, MNIST, and those like them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources.arrays import numbered, within_storage
from penstock.sources.image_files import spec_of, transformed_as_now
from penstock.sources.labels import LabelColumn, Labels, compact, transformed
from penstock.sources.native_source import DeviceArrays, Field, ImageSteps, LabelReader, Memory, NativeSource
from penstock.sources.reading import tensor_of
from penstock.sources.source import Source, label_step
from penstock.sources.unchanged import all_of, same_memory
from penstock.system.words import counted

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class _Layout(NamedTuple):
    """How a class holds its images."""

    mode: str
    """Of the PIL images that it makes."""
    labels: str = "targets"
    """The attribute with the labels."""
    planar: bool = False
    """Its array is (images, 3, height, width), and has each row, or each column, of a channel in one piece."""

    @property
    def integers(self) -> bool:
        """Whether it calls int() on each label."""
        return self.mode == "L" or self.planar


#: By name of the class: an array (images, height, width, 3), a tensor (images, height, width), or planes.
_LAYOUTS = {
    **dict.fromkeys(("CIFAR10", "CIFAR100"), _Layout("RGB")),
    **dict.fromkeys(("MNIST", "FashionMNIST", "EMNIST", "KMNIST"), _Layout("L")),
    **dict.fromkeys(("SVHN", "STL10"), _Layout("RGB", "labels", planar=True)),
}


class ImageArraySource(Source):
    """The adapter of those of torchvision's datasets that hold their images in one array."""

    torchvisions = tuple(_LAYOUTS)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset, made = self.dataset, _LAYOUTS[type(self.dataset).__name__]
        if getattr(dataset, made.labels) is None:
            return Refusal(f"{type(dataset).__name__}.labels", "None cannot be collated", "a split with labels")
        images, mode = dataset.data, made.mode
        name = type(dataset).__name__
        wanted, uint8 = (4, np.uint8) if mode == "RGB" else (3, torch.uint8)
        arrays: tuple[type, ...] = (np.ndarray, np.memmap) if mode == "RGB" else (torch.Tensor,)
        as_made = "the array as the class makes it"
        if type(images) not in arrays or images.dtype != uint8 or images.ndim != wanted:
            return Refusal(f"{name}.data", f"it is no {wanted}-d array of uint8", as_made)
        given = images
        if made.planar:
            images = images.transpose(0, 2, 3, 1)
        if not _laid_out_as_made(images, turned=made.planar):
            return Refusal(f"{name}.data", "its layout is not that which the class makes", as_made)
        targets = getattr(dataset, made.labels)
        if len(images) != len(targets):
            return Refusal(f"{name}.{made.labels}", "they are not as many as the images", "a label for each image")
        recipe = read_recipe(dataset.transform, mode=mode, size=(images.shape[1], images.shape[2]), raw=raw)
        if isinstance(recipe, Refusal):
            return recipe
        transform = dataset.target_transform
        number = len(targets)
        alias = images.detach() if isinstance(images, torch.Tensor) else images
        what = f"{counted(len(images), 'image')} of {images.shape[1]}x{images.shape[2]} in memory"
        in_rows = not made.planar or _in_rows(images)
        return NativeSource(
            size=len(images),
            fields=(Field(_native.ImageArrayFiller(alias, recipe.native), spec_of(recipe)),),
            steps=(Step(f"gather  {what}", "native"), *recipe.steps, label_step(transform)),
            identify=numbered,
            rescue=lambda position: dataset[position][0],
            apply=lambda position: dataset[position][0],
            labels=LabelReader(
                lambda positions: transformed(_taken(targets, positions, as_integers=made.integers), transform),
                _column(targets, as_integers=made.integers, target_transform=transform),
            ),
            images=ImageSteps((recipe,)),
            still=all_of(
                transformed_as_now(dataset, "data", made.labels), same_memory([given]), lambda: len(targets) == number
            ),
            memory=Memory(
                same_memory([given if isinstance(given, np.ndarray) else alias]),
                reads_ahead=True,
                held=DeviceArrays((_as_images(images),), recipe.native, transform is None) if in_rows else None,
            ),
        )


def _in_rows(images: NDArray[np.uint8]) -> bool:
    """Return whether each row of each channel of some images lies in one piece."""
    return bool(images.transpose(0, 3, 1, 2).flags.c_contiguous)


def _laid_out_as_made(images: NDArray[np.uint8] | torch.Tensor, *, turned: bool) -> bool:
    """Return whether images lie as MNIST and CIFAR10 make them: in C order, or channel after channel.

    turned: they may lie as SVHN makes them, channel after channel and column after column, and not in C order.
    """
    if isinstance(images, torch.Tensor):
        plain = images.layout == torch.strided and images.device.type == "cpu"
        return plain and images.is_contiguous() and not images.requires_grad and within_storage(images)
    columns = turned and images.transpose(0, 3, 2, 1).flags.c_contiguous
    own = columns if turned else images.flags.c_contiguous
    return bool(own or _in_rows(images)) and images.shape[3] == 3


def _as_images(data: NDArray[np.uint8] | torch.Tensor) -> torch.Tensor:
    """Return images as a tensor (images, height, width, channels) that shares their memory."""
    tensor = tensor_of(data) if isinstance(data, np.ndarray) else data
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(-1)


def _taken(targets: Any, positions: Indices | None, *, as_integers: bool) -> LabelColumn:
    """Return the labels at these positions, or at all for None, as they are now.

    as_integers: int() is called on each label, as MNIST does.
    """
    if as_integers and isinstance(targets, torch.Tensor) and targets.ndim == 1 and targets.dtype in _INTEGERS:
        plain = targets.detach()
        chosen = (plain if positions is None else plain[torch.from_numpy(positions)]).to(torch.int64, copy=True)
        numbers: LabelColumn = chosen.numpy(force=True)
        return numbers
    if type(targets) is list and positions is None:
        values = targets
    else:
        values = list(map(targets.__getitem__, range(len(targets)) if positions is None else positions.tolist()))
    return compact(list(map(int, values)) if as_integers else list(values))


def _column(
    targets: Any, *, as_integers: bool, target_transform: Callable[[Any], Any] | None
) -> Callable[[Indices], LabelColumn]:
    """Return a function that takes labels from a column, which is made when the first batch is handed out.

    By then the workers are busy: nothing waits for the column.
    """

    @cache
    def column() -> Labels:
        return Labels(_taken(targets, None, as_integers=as_integers))

    return lambda positions: transformed(column().take(positions), target_transform)

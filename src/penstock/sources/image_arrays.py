"""The adapter of torchvision's datasets that hold their images in one array: CIFAR10, MNIST, and those like them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources.arrays import numbered, within_storage
from penstock.sources.image_files import spec_of
from penstock.sources.labels import LabelColumn, array_of, compact, taken, transformed
from penstock.sources.native_source import DeviceArrays, Field, ImageSteps, LabelReader, Memory, NativeSource
from penstock.sources.reading import tensor_of
from penstock.sources.source import Source, label_step
from penstock.system.words import counted

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


#: The modes of the PIL images that a class makes, of an array (images, height, width, 3) or a tensor (images, height,
#: width). The latter classes call int() on each label.
_MODES = {
    **dict.fromkeys(("CIFAR10", "CIFAR100"), "RGB"),
    **dict.fromkeys(("MNIST", "FashionMNIST", "EMNIST", "KMNIST"), "L"),
}


class ImageArraySource(Source):
    """The adapter of those of torchvision's datasets that hold their images in one array."""

    torchvisions = tuple(_MODES)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset, name = self.dataset, type(self.dataset).__name__
        images, targets, mode = dataset.data, dataset.targets, _MODES[name]
        if not _laid_out_as_made(images, mode):
            return Refusal(f"{name}.data", "it is not laid out as the class makes it", "the class's own array")
        if len(images) != len(targets):
            return Refusal(f"{name}.targets", "they are not as many as the images", "a label for each image")
        recipe = read_recipe(dataset.transform, mode=mode, size=(images.shape[1], images.shape[2]), raw=raw)
        if isinstance(recipe, Refusal):
            return recipe
        transform, as_integers = dataset.target_transform, mode == "L"
        alias = images.detach() if isinstance(images, torch.Tensor) else images
        what = f"{counted(len(images), 'image')} of {images.shape[1]}x{images.shape[2]} in memory"
        return NativeSource(
            size=len(images),
            fields=(Field(_native.ImageArrayFiller(alias, recipe.native), spec_of(recipe)),),
            steps=(Step(f"gather  {what}", "native"), *recipe.steps, label_step(transform)),
            identify=numbered,
            rescue=lambda position: dataset[position][0],
            apply=lambda position: dataset[position][0],
            labels=LabelReader(
                lambda positions: transformed(_taken(targets, positions, as_integers=as_integers), transform),
                _column(targets, as_integers=as_integers, target_transform=transform),
            ),
            images=ImageSteps((recipe,)),
            memory=Memory(reads_ahead=True, held=DeviceArrays((_as_images(images),), recipe.native, transform is None)),
        )


def _laid_out_as_made(images: Any, mode: str) -> bool:
    """Return whether images lie as MNIST and CIFAR10 make them: in C order, or channel after channel."""
    if mode == "L":
        plain = type(images) is torch.Tensor and images.layout == torch.strided and images.device.type == "cpu"
        if not plain or images.dtype != torch.uint8 or images.ndim != 3:
            return False
        return bool(images.is_contiguous() and not images.requires_grad and within_storage(images))
    if type(images) not in (np.ndarray, np.memmap) or images.dtype != np.uint8 or images.ndim != 4:
        return False
    planes = images.transpose(0, 3, 1, 2)
    return images.shape[3] == 3 and bool(images.flags.c_contiguous or planes.flags.c_contiguous)


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
    def column() -> NDArray[Any]:
        return array_of(_taken(targets, None, as_integers=as_integers))

    return lambda positions: transformed(taken(column(), positions), target_transform)

"""The adapters of torchvision's datasets of one image and one label a sample: files, as ImageFolder, or one array."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.originals import is_original, replaced_in_opening
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources.arrays import within_storage
from penstock.sources.image_files import foreign_decoder, native_images, spec_of
from penstock.sources.labels import LabelColumn, compact, transformed
from penstock.sources.native_source import Field, ImageSteps, Memory, NativeSource, SampleFiles
from penstock.sources.reading import open_path, read_image, tensor_of
from penstock.sources.source import Source
from penstock.sources.unchanged import always
from penstock.system.words import counted

# --- files ------------------------------------------------------------------------------------------------------------

#: By name of the class: the attribute with the list of (file, label), or those with the lists of files and of labels.
_LISTS = {
    **dict.fromkeys(("ImageFolder", "DatasetFolder", "ImageNet", "Country211", "EuroSAT"), ("samples",)),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397"), ("_image_files", "_labels")),
    **dict.fromkeys(("GTSRB", "Imagenette", "RenderedSST2", "StanfordCars"), ("_samples",)),
}


class TorchvisionFolderSource(Source):
    """The adapter of those of torchvision's datasets whose samples are a file and a label each."""

    torchvisions = tuple(_LISTS)
    read = frozenset({"samples", "loader", "transform", "target_transform", "transforms"}.union(*_LISTS.values()))

    @cached_property
    def _pairs(self) -> list[tuple[str, Any]]:
        return [(os.fspath(path), label) for path, label in map(_located(self.dataset), range(len(self.dataset)))]

    def name(self, index: int) -> tuple[str, str | None]:
        return (os.fsdecode(_located(self.dataset)(index)[0]),) * 2

    def _file_pairs(self) -> Any:
        return super()._file_pairs() or self._pairs

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := _foreign(dataset)) is not None:
            return refusal
        located = _located(dataset)

        # Pairs are taken apart as torchvision does it, so that an entry which is not a pair raises torchvision's error.
        def labels(positions: Indices) -> LabelColumn:
            return transformed([located(position)[1] for position in positions.tolist()], dataset.target_transform)

        def read_in_python(position: int, file: BinaryIO | None = None) -> NDArray[np.uint8]:
            path = os.fsdecode(located(position)[0])
            return np.asarray(read_image(file or open_path(path), path, self.id(position)))

        return native_images(
            dataset,
            raw,
            None,
            read_in_python=read_in_python,
            files=SampleFiles(lambda position: os.fsencode(located(position)[0]), listed=True),
            labels=labels,
            same_dataset=_opens_by_pillow,
            reusable=always,
        )


def _located(dataset: Any) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that gives the file and the label at a position, of the lists as they are then."""
    kinds = (kind for kind in type(dataset).__mro__ if kind.__module__.startswith("torchvision.datasets."))
    names = next(_LISTS[kind.__name__] for kind in kinds if kind.__name__ in _LISTS)
    if len(names) == 1:

        def of_pair(position: int) -> tuple[Any, Any]:
            path, label = getattr(dataset, names[0])[position]
            return path, label

        return of_pair
    files, labels = names
    return lambda position: (getattr(dataset, files)[position], getattr(dataset, labels)[position])


def _foreign(dataset: Any) -> Refusal | None:
    """Return why a dataset's samples are not labels and images that Pillow itself decodes, or None."""
    loader = vars(dataset).get("loader")  # None: the class itself calls Image.open
    own = ("default_loader", "pil_loader")
    if loader is not None and not any(is_original(loader, "torchvision.datasets.folder", name) for name in own):
        return Refusal(f"{type(dataset).__name__}(loader=)", "Python calls your own loader", "the default loader")
    if (refusal := foreign_decoder()) is not None:
        return refusal
    if not _opens_by_pillow():
        return Refusal(
            "torchvision's image backend", "only PIL's pixels are reproduced", "torchvision.set_image_backend('PIL')"
        )
    return None


def _opens_by_pillow() -> bool:
    """Return whether torchvision's loader opens files by Pillow's functions."""
    return replaced_in_opening() is None and sys.modules["torchvision"].get_image_backend() == "PIL"


# --- images in one array ----------------------------------------------------------------------------------------------

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
        transform = dataset.target_transform
        alias = images.detach() if isinstance(images, torch.Tensor) else images
        tensor = tensor_of(images) if isinstance(images, np.ndarray) else images
        held = tensor if tensor.ndim == 4 else tensor.unsqueeze(-1)  # (images, height, width, channels)
        labels = partial(_labels, targets, mode == "L")
        what = f"{counted(len(images), 'image')} of {images.shape[1]}x{images.shape[2]} in memory"
        return NativeSource(
            fields=(Field(_native.ImageArrayFiller(alias, recipe.native), spec_of(recipe)),),
            steps=(Step(f"gather  {what}", "native"), *recipe.steps),
            read_in_python=lambda position: dataset[position][0],
            labels=lambda positions: transformed(labels(positions), transform),
            images=ImageSteps((recipe,)),
            memory=Memory(reads_ahead=True, held=(held,)),
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


def _labels(targets: Any, as_integers: bool, positions: Indices) -> LabelColumn:
    """Return the labels at these positions as they are now; as_integers: int() is called on each, as MNIST does."""
    if as_integers and isinstance(targets, torch.Tensor) and targets.ndim == 1 and targets.dtype in _INTEGERS:
        chosen = targets.detach()[torch.from_numpy(positions)].to(torch.int64)
        numbers: LabelColumn = chosen.numpy(force=True)
        return numbers
    if type(targets) is list:
        numbers = np.empty(len(positions), np.int64)
        if _native.take_integers(targets, positions, numbers):
            return numbers
    values = map(targets.__getitem__, positions.tolist())
    return compact(list(map(int, values) if as_integers else values))

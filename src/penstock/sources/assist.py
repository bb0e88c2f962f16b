"""Datasets whose samples end in the user's own code: bytes are read and decoded natively, the rest is called on them.

An image comes as the PIL image that the dataset would have handed on, a tensor as torch.load would have given it.
Whatever native code does not take is read by the dataset's own __getitem__, which also raises all errors.
"""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from penstock import _native
from penstock.order.mix import Mix
from penstock.recipe import drawing
from penstock.recipe.compose_hook import Pipeline
from penstock.recipe.originals import own_class
from penstock.recipe.prefix import Prefix, picture, read_prefix
from penstock.recipe.steps import Step
from penstock.sources import ImageFolder, TensorFolder
from penstock.sources.labels import transformed
from penstock.sources.premises import TransformState
from penstock.sources.recognise import foreign_decoder, foreign_loader, foreign_tensors, max_pixels, replaced

_MASK = 0xFFFFFFFFFFFFFFFF
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Draw(NamedTuple):
    """What a sample's native random draws depend on, each modulo 2**64."""

    seed: int
    epoch: int
    sample: int
    """The index that the whole dataset was asked for."""
    position: int
    """Where it stands in the order of the epoch."""


class Assisted:
    """Reads single samples of a dataset, natively as far as possible.

    Any number of threads may call it at once, also in a process that was forked off. It may be pickled where
    the dataset may. Made anew for each pass, it sees transforms that were changed; once one is changed during a
    pass, the dataset reads those samples itself.

    Attributes:
        dataset: the dataset.
        steps: who does what, for explain().
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._root = _part(dataset)
        self.steps = self._root.steps

    @property
    def gains(self) -> bool:
        """Whether any part of the dataset is read natively."""
        return self._root.gains

    def __call__(self, index: Any, seed: int, epoch: int, position: int = 0) -> Any:
        """Return what ``dataset[index]`` returns, random steps done natively being drawn from these."""
        number = _whole(index)
        if number is None:
            return self.dataset[index]
        return self._root.read(number, Draw(seed & _MASK, epoch & _MASK, number & _MASK, position & _MASK))

    def __reduce__(self) -> tuple[Any, ...]:
        return Assisted, (self.dataset,)

    def __repr__(self) -> str:
        return f"Assisted({self.dataset!r})"


def assist(dataset: object) -> Assisted | None:
    """Return how to read single samples of a dataset natively; None where there is nothing to gain.

    Costs no more than looking at the transforms: no folder is listed.
    """
    assisted = Assisted(dataset)
    return assisted if assisted.gains else None


class _Part:
    """A part of the dataset, read by its own __getitem__."""

    gains = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.steps: tuple[Step, ...] = (Step(f"read    {type(dataset).__name__}, by its __getitem__", "Python"),)

    def get(self, index: Any, draw: Draw) -> Any:
        """Return the sample at an index of any type."""
        number = _whole(index)
        return self.dataset[index] if number is None else self.read(number, draw)

    def read(self, index: int, draw: Draw) -> Any:
        """Return the sample at an index, which may be negative or out of range."""
        return self.dataset[index]


class _SubsetPart(_Part):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._child = _part(dataset.dataset)
        self.gains = self._child.gains
        self.steps = self._child.steps

    def read(self, index: int, draw: Draw) -> Any:
        return self._child.get(self.dataset.indices[index], draw)


class _ConcatPart(_Part):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._children = [_part(child) for child in dataset.datasets]
        self.gains = any(child.gains for child in self._children)
        self.steps = tuple(step for child in self._children for step in child.steps)

    def read(self, index: int, draw: Draw) -> Any:
        ends = self.dataset.cumulative_sizes
        if not -ends[-1] <= index < ends[-1]:
            return self.dataset[index]  # raises
        index += ends[-1] * (index < 0)
        number = bisect.bisect_right(ends, index)
        return self._children[number].read(index - (ends[number - 1] if number else 0), draw)


class _FolderPart(_Part):
    """Images or tensors in files."""

    gains = True

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._transform = dataset.transform

    def read(self, index: int, draw: Draw) -> Any:
        size = len(self.dataset)
        if self.dataset.transform is not self._transform or not -size <= index < size or not self.still():
            return self.dataset[index]
        return self.read_at(index % size, draw)

    def still(self) -> bool:
        """Return whether what was read of the transform once still is so."""
        return True

    def read_at(self, position: int, draw: Draw) -> Any:
        """Return the sample at a position from 0 on."""
        raise NotImplementedError


class _ImagePart(_FolderPart):
    """penstock's ImageFolder, whose files are in a table, and torchvision's, whose paths come one by one."""

    def __init__(self, dataset: Any, paths: _native.PathTable | None) -> None:
        super().__init__(dataset)
        self._prefix = read_prefix(dataset.transform, mode="RGB")
        self._rest = Pipeline(self._prefix.rest)
        self._state = TransformState(dataset.transform)
        self._loader = getattr(dataset, "loader", None)
        self._filler = _native.ImageFileFiller(paths, self._prefix.native, max_pixels())
        self._in_table = paths is not None
        what = f"{len(dataset):,} image files in {dataset.root}; JPEG decoded as far as needed, other formats by Pillow"
        self.steps = (
            Step(f"read    {what}", "native"),
            *self._prefix.steps,
            *_rest_steps(self._prefix),
            *_target_steps(dataset.target_transform),
        )

    def still(self) -> bool:
        return self._state.holds() and (self._in_table or self.dataset.loader is self._loader)

    def read_at(self, position: int, draw: Draw) -> Any:
        dataset = self.dataset
        path, label = None, None
        if self._in_table:
            label = int(dataset.labels[position])
        else:
            name, label = dataset.samples[position]
            path = os.fsencode(name)
        value = self._image(position, path, draw)
        if value is None:
            Image.init()  # Pillow looks up its rarer formats once, and an open() in another thread would not wait
            return dataset[position]
        value = self._rest(value)
        return value, label if dataset.target_transform is None else dataset.target_transform(label)

    def _image(self, position: int, path: bytes | None, draw: Draw) -> Any:
        """Return the image for the rest of the transform; None: Pillow must read it."""
        found = _native.read_image(self._filler, position, path, *draw)
        if isinstance(found, str):
            return None
        drawing.drew(self._prefix.drawing)
        pixels, head, padded = found
        try:
            info = Image.open(io.BytesIO(head)).info  # Pillow reads no further until pixels are asked for
        except Exception:
            return None
        return picture(self._prefix.mode, pixels, info if self._prefix.keeps_info and not padded else {})


class _TensorPart(_FolderPart):
    """TensorFolder."""

    def __init__(self, dataset: TensorFolder) -> None:
        super().__init__(dataset)
        self._filler = _native.TensorFileFiller(dataset.paths)
        self._spec = _native.Spec("float32", [0])  # of the tensor before
        steps = [Step(f"read    {len(dataset):,} files *{dataset.suffix} in {dataset.root}, one preadv each", "native")]
        if dataset.transform is not None:
            steps.append(Step(f"call    {_name(dataset.transform)}, on each tensor", "Python"))
        self.steps = (*steps, *_target_steps(dataset.target_transform))

    def read_at(self, position: int, draw: Draw) -> Any:
        dataset = self.dataset
        value: Any = self._tensor(position)
        if value is None:
            return dataset[position]
        if dataset.transform is not None:
            value = dataset.transform(value)
        if dataset.labels is None:
            return value
        return value, transformed([dataset.label(position)], dataset.target_transform)[0]

    def _tensor(self, position: int) -> torch.Tensor | None:
        """Return the tensor, in memory of torch's own; None: torch.load or numpy must read it."""
        spec = self._spec
        for _ in range(2):  # the first time with room for a tensor like the one before
            tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="cpu")
            held = _native.read_tensor(self._filler, position, _bytes(tensor), spec)
            if held is None:
                return tensor
            if isinstance(held, str):
                return None
            self._spec = spec = held
        return None  # the file was changed just now


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as bytes, sharing memory."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8, device="cpu")


def _part(dataset: Any) -> _Part:
    """Return what reads a dataset: natively where it is of exactly a known type, else by its __getitem__."""
    make = _makers().get(type(dataset))
    if make is None or replaced(dataset) is not None:
        return _Part(dataset)
    try:
        return make(dataset)
    except Exception:  # a dataset in an unusual state is its own to read
        return _Part(dataset)


def _makers() -> dict[type, Callable[[Any], _Part]]:
    makers: dict[type, Callable[[Any], _Part]] = {
        Subset: _SubsetPart,
        ConcatDataset: _ConcatPart,
        Mix: _ConcatPart,
        TensorFolder: _tensor_folder,
        ImageFolder: _image_folder,
    }
    folder = own_class("torchvision.datasets", "ImageFolder")
    return makers if folder is None else {**makers, folder: _torchvision_image_folder}


def _tensor_folder(dataset: TensorFolder) -> _Part:
    if foreign_tensors() is not None:
        return _Part(dataset)
    dataset.paths.refresh()
    return _TensorPart(dataset)


def _image_folder(dataset: ImageFolder) -> _Part:
    if foreign_decoder() is not None:
        return _Part(dataset)
    dataset.paths.refresh()
    return _ImagePart(dataset, dataset.paths)


def _torchvision_image_folder(dataset: Any) -> _Part:
    return _ImagePart(dataset, None) if foreign_loader(dataset) is None else _Part(dataset)


def _whole(index: object) -> int | None:
    """Return an index as a Python int; None for all that the dataset itself must make sense of."""
    if type(index) is int:
        return index
    if isinstance(index, np.integer):
        return int(index)
    if isinstance(index, torch.Tensor) and index.ndim == 0 and index.dtype in _INTEGERS:
        return int(index)
    return None


def _rest_steps(prefix: Prefix) -> tuple[Step, ...]:
    if prefix.ends is None:
        return ()
    names = ", ".join(map(_name, prefix.rest))
    why = f"{prefix.ends.what}: {prefix.ends.why}"
    return (Step(f"call    {names}, on each PIL image ({why}); what is known of them natively", "Python"),)


def _target_steps(target_transform: object) -> tuple[Step, ...]:
    return () if target_transform is None else (Step(f"call    {_name(target_transform)}, on each label", "Python"),)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__

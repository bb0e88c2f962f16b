"""Which datasets the native core can read: each recognised class, by its exact type.

A subclass may override anything, so that only exact types are recognised; whatever is not, is refused with
the reason and what would make it native, and Python reads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import TensorDataset

from penstock import _native
from penstock.errors import CorruptSample
from penstock.order.permutations import Indices
from penstock.recipe.inverse import Inverse
from penstock.recipe.jpeg_pixels import decoded_alike
from penstock.recipe.originals import (
    READING,
    is_original,
    own_class,
    replaced_in,
    replaced_in_class,
    replaced_in_opening,
    replaced_in_transforms,
)
from penstock.recipe.reader import Recipe
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources import Arrays, ImageFolder, TensorFolder, in_memory
from penstock.sources.in_memory import InMemory
from penstock.sources.labels import Labels as LabelColumn
from penstock.sources.labels import compact, transformed
from penstock.sources.premises import Holds, TransformState, all_of, attributes, items, places
from penstock.sources.reading import open_path, read_image

Labels = NDArray[Any] | list[Any]
Rescued = NDArray[np.uint8] | torch.Tensor
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Leaf:
    """One recognised dataset, without the Subset and ConcatDataset around it."""

    size: int
    """Number of samples."""
    fillers: tuple[_native.Filler, ...]
    """One a tensor field."""
    specs: tuple[_native.Spec | None, ...]
    """Shape and dtype of a row of each field; None where only the samples tell."""
    pair: bool
    """True: a sample is a tuple of its fields (and label). False: it is its only field."""
    identify: Callable[[int], tuple[str, str | None]]
    """(ID, file) of a sample, for messages."""
    steps: tuple[Step, ...]
    """For explain()."""
    rescue: Callable[[int], Rescued]
    """Reads the field of one sample in Python: the decoded pixels of an image, else the tensor itself."""
    apply: Callable[[int], torch.Tensor]
    """The same through the dataset's own __getitem__, transform and all."""
    labels: Callable[[Indices], Labels] | None = None
    """The labels at these positions, as they are now."""
    column: Callable[[Indices], Labels] | None = None
    """The labels as they were when this was called first; None: there is no quicker way to them than `labels`."""
    names: Callable[[Indices], list[bytes]] | None = None
    """The files of these samples, where the source itself has no table of them."""
    table: torch.Tensor | None = None
    """What the values of the first field, pixels, are yet to become: (channels, 256); None: they are what they are."""
    recipe: Recipe | None = None
    """What is done to each image; None: the first field is no image."""
    held: InMemory | None = None
    """The arrays, for a device that may keep them; None: they are not in memory."""
    still: Holds = _always
    """Whether the dataset is what it was when this was made, but for the elements of its arrays and lists."""
    unmoved: Holds | None = None
    """Whether the memory that the fillers read is where it was; None: they read files."""
    lost: Callable[[Indices], list[int]] | None = None
    """Which of these samples (places in the array of positions) lie beyond the end of a mapped file; None: no such."""
    gone: Callable[[int], Exception | None] | None = None
    """The error of such a sample."""


def recognise(dataset: object, raw: bool = False) -> Leaf | Refusal:
    """Return how the native core reads a dataset that is neither Subset nor ConcatDataset, or why it cannot.

    raw: images stay pixels, and the Leaf has the table of what they become, where a recipe allows it.
    """
    reader = _readers(raw).get(type(dataset))
    if reader is not None:
        refusal = replaced(dataset)
        if refusal is not None:
            return refusal
        try:
            leaf = reader(dataset)
            if isinstance(leaf, Leaf):
                leaf = replace(leaf, still=_as_it_was(dataset, leaf.still))
                if leaf.table is not None:
                    leaf = _giving_pixels(leaf, Inverse(leaf.table))
            return leaf
        except Exception as error:  # a dataset in an unusual state is torch's to read, or to refuse
            return Refusal(_name(dataset), f"planning raised {type(error).__name__}: {error}", "the class as it is")
    base = next((kind.__name__ for kind in type(dataset).__mro__[1:] if kind in _readers()), None)
    if base is not None:
        return Refusal(_name(dataset), f"a subclass of {base} may read otherwise", f"{base} itself")
    return Refusal(
        _name(dataset),
        "its samples are made by its own Python code",
        "penstock.TensorFolder, ImageFolder or Arrays over the same files, if they hold the samples as they are",
    )


def _as_it_was(dataset: object, still: Holds) -> Holds:
    kind = type(dataset)
    return lambda: type(dataset) is kind and still() and replaced(dataset) is None


def _transformed_as_now(dataset: Any, *names: str) -> Holds:
    """Return whether these attributes, the transforms and what else recipes depend on are what they are now."""
    state = TransformState(dataset.transform)
    dtype, most = torch.get_default_dtype(), Image.MAX_IMAGE_PIXELS
    return all_of(
        attributes(dataset, "transform", "target_transform", *names),
        state.holds,
        lambda: torch.get_default_dtype() is dtype and most == Image.MAX_IMAGE_PIXELS,
        lambda: replaced_in_transforms() is None,
    )


def replaced(dataset: object) -> Refusal | None:
    """Return which method a program has replaced, on the object or its class, that its samples come from, or None."""
    if {"__getitem__", "__getitems__"} & vars(dataset).keys():
        return Refusal(_name(dataset), "its __getitem__ was replaced", "the class as it is")
    return replaced_in_class(type(dataset), READING)


def _name(dataset: object) -> str:
    return type(dataset).__name__


def _giving_pixels(leaf: Leaf, inverse: Inverse) -> Leaf:
    """Return a leaf whose samples are turned back into pixels where Python reads them, transform and all."""

    def pixels(position: int, value: torch.Tensor) -> torch.Tensor:
        try:
            return inverse(value)
        except ValueError as error:
            sample_id, path = leaf.identify(position)
            raise CorruptSample(
                f"sample {sample_id!r} ({path or 'in memory'}): its transform gave {error}, other than what the "
                "device was told. Was the transform changed during the pass?",
                sample_id=sample_id,
                path=path,
            ) from error

    def rescue(position: int) -> Rescued:
        value = leaf.rescue(position)
        return pixels(position, value) if isinstance(value, torch.Tensor) else value

    return replace(leaf, rescue=rescue, apply=lambda position: pixels(position, leaf.apply(position)))


def _readers(raw: bool = False) -> dict[type, Callable[[Any], Leaf | Refusal]]:
    """Return the recognised classes; those of torchvision where the program has imported it."""
    readers: dict[type, Callable[[Any], Leaf | Refusal]] = {
        TensorFolder: _tensor_folder,
        ImageFolder: partial(_image_folder, raw=raw),
        Arrays: _arrays,
        TensorDataset: _tensor_dataset,
    }
    torchvisions = {
        "ImageFolder": partial(_torchvision_image_folder, raw=raw),
        **dict.fromkeys(("CIFAR10", "CIFAR100"), partial(_images_in_memory, mode="RGB", raw=raw)),
        **dict.fromkeys(("MNIST", "FashionMNIST"), partial(_images_in_memory, mode="L", raw=raw)),
    }
    found = ((own_class("torchvision.datasets", name), reader) for name, reader in torchvisions.items())
    return readers | {kind: reader for kind, reader in found if kind is not None}


def _tensor_folder(dataset: TensorFolder) -> Leaf | Refusal:
    if dataset.transform is not None:
        return Refusal(
            "TensorFolder.transform", "a function on tensors is Python's", "the function applied to the batch instead"
        )
    refusal = foreign_tensors()
    if refusal is not None:
        return refusal
    dataset.paths.refresh()
    columns = None
    steps = [
        Step(f"read    {len(dataset):,} files *{dataset.suffix} in {dataset.root}, one preadv each", "native"),
    ]
    if dataset.labels is not None:
        labels = dataset.labels

        def columns(positions: Indices) -> Labels:
            try:
                return transformed(labels.take(positions), dataset.target_transform)
            except KeyError as error:
                raise dataset.missing_label(error.args[0]) from None

        steps.append(_label_step(dataset.target_transform))
    return Leaf(
        size=len(dataset),
        fillers=(_native.TensorFileFiller(dataset.paths),),
        specs=(None,),
        pair=dataset.labels is not None,
        identify=lambda position: (dataset.ids[position], dataset.path(position)),
        steps=tuple(steps),
        labels=columns,
        rescue=dataset.read,
        apply=dataset.read,
        still=attributes(dataset, "paths", "labels", "transform", "target_transform"),
    )


def _label_step(target_transform: object) -> Step:
    if target_transform is None:
        return Step("label   from an array", "native")
    return Step("label   target_transform, in the caller's thread", "Python")


def _image_folder(dataset: ImageFolder, *, raw: bool) -> Leaf | Refusal:
    refusal = foreign_decoder()
    if refusal is not None:
        return refusal
    recipe = read_recipe(dataset.transform, mode="RGB", raw=raw)
    if isinstance(recipe, Refusal):
        return recipe
    dataset.paths.refresh()
    return Leaf(
        size=len(dataset),
        fillers=(_native.ImageFileFiller(dataset.paths, recipe.native, max_pixels()),),
        specs=(_spec(recipe),),
        pair=True,
        identify=lambda position: (dataset.samples[position][0],) * 2,
        steps=_image_steps(f"{len(dataset):,} image files in {dataset.root}", recipe, dataset.target_transform),
        labels=lambda positions: transformed(dataset.labels[positions], dataset.target_transform),
        rescue=lambda position: np.asarray(dataset.read(position)),
        apply=lambda position: dataset[position][0],
        table=recipe.table,
        recipe=recipe,
        still=_transformed_as_now(dataset, "paths", "labels"),
    )


def foreign_tensors() -> Refusal | None:
    """Return which function that reads a TensorFolder's files was replaced, or None."""
    return replaced_in("torch", "load") or replaced_in("numpy", "load")


def foreign_decoder() -> Refusal | None:
    """Return why Pillow's pixels of a JPEG are not those that the native core decodes, or None."""
    refusal = replaced_in_opening()
    if refusal is None and not decoded_alike():
        remedy = "a Pillow whose libjpeg-turbo gives the native core's pixels"
        return Refusal("JPEG", "decoded by Pillow: this Pillow's libjpeg gives other pixels", remedy)
    return refusal


def foreign_loader(dataset: Any) -> Refusal | None:
    """Return why a torchvision ImageFolder's images are not those that Pillow itself gives, or None."""
    if not is_original(dataset.loader, "torchvision.datasets.folder", "default_loader"):
        return Refusal("ImageFolder(loader=)", "a loader of one's own is Python's", "the default loader")
    refusal = foreign_decoder()
    if refusal is not None:
        return refusal
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        return Refusal(
            "torchvision's image backend", "only PIL's pixels are reproduced", "torchvision.set_image_backend('PIL')"
        )
    return None


def _torchvision_image_folder(dataset: Any, *, raw: bool) -> Leaf | Refusal:
    refusal = foreign_loader(dataset)
    if refusal is not None:
        return refusal
    recipe = read_recipe(dataset.transform, mode="RGB", raw=raw)
    if isinstance(recipe, Refusal):
        return recipe
    samples: Sequence[tuple[str, Any]] = dataset.samples  # read anew for each batch: it may be changed at any time
    size = len(samples)

    # Pairs are taken apart as torchvision does it: what is no pair is its error.
    def labels(positions: Indices) -> Labels:
        taken = [label for _, label in map(samples.__getitem__, positions.tolist())]
        return transformed(taken, dataset.target_transform)

    def names(positions: Indices) -> list[bytes]:
        return [os.fsencode(path) for path, _ in map(samples.__getitem__, positions.tolist())]

    return Leaf(
        size=size,
        fillers=(_native.ImageFileFiller(None, recipe.native, max_pixels()),),
        specs=(_spec(recipe),),
        pair=True,
        identify=lambda position: (samples[position][0],) * 2,
        steps=_image_steps(f"{len(samples):,} image files in {dataset.root}", recipe, dataset.target_transform),
        labels=labels,
        names=names,
        rescue=lambda position: np.asarray(read_image(open_path(samples[position][0]), samples[position][0])),
        apply=lambda position: dataset[position][0],
        table=recipe.table,
        recipe=recipe,
        still=all_of(
            _transformed_as_now(dataset, "samples", "loader"),
            lambda: len(samples) == size and foreign_loader(dataset) is None,
        ),
    )


def max_pixels() -> int:
    return Image.MAX_IMAGE_PIXELS or 0


def _spec(recipe: Recipe) -> _native.Spec | None:
    if recipe.shape is None:
        return None
    return _native.Spec(str(recipe.dtype).removeprefix("torch."), list(recipe.shape))


def _image_steps(what: str, recipe: Recipe, target_transform: object) -> tuple[Step, ...]:
    read = Step(f"read    {what}; JPEG decoded natively as far as needed, other formats by Pillow", "native")
    return (read, *recipe.steps, _label_step(target_transform))


def _images_in_memory(dataset: Any, *, mode: str, raw: bool) -> Leaf | Refusal:
    images = dataset.data
    wanted, uint8 = (4, np.uint8) if mode == "RGB" else (3, torch.uint8)
    arrays: tuple[type, ...] = (np.ndarray, np.memmap) if mode == "RGB" else (torch.Tensor,)
    as_made = "the array as the class makes it"
    if type(images) not in arrays or images.dtype != uint8 or images.ndim != wanted:
        return Refusal(f"{_name(dataset)}.data", f"it is no {wanted}-d array of uint8", as_made)
    if not _laid_out_as_made(images):
        return Refusal(f"{_name(dataset)}.data", "its layout is not that which the class makes", as_made)
    if len(images) != len(dataset.targets):
        return Refusal(f"{_name(dataset)}.targets", "they are not as many as the images", "a label for each image")
    recipe = read_recipe(dataset.transform, mode=mode, size=(images.shape[1], images.shape[2]), raw=raw)
    if isinstance(recipe, Refusal):
        return recipe
    transform, targets = dataset.target_transform, dataset.targets
    number = len(targets)
    alias = images.detach() if isinstance(images, torch.Tensor) else images
    what = f"{len(images):,} images of {images.shape[1]}x{images.shape[2]} in memory"
    return Leaf(
        size=len(images),
        fillers=(_native.ImageArrayFiller(alias, recipe.native),),
        specs=(_spec(recipe),),
        pair=True,
        identify=lambda position: (f"number {position}", None),
        steps=(Step(f"gather  {what}", "native"), *recipe.steps, _label_step(transform)),
        labels=lambda positions: transformed(_taken(targets, positions, as_integers=mode == "L"), transform),
        column=_column(targets, as_integers=mode == "L", target_transform=transform),
        rescue=lambda position: dataset[position][0],
        apply=lambda position: dataset[position][0],
        table=recipe.table,
        held=in_memory.images(dataset.data, recipe.native, transform),
        recipe=recipe,
        still=all_of(_transformed_as_now(dataset, "data", "targets"), places([images]), lambda: len(targets) == number),
        unmoved=places([alias]),
    )


def _laid_out_as_made(images: NDArray[np.uint8] | torch.Tensor) -> bool:
    """Return whether images lie as MNIST and CIFAR10 make them: in C order, or channel after channel."""
    if isinstance(images, torch.Tensor):
        plain = images.layout == torch.strided and images.device.type == "cpu"
        return plain and images.is_contiguous() and not images.requires_grad and _within_storage(images)
    planar = images.transpose(0, 3, 1, 2).flags.c_contiguous  # as torchvision's CIFAR10 makes it
    return bool(images.flags.c_contiguous or planar) and images.shape[3] == 3


def _taken(targets: Any, positions: Indices | None, *, as_integers: bool) -> Labels:
    """Return the labels at these positions, None: at all, as they are now.

    as_integers: int() is called on each, as MNIST does.
    """
    if as_integers and isinstance(targets, torch.Tensor) and targets.ndim == 1 and targets.dtype in _INTEGERS:
        plain = targets.detach()
        chosen = (plain if positions is None else plain[torch.from_numpy(positions)]).to(torch.int64, copy=True)
        numbers: Labels = chosen.numpy(force=True)
        return numbers
    if type(targets) is list and positions is None:
        values = targets
    else:
        values = list(map(targets.__getitem__, range(len(targets)) if positions is None else positions.tolist()))
    return compact(list(map(int, values)) if as_integers else list(values))


def _column(
    targets: Any, *, as_integers: bool, target_transform: Callable[[Any], Any] | None
) -> Callable[[Indices], Labels]:
    """Return the labels of a list or tensor of targets, made a column when the first batch is handed out.

    By then the workers are busy: nothing waits for it.
    """

    @cache
    def column() -> LabelColumn:
        return LabelColumn(_taken(targets, None, as_integers=as_integers))

    return lambda positions: transformed(column().take(positions), target_transform)


def _tensor_dataset(dataset: TensorDataset) -> Leaf | Refusal:
    return _rows(dataset, dataset.tensors)


def _arrays(dataset: Arrays) -> Leaf | Refusal:
    if dataset.transform is not None:
        return Refusal(
            "Arrays.transform", "a function on tensors is Python's", "the function applied to the batch instead"
        )
    dataset.refresh()
    leaf = _rows(dataset, dataset.tensors)
    if isinstance(leaf, Refusal) or leaf.unmoved is None:
        return leaf
    return replace(
        leaf,
        still=all_of(leaf.still, attributes(dataset, "transform"), dataset.holds),
        unmoved=all_of(leaf.unmoved, dataset.holds),
        lost=dataset.lost if dataset.maps_files else None,
        gone=dataset.truncated,
    )


def _rows(dataset: object, tensors: Sequence[torch.Tensor]) -> Leaf | Refusal:
    fillers, specs, aliases = [], [], []
    for number, tensor in enumerate(tensors):
        why = _not_gatherable(tensor) or (len(tensor) != len(tensors[0]) and "it has another number of rows") or None
        if why is not None:
            return Refusal(
                f"{_name(dataset)}, array {number}", why, "a plain tensor on the CPU whose rows are contiguous"
            )
        spec = _native.Spec(str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:]))
        aliases.append(_as_bytes(tensor, spec.nbytes))
        fillers.append(_native.GatherFiller(aliases[-1], spec))
        specs.append(spec)
    size = len(tensors[0])
    shapes = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
    return Leaf(
        size=size,
        fillers=tuple(fillers),
        specs=tuple(specs),
        pair=True,
        identify=lambda position: (f"number {position}", None),
        steps=(Step(f"gather  {size:,} rows of {shapes}", "native"),),
        rescue=lambda position: tensors[0][position],
        apply=lambda position: tensors[0][position],
        held=in_memory.rows(tensors),
        still=all_of(attributes(dataset, "tensors"), items(tensors), places(tensors)),
        unmoved=places(aliases),
    )


def _not_gatherable(tensor: torch.Tensor) -> str | None:
    """Return why the rows of a tensor cannot be copied as bytes, or None."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"{type(tensor).__name__} is a tensor class of its own"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "it is not a plain dense tensor"
    if tensor.requires_grad:
        return "it requires grad, which its batches would have to carry on"
    if tensor.ndim - 1 > _native.MAX_DIMS or str(tensor.dtype).removeprefix("torch.") not in _native.DTYPES:
        return f"dtype {tensor.dtype} or its {tensor.ndim} dimensions are not native"
    if len(tensor) > 0 and not tensor[0].is_contiguous():
        return "its rows are not contiguous"
    if not _within_storage(tensor):
        return "its storage was made smaller"
    return None


def _within_storage(tensor: torch.Tensor) -> bool:
    """Return whether a storage holds all elements of a tensor, as it does unless somebody resized it."""
    if tensor.numel() == 0:
        return True
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(end <= tensor.untyped_storage().nbytes())


def _as_bytes(tensor: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """Return the rows as bytes, uint8 of shape (rows, row_bytes): an alias, which lies where the tensor lies."""
    if len(tensor) == 0 or row_bytes == 0:
        return torch.empty((len(tensor), row_bytes), dtype=torch.uint8, device="cpu")
    flat = torch.as_strided(
        tensor.detach(),
        (len(tensor), row_bytes // tensor.element_size()),
        (tensor.stride(0), 1),
        tensor.storage_offset(),
    )
    return flat.view(torch.uint8)

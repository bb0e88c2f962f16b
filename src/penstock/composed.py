"""torchvision's Compose, run natively where a dataset's own code calls it in one of our workers.

A dataset that opens an image with Pillow and calls a Compose on it gets exactly what the Compose would return: the same
elements, strides and type, after the same draws from torch's generator, for torchvision's own code draws them. Known
transforms that follow each other are run together by the native core, on the memory of the PIL image: no image is made
between them, and Python's lock is let go. All else is called as ever.

The methods of torchvision's classes are exchanged once, for ones that ask whether the calling thread is a worker at
work; in any other thread they are what they were.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock import _native, drawing
from penstock.recipe import Reader, handlers
from penstock.recipe_prefix import picture
from penstock.transforms import V1, V2, Refused, classes, flatten, is_v1, margins

#: What a run gives where Python must do its part.
_REFUSED = object()


class _Here(threading.local):
    on = False
    """Whether this thread is at work for a loader."""


_here = _Here()


@contextmanager
def natively() -> Iterator[None]:
    """Run each Compose that this thread calls natively, as far as its parts are known."""
    _exchange_all()
    before, _here.on = _here.on, True
    try:
        yield
    finally:
        _here.on = before


def natively_in_this_process() -> None:
    """Do so in all threads, for the life of a process that is a loader's own."""
    _exchange_all()
    _Here.on = _here.on = True


_METHODS = {V1: "__call__", V2: "forward"}
_exchanged: set[str] = set()
_exchanging = threading.Lock()


def _exchange_all() -> None:
    for module, method in _METHODS.items():
        if module not in _exchanged and module in sys.modules:
            _exchange(module, method)


def _exchange(module: str, method: str) -> None:
    with _exchanging:
        if module in _exchanged:
            return
        (kind,) = classes("Compose", module)
        original = vars(kind)[method]

        @functools.wraps(original)
        def call(self: Any, *inputs: Any, **named: Any) -> Any:
            if _here.on and len(inputs) == 1 and not named and isinstance(inputs[0], Image.Image):
                return _pipeline_of(self).run(inputs[0])
            return original(self, *inputs, **named)

        setattr(kind, method, call)
        _exchanged.add(module)


_pipelines: weakref.WeakKeyDictionary[Any, Pipeline] = weakref.WeakKeyDictionary()


def _pipeline_of(compose: Any) -> Pipeline:
    """Return how a Compose is run, made anew where its parts are others, or changed."""
    pipeline = _pipelines.get(compose)
    if pipeline is None or not pipeline.still(compose.transforms):
        pipeline = _pipelines[compose] = Pipeline(compose.transforms)
    return pipeline


class Pipeline:
    """Transforms that are called in turn; runs of known ones natively. Any number of threads may call it at once."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._transforms = list(transforms)
        self._parts: list[Any] = [leaf for part in transforms for leaf in flatten(part)]
        watched = {id(part): part for part in _watched(transforms)}
        self._states = [(part, _State(part)) for part in watched.values()]
        self._fixed = all(state.fixed for _, state in self._states)
        self._runs: dict[tuple[int, str, torch.dtype], Run | None] = {}

    def __call__(self, value: Any) -> Any:
        """Return what calling each of the transforms in turn returns."""
        if self.still(self._transforms):
            return self.run(value)
        for transform in self._transforms:
            value = transform(value)
        return value

    def still(self, transforms: Sequence[Any]) -> bool:
        """Return whether these are the transforms, and as they were."""
        if len(transforms) != len(self._transforms) or not all(map(operator.is_, transforms, self._transforms)):
            return False
        return all(state.same(part) for part, state in self._states)

    def run(self, value: Any) -> Any:
        """Return the same for transforms that are as they were."""
        parts, at = self._parts, 0
        hooked = torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
        while at < len(parts):
            run = None if hooked else self._run_at(at, value)
            if run is not None and (done := run(value)) is not _REFUSED:
                value, at = done, at + run.length
                continue
            value, at = parts[at](value), at + 1
        return value

    def _run_at(self, at: int, value: Any) -> Run | None:
        if not self._fixed or not isinstance(value, Image.Image) or not type(value).__module__.startswith("PIL."):
            return None
        if value.mode not in ("RGB", "L"):
            return None
        key = (at, value.mode, torch.get_default_dtype())
        if key not in self._runs:
            self._runs[key] = read_run(self._parts[at:], value.mode)
        return self._runs[key]


class _State:
    """What a transform object's attributes were."""

    def __init__(self, transform: Any) -> None:
        self.fixed = True
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._attributes = {name: self._kept(value) for name, value in getattr(transform, "__dict__", {}).items()}

    def same(self, transform: Any) -> bool:
        """Return whether they still are."""
        try:
            return bool(getattr(transform, "__dict__", {}) == self._attributes) and all(
                tensor._version == version for tensor, version in self._versions
            )
        except Exception:  # of a comparison
            return False

    def _kept(self, value: Any) -> Any:
        """Return a value that will differ from this one when this one was changed."""
        if isinstance(value, torch.Tensor):
            self.fixed &= not value.is_inference()
            if self.fixed:
                self._versions.append((value, value._version))
        elif isinstance(value, list | tuple | set | dict):
            for item in value.values() if isinstance(value, dict) else value:
                self._kept(item)
            return copy.copy(value)
        elif isinstance(value, np.ndarray):
            self.fixed = False
        return value


def _watched(transforms: Sequence[Any]) -> Iterator[Any]:
    """Yield the transforms that are read once, and not called each time; theirs too, where they have any."""
    for part in transforms:
        if type(part) in handlers():
            yield part
        elif type(part) in classes("Compose"):
            yield part
            yield from _watched(part.transforms)


@dataclass(frozen=True)
class Run:
    """Known transforms that follow each other, on a PIL image."""

    length: int
    """How many transforms."""
    native: _native.Recipe
    drawing: tuple[Draw | None, ...]
    """For each native operation, what has torchvision draw its parameters; None: it has none."""
    channels: int
    """Of the result."""
    mode: str | None
    """Of the result, a PIL image; None: it is a tensor."""
    keeps_info: bool
    """A PIL image has the info of the one before it, unless something was padded to it."""
    like: Any
    """The tensor that the transforms make of a small image."""

    def __call__(self, image: Image.Image) -> Any:
        """Return the result; or _REFUSED, and torch's generator is as it was. Raises what the transforms raise."""
        image.load()
        width, height = image.size
        sizes = _native.sizes(self.native, width, height)
        if not sizes:
            return _REFUSED
        try:
            schema, pixels = image.__arrow_c_array__()
        except (AttributeError, ValueError):  # a Pillow before 11.2; an image in several blocks of memory
            return _REFUSED
        marked = drawing.mark() if any(self.drawing) else None
        draws = [None if draw is None else draw(*size) for draw, size in zip(self.drawing, sizes, strict=False)]
        out = self._room(*sizes[-1])
        padded = _native.transform_image(self.native, schema, pixels, width, height, draws, out)
        if isinstance(padded, str):
            if marked is not None:
                drawing.go_back(marked)
            return _REFUSED
        if self.mode is not None:
            return picture(self.mode, out.numpy(), dict(image.info) if self.keeps_info and not padded else {})
        tensor = out.permute(2, 0, 1) if _interleaved(self.like) else out
        return tensor if type(self.like) is torch.Tensor else tensor.as_subclass(type(self.like))

    def _room(self, height: int, width: int) -> torch.Tensor:
        """Return the memory of the result, with the native core's order of dimensions."""
        if self.mode is not None:
            return torch.empty((height, width, self.channels), dtype=torch.uint8, device="cpu")
        interleaved = _interleaved(self.like)
        shape = (height, width, self.channels) if interleaved else (self.channels, height, width)
        return torch.empty(shape, dtype=self.like.dtype, device="cpu")


def read_run(transforms: Sequence[Any], mode: str) -> Run | None:
    """Return how as many of the first transforms as are known are run together on PIL images of a mode.

    None where that gains nothing: neither a resize nor a tensor is among what they do.
    """
    reader = Reader(mode)
    drawing: list[Draw | None] = []
    length = 0
    try:
        for transform in transforms:
            reader.add(transform)
            length += 1
            drawing += [_drawing(transform)] * (len(reader.operations) - len(drawing))
    except Refused:
        pass
    like: Any = reader.values[0]
    try:
        if isinstance(like, Image.Image):
            if not any("filter" in operation for operation in reader.operations[: len(drawing)]):
                return None
            native, result = reader.finish_picture()
            channels = len(result)
        else:
            if not like.is_cpu or like.requires_grad:
                return None
            native, result = reader.finish(None, layout="hwc" if _interleaved(like) else "chw").native, None
            channels = int(like.shape[0])
    except Refused:
        return None
    return Run(length, native, tuple(drawing), channels, result, reader.keeps_info, like)


def _interleaved(image: torch.Tensor) -> bool:
    """Return whether the channels of a pixel lie side by side, as Pillow's and NumPy's do."""
    return image.stride(0) == 1


# --- what torchvision draws -------------------------------------------------------------------------------------------

Draw = Callable[[int, int], Any]
"""Has a transform draw its parameters for a picture of (height, width); returns them as the native core takes them."""


def _drawing(transform: Any) -> Draw | None:
    kind = type(transform)
    if kind in classes("RandomResizedCrop") or kind in classes("RandomCrop"):
        if not is_v1(transform):
            return functools.partial(_crop_drawn_by_v2, transform)
        if kind in classes("RandomCrop"):
            return functools.partial(_crop_drawn_by_v1, transform)
        return functools.partial(_resized_crop_drawn_by_v1, transform)
    if kind in classes("RandomHorizontalFlip") or kind in classes("RandomVerticalFlip"):
        return functools.partial(_flip_drawn, transform)
    return None


def _seen(height: int, width: int) -> torch.Tensor:
    """Return something of that size for torchvision to look at."""
    return torch.empty(1, device="cpu").expand(1, height, width)


def _resized_crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    return transform.get_params(_seen(height, width), transform.scale, transform.ratio)


def _crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    wanted_height, wanted_width = transform.size
    if transform.padding is not None:
        left, top, right, bottom = margins(transform, transform.padding)
        height, width = height + top + bottom, width + left + right
    if transform.pad_if_needed:
        width += 2 * max(0, wanted_width - width)
        height += 2 * max(0, wanted_height - height)
    return transform.get_params(_seen(height, width), transform.size)


def _crop_drawn_by_v2(transform: Any, height: int, width: int) -> Any:
    drawn = transform.make_params([_seen(height, width)])
    return drawn["top"], drawn["left"], drawn["height"], drawn["width"]


def _flip_drawn(transform: Any, height: int, width: int) -> bool:
    return drawing.flips(transform.p)

"""Known transforms of torchvision that follow each other, run together by the native core on an image or a sample.

The result has the elements, strides and type that torchvision's would have, after the same draws from torch's
generator, for torchvision's own code draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import PIL
import torch
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.encoded_image import view_of
from penstock.recipe.reader import TRANSFORMS, Reader
from penstock.recipe.torchvision import TV_TENSORS, V2, Draw, Refused, classes, flatten

#: What a run returns where torchvision must run the transforms.
REFUSED = object()


def called(transforms: Sequence[Any], value: Any, several: bool = False) -> Any:
    """Return what the transforms return in turn.

    several: each is called with the items of what the one before it returned.
    """
    for transform in transforms:
        value = transform(*value) if several else transform(value)
    return value


class Part(NamedTuple):
    """One of the transforms of a run."""

    operation: str | None
    """The first operation of the native recipe that it is; None: it is none."""
    operations: int
    """How many operations of the recipe come before it."""
    result: Any
    """What it makes of a small image."""


@dataclass(frozen=True)
class Run:
    """Known transforms that follow each other, on a PIL image, or on a tensor of such pixels that they convert."""

    parts: tuple[Part, ...]
    natives: dict[bool, _native.Recipe]
    """The native recipe, by whether the channels of the result lie side by side."""
    draws: tuple[Draw | None, ...]
    """For each native operation, what has torchvision draw its parameters; None: it has none."""
    mode: str | None
    """The mode of the result, a PIL image; None: the result is a tensor."""
    keeps_info: bool
    """The result, a PIL image, has the info of the given image, unless something was padded to it."""
    like: Any
    """The tensor that the transforms make of a small image."""
    tail: int
    """How many operations come before the conversion to a tensor."""
    moves: int
    """How many operations come before RandomErasing, which leaves each element in its place."""
    paddings: tuple[tuple[int, int], ...]
    """Rows and columns that each operation adds before it crops."""
    remakes: bool
    """The result, a PIL image, is never the given image itself."""
    learned: dict[Any, bool | None] = field(default_factory=dict)
    """How torch laid out the channels of a tensor that was cropped or resized, by what was done to it."""

    @property
    def length(self) -> int:
        return len(self.parts)

    def __call__(self, image: Any, transforms: Sequence[Any]) -> Any:
        """Return the result; or REFUSED, and torch's generator is as it was, but for threads that share it.

        Raises what the transforms raise.

        transforms: the transforms that the run was read from.
        """
        sizes = self.sizes(image)
        if not sizes:
            return REFUSED

        def draw() -> list[Any]:
            return [None if draw is None else draw(*size) for draw, size in zip(self.draws, sizes, strict=False)]

        done, key = self.attempt(image, sizes, draw)
        if done is REFUSED and key is not None:
            done = called(transforms, image)
            self.learn(key, done)
        return done

    def sizes(self, image: Any) -> Sequence[tuple[int, int]]:
        """Return (height, width) before each operation on an image, and after the last; empty: torchvision's to do."""
        tensor = isinstance(image, torch.Tensor)
        width, height = (image.shape[2], image.shape[1]) if tensor else image.size
        sizes = _native.sizes(next(iter(self.natives.values())), width, height)
        if tensor:
            return sizes
        most = Image.MAX_IMAGE_PIXELS  # Pillow warns of larger ones where it crops, too
        return () if most is not None and any(rows * columns > most for rows, columns in sizes) else sizes

    def attempt(
        self, image: Any, sizes: Sequence[tuple[int, int]], draw: Callable[[], Sequence[Any]]
    ) -> tuple[Any, Any]:
        """Return the result, or REFUSED and torch's generator as it was; and what learn() is to be told, if anything.

        draw: returns what has been drawn for each operation, as the native core takes it.
        """
        marked = drawing.mark() if any(self.draws) else None
        key, interleaved = None, None
        try:
            draws = draw()
            key = self._key(sizes, draws)
            interleaved = self._interleaved(key, sizes, draws)
            if interleaved is not None:
                # Not before: an image that nothing is done to is not read.
                out = self._room(interleaved, *sizes[-1])
                padded = _transform(self.natives[interleaved], image, draws, out)
                if not isinstance(padded, str):
                    return self._result(image, out, interleaved, padded), None
        except Exception:  # torchvision itself raises the error, if it is one
            key = None
        drawing.rewind(marked)
        return REFUSED, key if interleaved is None and key not in self.learned else None

    def learn(self, key: Any, result: torch.Tensor) -> None:
        """Note how the channels lie of what the transforms themselves have returned."""
        channels, height, width = result.shape
        lies: dict[tuple[int, ...], bool] = {(1, width * channels, channels): True, (height * width, width, 1): False}
        self.learned[key] = lies.get(result.stride())

    def _key(self, sizes: Sequence[tuple[int, int]], draws: Sequence[Any]) -> Any:
        """Return what the strides of a result depend on that was cropped or resized as a tensor; None: nothing."""
        if self.mode is not None or self.tail == self.moves or min(map(min, sizes[self.tail : self.moves + 1])) < 2:
            return None
        key: list[Any] = []
        for number in range(self.tail, self.moves):
            drawn = draws[number]
            given = [side + more for side, more in zip(sizes[number], self.paddings[number], strict=True)]
            cropped = drawn[2:4] if isinstance(drawn, tuple) else given
            if min(cropped) < 2:
                return None
            key += [_compared(given, cropped), _compared(cropped, sizes[number + 1]), drawn is True]
        done = tuple(key)
        return None if len(self.learned) >= 256 and done not in self.learned else done

    def _interleaved(self, key: Any, sizes: Sequence[tuple[int, int]], draws: Sequence[Any]) -> bool | None:
        """Return whether the channels of the result lie side by side; None where the transforms must be called."""
        if self.mode is not None:
            # An image that nothing is done to is the result itself, with its file and all its attributes.
            if self.remakes or len(set(sizes)) != 1:
                return True
            acts = any(drawn is True or (isinstance(drawn, _native.Effects) and len(drawn) > 0) for drawn in draws)
            return True if acts else None
        if key is not None:
            return self.learned.get(key)
        # The strides of sides of one pixel may be any.
        return _interleaved(self.like) if self.tail == self.moves and min(sizes[-1]) > 1 else None

    def _result(self, image: Any, out: torch.Tensor, interleaved: bool, padded: bool) -> Any:
        if self.mode is not None:
            copied = getattr(image, "_copy_info", image.info.copy)  # lists in it are copied since Pillow 12
            made = Image.frombytes(self.mode, (out.shape[1], out.shape[0]), out.numpy())
            made.info = copied() if self.keeps_info and not padded else {}
            return made
        tensor = out.permute(2, 0, 1) if interleaved else out
        return tensor if type(self.like) is torch.Tensor else tensor.as_subclass(type(self.like))

    def _room(self, interleaved: bool, height: int, width: int) -> torch.Tensor:
        """Return the memory of the result, with the native core's order of dimensions."""
        dtype = torch.uint8 if self.mode is not None else self.like.dtype
        channels = len(self.mode) if self.mode is not None else int(self.like.shape[0])  # of modes "RGB" and "L"
        shape = (height, width, channels) if interleaved else (channels, height, width)
        return torch.empty(shape, dtype=dtype, device="cpu")


#: A Pillow before 13 ends the process where such an image is exported.
_EXPORTS_MAPPED = int(PIL.__version__.partition(".")[0]) >= 13


def _transform(recipe: _native.Recipe, image: Any, draws: Sequence[Any], out: torch.Tensor) -> bool | str:
    """Write what a recipe makes of an image into `out`; see penstock._native.transform_image."""
    if isinstance(image, torch.Tensor):
        return _native.transform_tensor(recipe, image.as_subclass(torch.Tensor), draws, out)
    width, height = image.size
    encoded = view_of(image)
    if encoded is not None:
        padded = _native.transform_jpeg(recipe, encoded, draws, out)
        if not isinstance(padded, str):
            return padded
    image.load()
    if image.readonly and not _EXPORTS_MAPPED:
        raise ValueError("an image over memory that is not Pillow's")
    # Raises in a Pillow before 11.2, and for an image in several blocks of memory.
    schema, pixels = image.__arrow_c_array__()
    if image.size != (width, height):  # images of some formats have their size only then
        raise ValueError(image.size)
    return _native.transform_image(recipe, schema, pixels, width, height, draws, out)


def _compared(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return for each side whether it is shorter (-1), as long (0), or longer (1) than the other's."""
    return tuple((a > b) - (a < b) for a, b in zip(one, other, strict=True))


def read_run(transforms: Sequence[Any], mode: str, ramp: torch.Tensor | None = None) -> Run | None:
    """Return how the known ones among the first transforms are run together on PIL images of a mode.

    None where that gains nothing: they neither resize nor make a tensor; or, of tensors, do not convert the pixels, for
    what they give may then be the tensor itself, or a view of it.

    ramp: have them run on tensors that lie as this one does (conversions.tensor_ramp).
    """
    reader = Reader(mode, drawn_by_python=True, ramp=ramp)
    parts: list[Part] = []
    whole = 0
    tail: int | None = None if ramp is None else 0
    try:
        for transform in transforms:
            before = len(reader.operations)
            reader.add(transform)
            first = next((operation["op"] for operation in reader.operations[before:]), None)
            parts.append(Part(first, before, reader.values[0]))
            tensor = not isinstance(reader.values[0], Image.Image)
            tail = len(reader.draws) if tensor and tail is None else tail
            # A crop of a tensor is a view of it, until a transform copies it.
            if not (tensor and _is_part(transform, whole == len(parts) - 1)):
                whole = len(parts)
    except Refused:
        pass
    if whole < len(parts):
        return read_run(transforms[:whole], mode, ramp)
    like, operations = reader.values[0], reader.operations
    tail = len(operations) if tail is None else tail
    moves = sum(operation["op"] != "RandomErasing" for operation in operations)
    try:
        if isinstance(like, Image.Image):
            if not any("filter" in operation or operation["op"] == "Augment" for operation in operations):
                return None
            native, result = reader.finish_picture()
            natives = {True: native}
        else:
            if not like.is_cpu or like.requires_grad or (ramp is not None and like.dtype == torch.uint8):
                return None
            layouts = {_interleaved(like)} if tail == moves else {True, False}
            natives = {each: reader.finish(None, layout="hwc" if each else "chw").native for each in layouts}
            result = None
    except Refused:
        return None
    return Run(
        tuple(parts),
        natives,
        tuple(reader.draws),
        result,
        reader.keeps_info,
        like,
        tail,
        moves,
        tuple(_padding(operation) for operation in operations),
        any(operation["op"] == "RandomResizedCrop" for operation in operations),
    )


def makes_plain_tensors(transform: Any, mode: str) -> bool:
    """Return whether a transform makes plain tensors of PIL images of a mode, one channel behind the other in memory.

    Only of pictures of more than one row and column.
    """
    parts = [] if transform is None else list(flatten(transform))
    run = read_run(parts, mode) if parts else None
    if run is None or run.length != len(parts) or run.mode is not None or run.tail != len(run.draws):
        return False
    return type(run.like) is torch.Tensor and not _interleaved(run.like)


def _is_part(transform: Any, whole: bool) -> bool:
    """Return whether what a transform makes of a tensor is, or may be, a view of a larger one."""
    kind = type(transform)
    if any(kind in classes(name) for name in ("CenterCrop", "RandomCrop")):
        return True
    return not whole and any(kind in classes(name) for name in ("Identity", "ToPureTensor"))


def _padding(operation: dict[str, Any]) -> tuple[int, int]:
    left, top, right, bottom = operation.get("padding", (0, 0, 0, 0)) if operation["op"] == "RandomCrop" else (0,) * 4
    return top + bottom, left + right


def _interleaved(image: torch.Tensor) -> bool:
    """Return whether the channels of a pixel lie side by side, as Pillow's and NumPy's do."""
    return image.stride(0) == 1


# --- samples of an image and what lies in it, in version 2: masks, boxes, keypoints -----------------------------------

# torchvision's own code draws the parameters of each transform, once for the whole sample, and changes everything but
# the image by them. The image goes through all of the transforms at once, in the native core, by the same parameters.
# So the sample is the one that torchvision would make, after the same draws.

#: The packages whose values torchvision's kernels change without a program's own code.
_KNOWN_PACKAGES = ("torch", "torchvision", "PIL", "numpy")


class _Unlike(Exception):
    """torchvision would not do to the image what the run does."""


def find_picture(value: Any) -> tuple[list[Any], Any, int] | None:
    """Return a sample's values, what it is made of, and which of them is its image, a PIL image of mode RGB or L.

    None: it has none, or a value of a program's class that transforms may change.
    """
    leaves, spec = tree_flatten(value)
    place = None
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Image.Image | torch.Tensor):
            continue
        if type(leaf).__module__.partition(".")[0] not in _KNOWN_PACKAGES:
            return None
        if isinstance(leaf, Image.Image) and leaf.mode in ("RGB", "L"):
            better = place is None or (leaves[place].mode == "L" and leaf.mode == "RGB")
            place = number if better else place
    return None if place is None else (leaves, spec, place)


def run_sample(run: Run, sample: Any, transforms: Sequence[Any]) -> Any:
    """Return the sample that the transforms make; or REFUSED, and torch's generator is as it was, as of a Run.

    transforms: those that the run was read from.
    """
    found = find_picture(sample)
    if found is None:
        return REFUSED
    leaves, spec, place = found
    image = leaves[place]
    sizes = run.sizes(image)
    if not sizes:
        return REFUSED
    done, key = run.attempt(image, sizes, lambda: _drawn(run, leaves, place, sizes, transforms))
    if done is not REFUSED:
        leaves[place] = done
        return tree_unflatten(leaves, spec)
    if key is None:
        return REFUSED
    result = called(transforms, sample, type(sample) is tuple and len(sample) > 1)  # torchvision flattens both alike
    run.learn(key, tree_flatten(result)[0][place])
    return result


def _drawn(run: Run, leaves: list[Any], place: int, sizes: Sequence[Any], transforms: Sequence[Any]) -> list[Any]:
    """Draw for all operations on the image, and do the transforms to the other values of a sample in place."""
    draws: list[Any] = []
    for part, transform in zip(run.parts, transforms, strict=True):
        transform.check_inputs(leaves)
        if part.operation == "Augment":
            own = run.draws[part.operations]
            if own is None or any(map(_has_colours, leaves[:place] + leaves[place + 1 :])):
                raise _Unlike
            draws.append(own(*sizes[part.operations]))
        elif part.operation == "RandomFlip":
            draws.append(drawing.flips(transform.p))
            if draws[-1]:
                _change(transform, leaves, place)
        else:
            drawn = _change(transform, leaves, place)
            if part.operation is not None:
                draws.append(tuple(drawn[side] for side in ("top", "left", "height", "width")) if drawn else None)
        leaves[place] = _stand_in(part.result, *sizes[part.operations + (part.operation is not None)])
    return draws


def _change(transform: Any, leaves: list[Any], place: int) -> Any:
    """Do a transform to the values of a sample but for the image, and return the parameters that it has drawn."""
    needed = transform._needs_transform_list(leaves)
    if not needed[place]:
        raise _Unlike
    drawn = transform.make_params([leaf for leaf, need in zip(leaves, needed, strict=True) if need])
    for number, need in enumerate(needed):
        if need and number != place:
            leaves[number] = transform.transform(leaves[number], drawn)
    return drawn


def _has_colours(value: Any) -> bool:
    """Return whether a value beside the image is an image, too."""
    return isinstance(value, Image.Image) or type(value) in classes("Image", TV_TENSORS) + classes("Video", TV_TENSORS)


def _stand_in(like: Any, height: int, width: int) -> Any:
    """Return an image of the class of another one and of this size, of which nobody may look at the pixels."""
    if isinstance(like, Image.Image):
        image = Image.Image()
        image._mode, image._size = like.mode, (width, height)
        return image
    return torch.empty(1, device="cpu").expand(int(like.shape[0]), height, width).as_subclass(type(like))


def read_sample_run(transforms: Sequence[Any], mode: str) -> Run | None:
    """Return how the known ones among the first transforms are run together on samples with an image of a mode.

    None where that gains nothing: they neither resize the image nor make a tensor of it.
    """
    joint = {kind for name, known in TRANSFORMS.items() if known.joint for kind in classes(name, V2)}
    known = next((n for n, one in enumerate(transforms) if type(one) not in joint), len(transforms))
    return read_run(transforms[:known], mode) if known else None

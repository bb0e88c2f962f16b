"""Known transforms of version 2, run together on samples of an image and what lies in it: masks, boxes, keypoints.

torchvision's own code draws the parameters of each transform, once for the whole sample, and changes everything but the
image by them. The image goes through all of the transforms at once, in the native core, by the same parameters. So the
sample is the one that torchvision would make, after the same draws.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten

from penstock.recipe import drawing
from penstock.recipe.composed_run import REFUSED, Run, called, read_run
from penstock.recipe.reader import TRANSFORMS
from penstock.recipe.torchvision import TV_TENSORS, V2, classes

#: The packages whose values torchvision's kernels change without a program's own code.
_KNOWN_PACKAGES = ("torch", "torchvision", "PIL", "numpy")


class _Unlike(Exception):
    """torchvision would not do to the image what the run does."""


def find_picture(value: Any) -> tuple[list[Any], Any, int] | None:
    """Return a sample's values, what it is made of, and which of them is its image, a PIL image of mode RGB or L.

    None: it has none, or a value of a class of a program's own that transforms may change.
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

    Args:
        run: what is done to the image.
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
    leaves = list(leaves)
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
    joint = _joint()
    known = next((n for n, one in enumerate(transforms) if type(one) not in joint), len(transforms))
    return read_run(transforms[:known], mode) if known else None


def _joint() -> set[type]:
    """Return the classes of transforms that may be run on samples."""
    if V2 not in sys.modules:
        return set()
    return {kind for name, known in TRANSFORMS.items() if known.joint for kind in classes(name, V2)}

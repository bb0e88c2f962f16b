"""What replaces methods of torchvision's transforms, so that they draw by sample in threads that do.

While a lease on HOOKS is open other methods stand there: see drawing.py. In every other thread they do what they did. A
function that is not torchvision's stays as it was.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils._pytree import tree_flatten

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.originals import add_methods
from penstock.recipe.patches import Lease, Patches
from penstock.recipe.reader import TRANSFORMS
from penstock.recipe.torchvision import V2

#: What is keyed of torchvision's transforms that the native core does not do.
_BY_TORCH = {
    "GaussianBlur": drawing.PARAMETERS,
    "RandomPerspective": drawing.BY_CHANCE,
    "RandomChoice": {(V2, "forward"): drawing.of_operation},
    "RandomOrder": {(V2, "forward"): drawing.of_operation},
}
_KEYED = {name: known.keyed for name, known in TRANSFORMS.items()} | _BY_TORCH


@contextmanager
def of_sample(seed: int, epoch: int, sample: int, position: int) -> Iterator[None]:
    """Let the known transforms draw for a sample in this thread."""
    with Lease(HOOKS), drawing.of_sample(seed, epoch, sample, position):
        yield


def _find(patches: Patches) -> None:
    for module, rows in METHODS.items():
        made = ((module, kind, method, partial(_hook_before, instead)) for kind, method, instead in rows)
        add_methods(patches, made, drawing.is_keyed)


HOOKS = Patches(_find)


def _hook_before(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that knows the original that it stands before."""
    return lambda *args, **named: instead(drawing.of_this_thread(), original, *args, **named)


def _with_probability(draws: _native.SampleDraws, original: Any, self: Any, *inputs: Any) -> Any:
    """Stand for the method of all transforms of version 2 that draw whether they act."""
    module = vars(sys.modules[V2])
    flips = (module["RandomHorizontalFlip"], module["RandomVerticalFlip"])
    if not isinstance(self, flips) or not inputs or not isinstance(self.p, int | float):
        name = type(self).__name__
        known = name in _KEYED and type(self) is module.get(name) and not isinstance(self, flips)
        return drawing.of_operation(draws, original, self, *inputs) if known else original(self, *inputs)
    if draws.flip(float(self.p)):
        return module["Transform"].forward(self, *inputs)
    one = inputs if len(inputs) > 1 else inputs[0]
    self.check_inputs(tree_flatten(one)[0])
    return one


def _by_module() -> dict[str, list[tuple[str, str, Callable[..., Any]]]]:
    found = defaultdict(list)
    for name, keyed in _KEYED.items():
        for (module, method), instead in keyed.items():
            found[module].append((name, method, instead))
    found[f"{V2}._transform"].append(("_RandomApplyTransform", "forward", _with_probability))
    return found


#: By module: classes with a method that draws, and what is called in its place, with the draws and the original method
#: before its arguments, whose names are the same.
METHODS = _by_module()

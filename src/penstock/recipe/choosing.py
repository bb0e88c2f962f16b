"""Augmentations that choose among others: RandomApply, RandomOrder and RandomChoice.

RandomChoice of torchvision.transforms draws from Python's random, that of transforms.v2 by torch.multinomial. For a
sample of a loader with a seed, and in the native core, one number of torch's generator chooses.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.augmentations import Augmentation, add, maybe
from penstock.recipe.blurring import draw_effects
from penstock.recipe.effects import recipe_of
from penstock.recipe.torchvision import V1, V2, Draw, Known, changed, flatten, is_v1, refuse


def _parts_of_each(transform: Any, reader: Any) -> list[list[Augmentation]]:
    """Return the augmentations of each transform that a transform holds; a Compose has several."""
    parts = transform.transforms
    if type(parts) not in (list, tuple):
        refuse(transform, f"its transforms are a {type(parts).__name__}", "a list of them")
    return [[_part(transform, one, reader) for one in flatten(given)] for given in parts]


def _part(transform: Any, part: Any, reader: Any) -> Augmentation:
    name, known = type(part).__name__, reader.known(part)
    if known is None or known.describe is None:
        refuse(transform, f"{name} in it is no augmentation that the native core knows", "others")
    if name in ("RandomChoice", "RandomPerspective") or (name == "RandomOrder" and is_v1(part)):
        refuse(transform, f"{name} in it is drawn by Python", "it by itself")
    if (why := changed(part)) is not None:
        refuse(part, why, "the class as it is")
    return known.describe(part, reader)  # type: ignore[no-any-return]


def _each(transform: Any, reader: Any) -> list[Augmentation]:
    """Return an augmentation for each transform that a transform holds."""
    parts = _parts_of_each(transform, reader)
    return [part[0] if len(part) == 1 else {"kind": "all", "parts": part} for part in parts]


def _apply(transform: Any, reader: Any) -> Augmentation:
    parts = itertools.chain.from_iterable(_parts_of_each(transform, reader))
    return maybe(transform, *parts, in_float32=True, inclusive=is_v1(transform))


def _order(transform: Any, reader: Any) -> Augmentation:
    return {"kind": "shuffled", "parts": _each(transform, reader)}


def _choice(transform: Any, reader: Any) -> Augmentation:
    parts = _each(transform, reader)
    shares = _shares(transform.p, len(parts))
    if shares is None:
        refuse(transform, f"p={transform.p!r}", "None, or a number for each transform that is not negative")
    return {"kind": "chosen", "shares": shares, "parts": parts}


def _shares(weights: Any, count: int) -> list[float] | None:
    """Return for each of some transforms the share of it and those before it, by their weights; None: by no weights."""
    given = [1.0] * count if weights is None else weights
    if not isinstance(given, list | tuple) or not count or len(given) != count:
        return None
    if not all(isinstance(one, int | float) and 0 <= one < math.inf for one in given) or not sum(given):
        return None
    sums = list(itertools.accumulate(map(float, given)))
    last = max(number for number in range(count) if given[number])
    return [1.0 if number >= last else value / sums[-1] for number, value in enumerate(sums)]


# --- what draws where Python runs them --------------------------------------------------------------------------------


def _choice_drawn_by(transform: Any, described: Augmentation, channels: int) -> Draw:
    singles = list(map(recipe_of, described["parts"]))

    def choose() -> _native.Recipe:
        if is_v1(transform):
            return singles[random.choices(range(len(singles)), weights=transform.p)[0]]
        return singles[int(torch.multinomial(torch.tensor(transform.p), 1))]

    return partial(_drawn, recipe_of(described), channels, choose)


def _order_drawn_by(_: Any, described: Augmentation, channels: int) -> Draw:
    def choose() -> _native.Recipe:
        order = list(range(len(described["parts"])))
        random.shuffle(order)
        return recipe_of({"kind": "all", "parts": [described["parts"][number] for number in order]})

    return partial(_drawn, recipe_of(described), channels, choose)


def _drawn(
    keyed: _native.Recipe, channels: int, choose: Callable[[], _native.Recipe], height: int, width: int
) -> _native.Effects:
    return draw_effects(keyed if drawing.is_keyed() else choose(), channels, height, width)


def _add_order(reader: Any, transform: Any) -> None:
    add(reader, transform, _order_drawn_by if is_v1(transform) else None)


# --- what is drawn for a keyed sample, in the place of torchvision's methods ------------------------------------------


def _keyed_choice(draws: _native.SampleDraws, original: Any, self: Any, *inputs: Any) -> Any:
    found = _shares(self.p, len(self.transforms))
    with drawing.of_next_operation():
        if found is None:
            return original(self, *inputs)
        number = float(torch.rand(1))
        return self.transforms[next(i for i, share in enumerate(found) if number < share)](*inputs)


def _keyed_order_of_v1(draws: _native.SampleDraws, original: Any, self: Any, img: Any) -> Any:
    with drawing.of_next_operation():
        for number in torch.randperm(len(self.transforms)).tolist():
            img = self.transforms[number](img)
        return img


TRANSFORMS = {
    "RandomApply": Known(add, _apply, keyed=drawing.WHOLE),
    "RandomOrder": Known(
        _add_order,
        _order,
        keyed={(V1, "__call__"): _keyed_order_of_v1, (V2, "forward"): drawing.of_operation},
    ),
    "RandomChoice": Known(
        partial(add, drawn_by=_choice_drawn_by),
        _choice,
        keyed={(V1, "__call__"): _keyed_choice, (V2, "forward"): _keyed_choice},
    ),
}

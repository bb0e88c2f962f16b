"""Augmentations draw the same on every route, and after every stop, as crops and flips do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from tests.loader.test_draws import PL, ROUTES, folder, route
from tests.loader.test_draws import root as root
from tests.same import assert_same
from tests.values import resumed

GENERATIONS = pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])


def augmented(root: Path, t: Any) -> Any:
    return folder(
        root,
        t.RandomResizedCrop(24),
        t.TrivialAugmentWide(),
        t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1), t.RandomGrayscale(0.5)], 0.8),
        t.RandomHorizontalFlip(),
        t.PILToTensor(),
        t.ConvertImageDtype(torch.float32),
        t.RandomErasing(0.5),
        t=t,
    )


@route
@GENERATIONS
def test_augmentations_draw_the_same_on_every_route(root: Path, t: Any, name: str) -> None:
    wrap, options = ROUTES[name]
    dataset = augmented(root, t)
    before = torch.get_rng_state()
    expected = list(PL(dataset, 4, shuffle=True, seed=5, num_workers=0))
    assert_same(list(PL(wrap(dataset), 4, shuffle=True, seed=5, **options)), expected)
    assert torch.equal(torch.get_rng_state(), before)


@GENERATIONS
def test_a_loader_that_goes_on_draws_what_it_would_have_drawn(root: Path, t: Any) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3, "num_workers": 2}
    whole = list(PL(augmented(root, t), **options))
    _, after = resumed(PL(augmented(root, t), **options), PL(augmented(root, t), **options), 1)
    assert_same(list(after), whole[1:])

"""explain(): "native" is what is done natively; what could be is advice, at the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import penstock
from tests.sample_datasets import Made, Stream


def words(loader: Any) -> list[tuple[str, str]]:
    lines = loader.explain().splitlines()
    return [(line.split()[0], line) for line in lines]


def numbers(**attributes: Any) -> Made:
    """Return a dataset that has these attributes, and no images."""
    made = Made(float, 8)
    vars(made).update(attributes)
    return made


AUTO = "advice   worker_method='auto' would measure whether threads of this process are faster than "


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, f"{AUTO}the caller's thread"),
        ({"num_workers": 2}, f"{AUTO}worker processes"),
        (
            {"num_workers": 0},
            AUTO.replace(" would", " with num_workers above 0 would") + "the caller's thread",
        ),
        ({"worker_method": "thread"}, None),
        ({"worker_method": "process"}, None),
        ({"worker_method": "auto", "num_workers": 0}, None),
    ],
)
def test_what_could_be_is_advice_at_the_end(options: dict[str, Any], advice: str | None) -> None:
    loader: Any = penstock.DataLoader(numbers(), 4, **options)
    list(loader)
    said = words(loader)
    kinds = [kind for kind, _ in said]
    assert "native" not in kinds
    first = kinds.index("advice")
    assert set(kinds[first:]) == {"advice"}
    lines = [line for _, line in said]
    assert any(line.startswith("because ") for line in lines)
    assert lines[first].startswith("advice   with ")
    assert lines[first].endswith(" the native core could read it")
    assert lines[first + 1 :] == ([] if advice is None else [advice])


def test_an_iterable_dataset_is_not_told_of_threads() -> None:
    assert "worker_method" not in penstock.DataLoader(Stream(8), num_workers=2).explain()


def test_a_native_plan_has_no_advice() -> None:
    assert "advice" not in penstock.DataLoader(TensorDataset(torch.arange(8))).explain()


def test_only_a_dataset_that_shows_a_compose_gets_a_line_on_it() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    v2 = pytest.importorskip("torchvision.transforms.v2")

    def line(dataset: Any, **options: Any) -> list[str]:
        return [line for kind, line in words(penstock.DataLoader(dataset, **options)) if kind == "native"]

    compose = transforms.Compose([transforms.ToTensor()])
    assert line(numbers()) == []
    assert line(numbers(transform=transforms.ToTensor())) == []
    shown = line(numbers(transform=compose))
    assert len(shown) == 1
    assert shown[0].startswith("native   the Compose at .transform, where the dataset calls it on a PIL image")
    held = numbers(aug=v2.Compose([v2.ToImage()]), mask=compose)
    datasets: list[Any] = [held, Subset(Subset(held, range(4)), range(2)), ConcatDataset([numbers(), held])]
    for dataset in datasets:
        assert "the Compose at .aug and .mask," in line(dataset)[0]
    assert line(numbers(transform=compose), worker_method="process") == []

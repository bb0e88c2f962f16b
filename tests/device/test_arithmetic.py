"""Pixels sent in place of elements: with the arithmetic of the device they are what the host would have made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from penstock.device import moving
from penstock.device.moving import Arithmetic
from penstock.errors import CorruptSample
from penstock.plan import NativePlan, PythonPlan
from penstock.recipe.conversions import Inverse
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe
from tests.data import in_memory, noise_image, photo_files
from tests.device.passes import native_plan, on_host, plan_of
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SCALED = v2.ToDtype(torch.float32, scale=True)


def batches(made: NativePlan, *, workers: int = 2, size: int = 7) -> list[Any]:
    """Return all batches of a plan, each by Penstock's own pass."""
    indices = np.random.default_rng(5).permutation(made.root.size)
    asked = np.array_split(indices, -(-len(indices) // size))
    return list(on_host(made, asked, workers, seed=11, epoch=2))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def assert_same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert torch.equal(bits(ours), bits(theirs))


def assert_same_pixels(made: NativePlan, dataset: Any) -> None:
    """Assert that a plan's batches have the bits of the plan without raw=."""
    for ours, theirs in zip(batches(made), batches(native_plan(dataset, raw=False)), strict=True):
        assert_same_bits(ours[0], theirs[0])


def assert_split(dataset: Any, *, workers: int = 2) -> NativePlan:
    """Assert that pixels and their arithmetic are what the host makes by itself."""
    sent = native_plan(dataset, raw=True)
    assert sent.table is not None
    convert = Arithmetic(sent.table)
    plain = batches(native_plan(dataset, raw=False), workers=workers)
    assert plain
    for (pixels, labels), (elements, wanted_labels) in zip(batches(sent, workers=workers), plain, strict=True):
        made = convert(pixels)
        assert pixels.dtype == torch.uint8 and made.is_contiguous()
        assert_same_bits(made, elements)
        assert torch.equal(labels, wanted_labels)
    return sent


def cifar(*steps: Any, t: Any = v1, samples: int = 20) -> Any:
    return in_memory("CIFAR10", t.Compose(steps), samples)


def mnist(*steps: Any, t: Any = v1) -> Any:
    return in_memory("MNIST", t.Compose(steps), 20)


def table_of(*steps: Any, mode: str = "RGB") -> torch.Tensor:
    recipe = read(v2.Compose(steps), mode=mode, raw=True)
    assert isinstance(recipe, Recipe) and recipe.table is not None and recipe.dtype == torch.uint8
    return recipe.table


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = photo_files(tmp_path_factory.mktemp("photos"), 12, (30, 60), ("jpg", "grey", "png"))
    for number in range(4):
        noise_image(number, 5, 6).save(root / "class0" / f"small{number}.png")
    return root


BYTES = v2.Normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
COLOUR: dict[str, tuple[Any, list[Any]]] = {
    "ToTensor": (v1, [v1.ToTensor()]),
    "ImageNet": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET)]),
    "CIFAR": (v1, [v1.ToTensor(), v1.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))]),
    "one number for all": (v1, [v1.ToTensor(), v1.Normalize((0.5,), (0.5,))]),
    "odd numbers": (v1, [v1.ToTensor(), v1.Normalize((0, 0, 0), (1, -0.3, 7))]),
    "ConvertImageDtype": (v1, [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "v2": (v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET)]),
    "v2, pure": (v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET), v2.ToPureTensor()]),
    "statistics of bytes": (v2, [v2.ToImage(), v2.ToDtype(torch.float32), BYTES]),
    "bytes as floats": (v2, [v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "float16": (v2, [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "bfloat16": (v2, [v2.ToImage(), v2.ToDtype(torch.bfloat16)]),
    "f64": (v2, [v2.ToImage(), v2.ToDtype(torch.float64, scale=True), v2.Normalize(*IMAGENET)]),
    "normalised twice": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Normalize(*IMAGENET)]),
    # padded after the conversion with what a pixel becomes
    "black": (v1, [v1.ToTensor(), v1.Pad(3), v1.Normalize(*IMAGENET)]),
    "edge": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(3, padding_mode="edge")]),
    "colours": (v1, [v1.Pad(2, fill=(7, 8, 9)), v1.ToTensor(), v1.Pad(1, fill=1), v1.RandomCrop(30)]),
    "too small": (v1, [v2.ToImage(), SCALED, v2.CenterCrop(40), v2.Normalize(*IMAGENET)]),
}
MOVES = [v1.RandomCrop(32, padding=4, fill=(1, 2, 3)), v1.RandomHorizontalFlip(), v1.Pad(2, padding_mode="reflect")]


@pytest.mark.parametrize("name", COLOUR)
@pytest.mark.parametrize("workers", [0, 2])
def test_colour_in_memory(name: str, workers: int) -> None:
    t, conversion = COLOUR[name]
    assert_split(cifar(*conversion, t=t), workers=workers)
    assert_split(cifar(*MOVES, *conversion), workers=workers)


@pytest.mark.parametrize("t", [v1, v2])
def test_grey(t: Any) -> None:
    tail = [t.ToTensor()] if t is v1 else [v2.ToImage(), SCALED]
    for steps in ([], [t.Pad(2, fill=9)], [t.RandomCrop(28, padding=3)]):
        sent: Any = assert_split(mnist(*steps, *tail, t.Normalize((0.1307,), (0.3081,))))
        assert sent.table.shape == (1, 256)
    for channels in (1, 3):
        sent = assert_split(cifar(t.Pad(3, fill=77), t.Grayscale(channels), t.Pad(1, fill=5), *tail))
        assert (sent.table.shape, batches(sent)[0][0].shape[1:]) == ((channels, 256), (channels, 40, 40))
    assert_split(mnist(t.Grayscale(3), *tail, t.Normalize(*IMAGENET)))


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
@pytest.mark.parametrize("known", [True, False], ids=["one shape", "a shape that the samples tell"])
def test_image_files(photos: Path, kind: Any, known: bool) -> None:
    """JPEG by native code, PNG by Pillow, and small ones by their own transform: numpy repeats their reflection."""
    reflect = v1.Pad(12, padding_mode="reflect")
    size = v1.RandomResizedCrop(24) if known else v1.Resize((24, 25))
    steps = [size, v1.RandomHorizontalFlip()] if known else [reflect, size]
    sent = assert_split(kind(photos, transform=v1.Compose([*steps, v1.ToTensor(), v1.Normalize(*IMAGENET)])))
    assert sent.specs()[0] is not None
    small = v1.Compose([reflect, v1.CenterCrop(20), v1.ToTensor(), v1.Normalize(*IMAGENET)])
    assert_split(kind(photos, transform=small))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_the_datasets_own_transform_makes(workers: int) -> None:
    dataset = mnist(v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,)))
    sent = assert_split(dataset, workers=workers)
    leaf = sent.leaves[0]
    for made in (leaf.apply(3), leaf.rescue(3)):
        assert isinstance(made, torch.Tensor) and made.dtype == torch.uint8
        assert torch.equal(Inverse(leaf.table)(dataset[3][0]), made)  # type: ignore[arg-type]


def test_a_transform_changed_during_the_pass_is_an_error_of_its_sample() -> None:
    dataset = mnist(v1.Pad(30, padding_mode="reflect"), v1.ToTensor())
    sent = native_plan(dataset, raw=True)
    for other in (v1.Normalize((0.1307,), (0.3081,)), v1.ConvertImageDtype(torch.float64), v1.Lambda(lambda x: x[0])):
        dataset.transform = v1.Compose([v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), other])
        with pytest.raises(CorruptSample, match=r"sample '\d+' \(in memory\).*transform.* gave .*changed"):
            batches(sent, workers=0)


NOT_SENT = {
    "bytes as they are": [v1.PILToTensor()],
    "whole numbers": [v2.ToImage(), v2.ToDtype(torch.int64)],
    "uint16": [v2.ToImage(), v2.ToDtype(torch.uint16, scale=True)],
    "padded with what is no pixel's": [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(1)],
    "padded with another number": [v1.ToTensor(), v1.Pad(1, fill=0.3)],
    "in turn": [v1.ToTensor(), v1.CenterCrop(40), v1.Normalize(*IMAGENET), v1.CenterCrop(44)],
    "rounded together": [v2.ToImage(), v2.ToDtype(torch.float16), v2.Normalize((1e4,), (1,))],
    "all one number": [v2.ToImage(), SCALED, v2.Normalize((9e9,), (1,))],
}


@pytest.mark.parametrize("steps", NOT_SENT.values(), ids=NOT_SENT)
def test_what_gains_nothing_or_would_lose_stays_as_it_is(steps: list[Any]) -> None:
    recipe, plain = (read(v2.Compose(steps), mode="RGB", size=(32, 32), raw=raw) for raw in (True, False))
    assert isinstance(recipe, Recipe) and isinstance(plain, Recipe) and recipe.table is None
    assert (recipe.dtype, recipe.shape, recipe.steps) == (plain.dtype, plain.shape, plain.steps)
    dataset = cifar(*steps)
    made = native_plan(dataset, raw=True)
    assert made.table is None
    assert_same_pixels(made, dataset)


def test_a_plan_without_raw_has_no_table() -> None:
    assert native_plan(cifar(v1.ToTensor()), raw=False).table is None
    assert native_plan(TensorDataset(torch.zeros(4, 3)), raw=True).table is None
    assert isinstance(plan_of([1, 2]), PythonPlan)


def test_datasets_side_by_side() -> None:
    one = v1.Normalize(*IMAGENET)
    equal = [cifar(v1.ToTensor(), one), Subset(cifar(v1.RandomVerticalFlip(), v1.ToTensor(), one), range(3, 9))]
    sent = assert_split(ConcatDataset(equal))
    assert len(sent.leaves) == 2
    grey = mnist(v1.Grayscale(3), v1.Pad(2), v1.ToTensor())
    for other in (cifar(v1.ToTensor()), cifar(v1.ToTensor(), v1.Pad(0), one, one), grey):
        both: Any = ConcatDataset([cifar(v1.ToTensor(), one), other])
        made = native_plan(both, raw=True)
        assert [made.table, *(leaf.table for leaf in made.leaves)] == [None] * 3
        assert_same_pixels(made, both)
    # pixels both, but not both are to stay
    assert isinstance(plan_of(ConcatDataset([cifar(v1.ToTensor()), cifar(v1.PILToTensor())])), PythonPlan)


def noise(samples: int, channels: int, height: int = 9, width: int = 13) -> torch.Tensor:
    every = torch.arange(256, dtype=torch.uint8).repeat(samples * channels * height * width // 256 + 1)
    order = torch.randperm(samples * channels * height * width, generator=torch.Generator().manual_seed(1))
    return every[order].view(samples, channels, height, width)


def looked_up(table: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    channels = [table[c][pixels[:, c].long()] for c in range(len(table))]
    return torch.stack(channels, dim=1)


TABLES = {
    "float32": table_of(v2.ToImage(), SCALED, v2.Normalize(*IMAGENET)),
    "scaled": table_of(v2.ToImage(), SCALED),
    "grey": table_of(v2.ToImage(), SCALED, v2.Normalize((0.1307,), (0.3081,)), mode="L"),
    "float16": table_of(v2.ToImage(), v2.ToDtype(torch.float16, scale=True)),
    "bfloat16": table_of(v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=False)),
    "float64": table_of(v2.ToImage(), v2.ToDtype(torch.float64, scale=True)),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("slices", [False, True], ids=["whole", "in slices"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int16])
def test_every_dtype_and_layout(monkeypatch: pytest.MonkeyPatch, name: str, slices: bool, dtype: Any) -> None:
    if slices:
        monkeypatch.setattr(moving, "_ROOM", 1500)
    table = TABLES[name]
    convert = Arithmetic(table)
    for pixels in (noise(5, len(table)), noise(4, len(table), 1, 1), noise(2, len(table), 1, 40), noise(0, len(table))):
        wanted = looked_up(table, pixels).to(dtype or table.dtype)
        for channels_last in (False, True):
            made = convert(pixels, dtype, channels_last)
            assert_same_bits(made, wanted)
            layout = torch.channels_last if channels_last else torch.contiguous_format
            assert made.is_contiguous(memory_format=layout) and not made.requires_grad
        strided = pixels.to(memory_format=torch.channels_last)
        assert_same_bits(convert(strided, dtype), wanted)


def test_what_cannot_be_converted_is_refused() -> None:
    convert = Arithmetic(TABLES["float32"])
    for wrong in (torch.zeros(2, 3, 4, 4), noise(2, 1), noise(2, 3)[0]):
        with pytest.raises(ValueError, match="pixels are uint8 of shape"):
            convert(wrong)
    with pytest.raises(ValueError, match="a table has shape"):
        Arithmetic(torch.zeros(3, 255))


def test_many_threads_at_once() -> None:
    convert, pixels = Arithmetic(TABLES["float32"]), noise(3, 3)
    wanted, start = looked_up(TABLES["float32"], pixels), threading.Barrier(6)

    def work(thread: int) -> None:
        start.wait()
        assert_same_bits(convert(pixels), wanted)

    run_in_threads(6, work)


@pytest.mark.parametrize("name", TABLES)
def test_elements_become_pixels_again(name: str) -> None:
    table = TABLES[name]
    pixels = noise(1, len(table))[0]
    inverse = Inverse(table)
    elements = looked_up(table, pixels[None])[0]
    assert torch.equal(inverse(elements), pixels)
    assert torch.equal(inverse(elements.transpose(1, 2)), pixels.transpose(1, 2))
    elements[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="no pixel value"):
        inverse(elements)
    with pytest.raises(ValueError, match="channels"):
        inverse(torch.zeros(2, 4, 4, dtype=table.dtype))


def test_elements_that_two_pixels_share_cannot_become_pixels() -> None:
    table = TABLES["float32"].clone()
    table[1, 7] = table[1, 200]
    with pytest.raises(ValueError, match="two pixel values"):
        Inverse(table)
    with pytest.raises(ValueError, match="no pixel values are known"):
        Inverse(table.to(torch.int32))

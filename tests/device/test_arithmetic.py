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
from penstock.executors.buffers import Buffers
from penstock.executors.filler import PassInput, PassResources
from penstock.executors.iterator import Pass
from penstock.executors.native import NativeFiller
from penstock.order.batches import with_sample_numbers
from penstock.plan import NativePlan, PythonPlan, plan
from penstock.recipe.conversions import Inverse
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe
from tests.photos import in_memory, noise_image, photo_files
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SCALED = v2.ToDtype(torch.float32, scale=True)


def native_plan(dataset: Any, *, raw: bool) -> NativePlan:
    made = plan(dataset, batched=True, collate_fn=None, worker_init_fn=None, raw=raw)
    assert isinstance(made, NativePlan), made
    return made


def batches(made: NativePlan, *, workers: int = 2, size: int = 7) -> list[Any]:
    """Return all batches of a plan, each by Penstock's own pass."""
    indices = np.random.default_rng(5).permutation(made.root.size)
    asked = with_sample_numbers(iter(np.array_split(indices, -(-len(indices) // size))), 0, batched=True)
    pass_input = PassInput(asked, None, seed=11, epoch=2)
    resources = PassResources(workers, None, Buffers(pinned=False, keep=8))
    return list(Pass(NativeFiller(made, resources), pass_input))


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
    raw = batches(sent, workers=workers)
    assert len(plain) == len(raw) > 0
    for (pixels, labels), (elements, wanted_labels) in zip(raw, plain, strict=True):
        assert pixels.dtype == torch.uint8
        made = convert(pixels)
        assert made.is_contiguous()
        assert_same_bits(made, elements)
        assert torch.equal(labels, wanted_labels)
    return sent


def cifar(*steps: Any, t: Any = v1, samples: int = 20) -> Any:
    return in_memory("CIFAR10", t.Compose(steps), samples)


def mnist(*steps: Any, t: Any = v1) -> Any:
    return in_memory("MNIST", t.Compose(steps), 20)


def table_of(*steps: Any, mode: str = "RGB") -> torch.Tensor:
    recipe = read(v2.Compose(steps), mode=mode, raw=True)
    assert isinstance(recipe, Recipe)
    assert recipe.table is not None
    assert recipe.dtype == torch.uint8
    return recipe.table


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = photo_files(tmp_path_factory.mktemp("photos"), 12, (30, 60), ("jpg", "grey", "png"))
    for number in range(4):
        noise_image(number, 5, 6).save(root / "class0" / f"small{number}.png")
    return root


# --- recipes ----------------------------------------------------------------------------------------------------------

COLOUR = [
    pytest.param(v1, [v1.ToTensor()], id="ToTensor"),
    pytest.param(v1, [v1.ToTensor(), v1.Normalize(*IMAGENET)], id="ImageNet"),
    pytest.param(v1, [v1.ToTensor(), v1.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))], id="C"),
    pytest.param(v1, [v1.ToTensor(), v1.Normalize((0.5,), (0.5,))], id="one number for all"),
    pytest.param(v1, [v1.ToTensor(), v1.Normalize((0, 0, 0), (1, -0.3, 7))], id="odd numbers"),
    pytest.param(v1, [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)], id="ConvertImageDtype"),
    pytest.param(v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET)], id="v2"),
    pytest.param(v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET), v2.ToPureTensor()], id="v2, pure"),
    pytest.param(
        v2,
        [v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))],
        id="statistics of bytes",
    ),
    pytest.param(v2, [v2.PILToTensor(), v2.ToDtype(torch.float32)], id="bytes as floats"),
    pytest.param(v2, [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)], id="float16"),
    pytest.param(v2, [v2.ToImage(), v2.ToDtype(torch.bfloat16)], id="bfloat16"),
    pytest.param(v2, [v2.ToImage(), v2.ToDtype(torch.float64, scale=True), v2.Normalize(*IMAGENET)], id="f64"),
    pytest.param(v1, [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Normalize(*IMAGENET)], id="normalised twice"),
]
MOVES: list[Any] = [
    v1.RandomCrop(32, padding=4, fill=(1, 2, 3)),
    v1.RandomHorizontalFlip(),
    v1.Pad(2, padding_mode="reflect"),
]


@pytest.mark.parametrize(("t", "conversion"), COLOUR)
@pytest.mark.parametrize("workers", [0, 2])
def test_colour_in_memory(t: Any, conversion: list[Any], workers: int) -> None:
    assert_split(cifar(*conversion, t=t), workers=workers)
    assert_split(cifar(*MOVES, *conversion), workers=workers)


@pytest.mark.parametrize("t", [v1, v2])
def test_grey(t: Any) -> None:
    tail = [t.ToTensor()] if t is v1 else [v2.ToImage(), SCALED]
    for steps in ([], [t.Pad(2, fill=9)], [t.RandomCrop(28, padding=3)]):
        sent = assert_split(mnist(*steps, *tail, t.Normalize((0.1307,), (0.3081,))))
        assert sent.table is not None
        assert sent.table.shape == (1, 256)
    for channels in (1, 3):
        crops = [t.Pad(3, fill=77), t.Grayscale(channels), t.Pad(1, fill=5)]
        sent = assert_split(cifar(*crops, *tail))
        assert sent.table is not None
        assert sent.table.shape == (channels, 256)
        assert batches(sent)[0][0].shape[1:] == (channels, 40, 40)
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
        assert isinstance(made, torch.Tensor)
        assert made.dtype == torch.uint8
        assert torch.equal(Inverse(leaf.table)(dataset[3][0]), made)  # type: ignore[arg-type]


def test_a_transform_changed_during_the_pass_is_an_error_of_its_sample() -> None:
    dataset = mnist(v1.Pad(30, padding_mode="reflect"), v1.ToTensor())
    sent = native_plan(dataset, raw=True)
    for other in (v1.Normalize((0.1307,), (0.3081,)), v1.ConvertImageDtype(torch.float64), v1.Lambda(lambda x: x[0])):
        dataset.transform = v1.Compose([v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), other])
        with pytest.raises(CorruptSample, match=r"sample '\d+' \(in memory\).*transform.* gave .*changed"):
            batches(sent, workers=0)


# --- where pixels are not sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([v1.PILToTensor()], id="bytes as they are"),
        pytest.param([v2.ToImage(), v2.ToDtype(torch.int64)], id="whole numbers"),
        pytest.param([v2.ToImage(), v2.ToDtype(torch.uint16, scale=True)], id="uint16"),
        pytest.param([v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(1)], id="padded with what is no pixel's"),
        pytest.param([v1.ToTensor(), v1.Pad(1, fill=0.3)], id="padded with another number"),
        pytest.param([v1.ToTensor(), v1.CenterCrop(40), v1.Normalize(*IMAGENET), v1.CenterCrop(44)], id="in turn"),
        pytest.param([v2.ToImage(), v2.ToDtype(torch.float16), v2.Normalize((1e4,), (1,))], id="rounded together"),
        pytest.param([v2.ToImage(), SCALED, v2.Normalize((9e9,), (1,))], id="all one number"),
    ],
)
def test_what_gains_nothing_or_would_lose_stays_as_it_is(steps: list[Any]) -> None:
    recipe, plain = (read(v2.Compose(steps), mode="RGB", size=(32, 32), raw=raw) for raw in (True, False))
    assert isinstance(recipe, Recipe)
    assert isinstance(plain, Recipe)
    assert recipe.table is None
    assert (recipe.dtype, recipe.shape, recipe.steps) == (plain.dtype, plain.shape, plain.steps)
    dataset = cifar(*steps)
    made = native_plan(dataset, raw=True)
    assert made.table is None
    assert_same_pixels(made, dataset)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([v1.ToTensor(), v1.Pad(3), v1.Normalize(*IMAGENET)], id="black"),
        pytest.param([v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(3, padding_mode="edge")], id="edge"),
        pytest.param([v1.Pad(2, fill=(7, 8, 9)), v1.ToTensor(), v1.Pad(1, fill=1), v1.RandomCrop(30)], id="colours"),
        pytest.param([v2.ToImage(), SCALED, v2.CenterCrop(40), v2.Normalize(*IMAGENET)], id="too small"),
    ],
)
def test_padding_after_the_conversion_with_what_a_pixel_becomes(steps: list[Any]) -> None:
    assert_split(cifar(*steps))


def test_a_plan_without_raw_has_no_table() -> None:
    assert native_plan(cifar(v1.ToTensor()), raw=False).table is None
    assert native_plan(TensorDataset(torch.zeros(4, 3)), raw=True).table is None
    assert isinstance(plan([1, 2], batched=True, collate_fn=None, worker_init_fn=None, raw=True), PythonPlan)


def test_datasets_side_by_side() -> None:
    one = v1.Normalize(*IMAGENET)
    equal = [cifar(v1.ToTensor(), one), Subset(cifar(v1.RandomVerticalFlip(), v1.ToTensor(), one), range(3, 9))]
    sent = assert_split(ConcatDataset(equal))
    assert len(sent.leaves) == 2
    for other in (
        cifar(v1.ToTensor()),
        cifar(v1.ToTensor(), v1.Pad(0), one, one),
        mnist(v1.Grayscale(3), v1.Pad(2), v1.ToTensor()),
    ):
        both: Any = ConcatDataset([cifar(v1.ToTensor(), one), other])
        made = native_plan(both, raw=True)
        assert made.table is None
        assert all(leaf.table is None for leaf in made.leaves)
        assert_same_pixels(made, both)
    bytes_too: Any = ConcatDataset(
        [cifar(v1.ToTensor()), cifar(v1.PILToTensor())]
    )  # pixels both, but not both are to stay
    assert isinstance(plan(bytes_too, batched=True, collate_fn=None, worker_init_fn=None, raw=True), PythonPlan)


# --- the arithmetic ---------------------------------------------------------------------------------------------------


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
def test_every_dtype_and_layout(
    monkeypatch: pytest.MonkeyPatch, name: str, slices: bool, dtype: torch.dtype | None
) -> None:
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
            assert made.is_contiguous(memory_format=layout)
            assert not made.requires_grad
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
    convert = Arithmetic(TABLES["float32"])
    pixels, made = noise(3, 3), []
    start = threading.Barrier(6)

    def work(thread: int) -> None:
        start.wait()
        made.append(convert(pixels))

    run_in_threads(6, work)
    assert len(made) == 6
    for one in made:
        assert_same_bits(one, looked_up(TABLES["float32"], pixels))


# --- and back ---------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="stands for no pixels"):
        Inverse(table.to(torch.int32))

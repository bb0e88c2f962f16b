"""Pixels sent in place of elements: with the arithmetic of the device they are what the host would have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from penstock.errors import CorruptSample
from tests.accelerator import PromptStream, replaced_by_late_streams
from tests.data import in_memory, noise_image, photo_files
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SCALED = v2.ToDtype(torch.float32, scale=True)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return what is copied to cuda:0, which is the CPU."""
    seen: Any = []
    replaced_by_late_streams(monkeypatch)
    monkeypatch.setattr(PromptStream, "copy", lambda self, tensor: seen.append(tensor) or tensor.clone())
    monkeypatch.setattr("penstock.device.target.copy_stream_to", lambda device: PromptStream())
    return seen


def loader_of(dataset: Any, device: Any = "cuda", workers: int = 2) -> Any:
    return penstock.DataLoader(dataset, 7, shuffle=True, seed=11, num_workers=workers, device=device)


def assert_same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    ours, theirs = (one.reshape(-1).contiguous().view(torch.uint8) for one in (ours, theirs))
    assert torch.equal(ours, theirs)


def assert_batches(dataset: Any, feed: Any = "cuda", *, pixels: bool = True, workers: int = 2) -> list[Any]:
    """Assert that batches have the bits of the host's, and that pixels were sent in place of elements (or not)."""
    there, host = loader_of(dataset, feed, workers), loader_of(dataset, None, workers)
    assert ("device   convert" in there.explain()) is pixels, there.explain()
    found = list(there)
    for (images, labels), (elements, wanted) in zip(found, host, strict=True):
        assert_same_bits(images, elements)
        assert images.is_contiguous() and torch.equal(labels, wanted)
    assert found
    return found


def assert_split(dataset: Any, sent: list[torch.Tensor], *, workers: int = 2) -> torch.Size:
    """Assert that pixels and their arithmetic are what the host makes; return the shape of the first pixels sent."""
    sent.clear()
    assert_batches(dataset, workers=workers)
    images = [one for one in sent if one.ndim > 1]
    assert images and {one.dtype for one in images} == {torch.uint8}
    return images[0].shape


def cifar(*steps: Any, t: Any = v1, samples: int = 20) -> Any:
    return in_memory("CIFAR10", t.Compose(steps), samples)


def mnist(*steps: Any, t: Any = v1) -> Any:
    return in_memory("MNIST", t.Compose(steps), 20)


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
def test_colour_in_memory(name: str, workers: int, sent: Any) -> None:
    t, conversion = COLOUR[name]
    assert_split(cifar(*conversion, t=t), sent, workers=workers)
    assert_split(cifar(*MOVES, *conversion), sent, workers=workers)


@pytest.mark.parametrize("t", [v1, v2])
def test_grey(t: Any, sent: Any) -> None:
    tail = [t.ToTensor()] if t is v1 else [v2.ToImage(), SCALED]
    for steps in ([], [t.Pad(2, fill=9)], [t.RandomCrop(28, padding=3)]):
        assert assert_split(mnist(*steps, *tail, t.Normalize((0.1307,), (0.3081,))), sent)[1] == 1
    for channels in (1, 3):
        dataset = cifar(t.Pad(3, fill=77), t.Grayscale(channels), t.Pad(1, fill=5), *tail)
        assert assert_split(dataset, sent)[1:] == (channels, 40, 40)
    assert_split(mnist(t.Grayscale(3), *tail, t.Normalize(*IMAGENET)), sent)


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
@pytest.mark.parametrize("known", [True, False], ids=["one shape", "a shape that the samples tell"])
def test_image_files(photos: Path, kind: Any, known: bool, sent: Any) -> None:
    """JPEG by native code, PNG by Pillow, and small ones by their own transform: numpy repeats their reflection."""
    reflect = v1.Pad(12, padding_mode="reflect")
    size = v1.RandomResizedCrop(24) if known else v1.Resize((24, 25))
    steps = [size, v1.RandomHorizontalFlip()] if known else [reflect, size]
    assert_split(kind(photos, transform=v1.Compose([*steps, v1.ToTensor(), v1.Normalize(*IMAGENET)])), sent)
    small = v1.Compose([reflect, v1.CenterCrop(20), v1.ToTensor(), v1.Normalize(*IMAGENET)])
    assert_split(kind(photos, transform=small), sent)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_the_datasets_own_transform_makes(workers: int, sent: Any) -> None:
    """Its elements become pixels again, to be sent with the others."""
    steps = v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))
    assert_split(mnist(*steps), sent, workers=workers)


def test_a_transform_changed_during_the_pass_is_an_error_of_its_sample() -> None:
    for other in (v1.Normalize((0.1307,), (0.3081,)), v1.ConvertImageDtype(torch.float64), v1.Lambda(lambda x: x[0])):
        dataset = mnist(v1.Pad(30, padding_mode="reflect"), v1.ToTensor())
        batches = iter(loader_of(dataset, penstock.Feed("cuda", depth=1)))
        dataset.transform = v1.Compose([v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), other])
        with pytest.raises(CorruptSample, match=r"sample '\d+' \(in memory\).*transform.* gave .*changed"):
            list(batches)


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
    assert_batches(cifar(*steps), pixels=False)


def test_rows_have_nothing_to_convert() -> None:
    assert_batches(TensorDataset(torch.rand(20, 3), torch.arange(20)), pixels=False)


def test_datasets_side_by_side(sent: Any) -> None:
    one = v1.Normalize(*IMAGENET)
    equal = [cifar(v1.ToTensor(), one), Subset(cifar(v1.RandomVerticalFlip(), v1.ToTensor(), one), range(3, 9))]
    assert_split(ConcatDataset(equal), sent)
    grey = mnist(v1.Grayscale(3), v1.Pad(2), v1.ToTensor())
    for other in (cifar(v1.ToTensor()), cifar(v1.ToTensor(), v1.Pad(0), one, one), grey):
        assert_batches(ConcatDataset([cifar(v1.ToTensor(), one), other]), pixels=False)


TABLES: dict[str, Any] = {
    "float32": (cifar, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET)]),
    "scaled": (cifar, [v2.ToImage(), SCALED]),
    "grey": (mnist, [v2.ToImage(), SCALED, v2.Normalize((0.1307,), (0.3081,))]),
    "float16": (cifar, [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "bfloat16": (cifar, [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=False)]),
    "float64": (cifar, [v2.ToImage(), v2.ToDtype(torch.float64, scale=True)]),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("slices", [False, True], ids=["whole", "in slices"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_and_layout(monkeypatch: pytest.MonkeyPatch, name: str, slices: bool, dtype: Any) -> None:
    if slices:
        monkeypatch.setattr("penstock.device.arithmetic._ROOM", 1500)
    make, steps = TABLES[name]
    dataset = make(*steps, t=v2)
    for channels_last in (False, True):
        feed = penstock.Feed("cuda", dtype=dtype, channels_last=channels_last)
        for (made, _), (wanted, _) in zip(loader_of(dataset, feed), loader_of(dataset, None), strict=True):
            assert_same_bits(made, wanted.to(dtype or wanted.dtype))
            layout = torch.channels_last if channels_last else torch.contiguous_format
            assert made.is_contiguous(memory_format=layout) and not made.requires_grad


def test_many_threads_at_once() -> None:
    dataset = cifar(v1.ToTensor(), v1.Normalize(*IMAGENET))
    run_in_threads(4, lambda _: assert_batches(dataset))

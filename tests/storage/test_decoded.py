"""cache_decoded=True: the pixels that a recipe's first steps make come from the tiers, and no element changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
import torchvision
from PIL import Image, ImageFile
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
import penstock._native as _native
from penstock import DataLoader, ImageFolder, TensorFolder
from tests.accelerator import replaced_by_the_cpu
from tests.data import noise_image, tensor_files
from tests.same import assert_passes, assert_same
from tests.storage.test_tiers import TIERS, counts_of, spoil, torchs

pytestmark = pytest.mark.native

NORMALIZE = v1.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
V2_NORMALIZE = v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
SECOND = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), V2_NORMALIZE])
BICUBIC = v1.InterpolationMode.BICUBIC
STILL: dict[str, Any] = {
    "v1": [v1.Resize(24), v1.CenterCrop(20), v1.ToTensor(), NORMALIZE],
    "v1 fixed": [v1.Resize((21, 34)), v1.PILToTensor()],
    "v1 larger": [v1.Resize(24), v1.CenterCrop((60, 20)), v1.ToTensor(), NORMALIZE],
    "v1 bicubic, pad": [v1.Resize((16, 18), BICUBIC), v1.Pad(3, fill=(9, 8, 7)), v1.ToTensor(), NORMALIZE],
    "v1 padded between": [
        v1.Pad((2, 5), (9, 8, 7)), v1.Resize((22, 22)), v1.Pad(2, 0, "reflect"), v1.CenterCrop(20), v1.ToTensor(),
    ],
    "v1 grey": [v1.Resize((20, 20)), v1.Grayscale(1), v1.ToTensor()],
    "v1 grey of three": [v1.Grayscale(3), v1.CenterCrop(24), v1.ToTensor(), NORMALIZE],
    "v1 converted between": [v1.Resize((30, 30)), v1.ToTensor(), v1.CenterCrop(40), NORMALIZE],
    "v1 padded last": [v1.Resize((30, 30)), v1.ToTensor(), NORMALIZE, v1.Pad(4, fill=0.25)],
    "v1 flips without chance": [
        v1.Resize(26), v1.CenterCrop(22), v1.RandomHorizontalFlip(0.0), v1.RandomVerticalFlip(1.0), v1.ToTensor(),
    ],
    "v2": [v2.Resize(24), v2.CenterCrop(20), SECOND],
    "v2 on tensors": [v2.ToImage(), v2.Resize((20, 26), antialias=True), v2.CenterCrop(30), SECOND],
    "v2 of bytes": [v2.Resize((20, 26)), v2.PILToTensor()],
}  # fmt: skip
RANDOM: dict[str, Any] = {
    "v1": [v1.Resize(26), v1.CenterCrop(22), v1.RandomHorizontalFlip(), v1.ToTensor(), NORMALIZE],
    "v1 crop": [v1.Resize(26), v1.RandomCrop(20, padding=3), v1.ToTensor()],
    "v1 resized crop": [v1.Resize((40, 44)), v1.RandomResizedCrop(20), v1.ToTensor(), NORMALIZE],
    "v1 grey behind": [
        v1.CenterCrop(30), v1.RandomVerticalFlip(), v1.Grayscale(3), v1.RandomCrop(20), v1.ToTensor(),
    ],
    "v2": [v2.Resize(26), v2.RandomCrop(20), v2.RandomHorizontalFlip(), SECOND],
    "v2 on tensors": [v2.ToImage(), v2.Resize((40, 44)), v2.RandomResizedCrop(20), v2.RandomVerticalFlip(), SECOND],
}  # fmt: skip


def compose(steps: list[Any]) -> Any:
    return (v2 if type(steps[0]).__module__.startswith("torchvision.transforms.v2") else v1).Compose(steps)


#: What becomes of each ninth image, and how it is saved.
FORMS: dict[int, tuple[str, dict[str, Any]]] = {
    1: ("L", {}), 2: ("CMYK", {}), 3: ("P", {}), 4: ("RGBA", {}), 6: ("RGB", {"progressive": True}), 7: ("1", {}),
}  # fmt: skip
FORMS[5] = "RGB", {"exif": Image.Exif()}
FORMS[5][1]["exif"][0x0112] = 6  # the orientation, which torchvision does not look at


def pictures(root: Path) -> Path:
    """Write images of the modes and formats that programs meet: JPEGs that are decoded natively, and others."""
    for number in range(18):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        mode, options = FORMS.get(number % 9, ("RGB", {}))
        image = noise_image(number, 40 + number, 50 + number % 5).convert(mode)
        if mode == "RGBA":
            image.putalpha(90)
        image.save(folder / f"{number:02}.{'png' if mode in ('P', 'RGBA', '1') else 'jpg'}", **options)
    return root


FOLDERS: dict[str, Callable[..., Any]] = {"ours": ImageFolder, "torchvision": torchvision.datasets.ImageFolder}


def made(dataset: Any, **options: Any) -> Any:
    """Return a loader that keeps pixels."""
    return DataLoader(dataset, **{"batch_size": 4, "cache": "8MiB", "cache_decoded": True, **options})


def checked(dataset: Any, passes: int = 2, **options: Any) -> Any:
    """Return a loader that keeps pixels, whose first passes gave torch's batches."""
    wanted = torchs(dataset, options.get("batch_size", 4))
    loader = made(dataset, **options)
    assert_passes(loader, wanted, passes)
    return loader


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return pictures(tmp_path / "data")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tiers", ["memory", "folder"])
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", STILL)
def test_elements_are_torchs(name: str, folder: str, tiers: str, workers: int, photos: Path, tmp_path: Path) -> None:
    dataset, size = FOLDERS[folder](photos, compose(STILL[name])), 1 if name == "v1 larger" else 4
    wanted = torchs(dataset, size)
    loader = made(dataset, batch_size=size, num_workers=workers, cache=TIERS[tiers](tmp_path))
    assert "files unchanged" not in loader.explain(), loader.explain()
    assert_same(list(loader), wanted)
    spoil(photos)
    assert_passes(loader, wanted)
    counts = counts_of(loader)
    assert (counts.samples, counts.decoded, counts.dropped, counts.error) == (18, 18, 0, None)
    assert counts.hits >= 36 and "pixels as" in loader.explain()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_those_without_a_cache(name: str, folder: str, workers: int, photos: Path) -> None:
    dataset = FOLDERS[folder](photos, compose(RANDOM[name]))
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": workers}
    plain, kept = DataLoader(dataset, 4, **options), made(dataset, **options)
    epochs = [list(plain) for _ in range(3)]
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    assert_same(list(kept), epochs[0])
    spoil(photos)
    assert_same([list(kept) for _ in range(2)], epochs[1:])
    assert counts_of(kept).decoded == 18


@pytest.mark.parametrize("method", [None, "thread", "auto", "process"])
@pytest.mark.parametrize("workers", [0, 2])
def test_worker_methods(method: Any, workers: int, photos: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(photos, compose(STILL["v1"]))
    loader = checked(dataset, num_workers=workers, worker_method=method, cache=tmp_path / "cache")
    if method == "process":
        assert "nothing is kept: Python reads the files" in loader.explain()
    else:
        assert counts_of(loader).decoded == 18


def test_pixels_for_a_device(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_the_cpu(monkeypatch)
    counts = counts_of(checked(ImageFolder(photos, compose(STILL["v1"])), device="cuda"))
    assert counts.decoded == 18 and counts.hits >= 18


def test_what_only_torchvision_does(photos: Path) -> None:
    """Small images, of which numpy repeats the reflection, are done by their own transform each time."""
    steps = [v1.Pad(60, padding_mode="reflect"), v1.CenterCrop(90), v1.ToTensor()]
    assert counts_of(checked(ImageFolder(photos, compose(steps)))).samples == 0


@pytest.mark.parametrize("name", ["subset", "concatenated"])
def test_datasets_of_datasets(name: str, tmp_path: Path) -> None:
    parts = [ImageFolder(pictures(tmp_path / "data" / part), compose(STILL["v1"])) for part in "ab"]
    dataset: Any = Subset(parts[0], [5, 3, 3, 17]) if name == "subset" else ConcatDataset(parts)
    wanted = torchs(dataset)
    loader = checked(dataset, 1, cache=tmp_path / "cache")
    spoil(tmp_path / "data")
    assert_same(list(loader), wanted)
    assert counts_of(loader).decoded == {"subset": 3, "concatenated": 36}[name]
    assert loader.explain().count("pixels as CenterCrop leaves them") == 1


resize, crop, pad, flip = v1.Resize(30), v1.CenterCrop((20, 24)), v1.Pad((1, 2)), v1.RandomHorizontalFlip()


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([resize, crop], "CenterCrop"),
        ([resize, flip, crop], "Resize"),
        ([v1.Resize(30, max_size=36)], "Resize"),
        ([crop, pad, flip], "CenterCrop"),  # padding costs nothing to add
        ([crop, pad, v1.Resize((5, 6)), flip], "Resize"),
        ([pad, crop, pad, v1.Grayscale()], "Grayscale"),
        ([crop, v1.ToTensor(), v1.Pad(2)], "CenterCrop"),  # pixels are kept, not what they become
    ],
)
def test_which_pixels_are_kept(steps: list[Any], kept: str, photos: Path) -> None:
    last = [] if any(isinstance(step, v1.ToTensor) for step in steps) else [v1.ToTensor()]
    loader = made(ImageFolder(photos, compose([*steps, *last])))
    assert f"pixels as {kept} leaves them" in loader.explain()


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([v1.RandomResizedCrop(20)], "no step before the first draw"),
        ([v1.RandomHorizontalFlip(), v1.Resize((20, 20))], "no step before the first draw"),
        ([v1.Pad(30), v1.RandomCrop(40)], "no step before the first draw"),
        ([v1.Grayscale(3)], "no step before the first draw or conversion sets the size of the images"),
        ([v1.ToTensor(), v1.CenterCrop(20)], "no step before the first draw or conversion"),
    ],
)
def test_where_files_are_kept_as_they_are(steps: list[Any], why: str, photos: Path, tmp_path: Path) -> None:
    last = [] if isinstance(steps[0], v1.ToTensor) else [v1.ToTensor()]
    dataset = ImageFolder(photos, compose([*steps, *last]))
    loader = made(dataset, batch_size=1, seed=1, cache=tmp_path / "cache")
    wanted = list(DataLoader(dataset, seed=1))
    assert f"files unchanged: {why}" in loader.explain()
    assert not (tmp_path / "cache").exists(), "explain() makes nothing"
    assert_same(list(loader), wanted)
    spoil(photos)
    assert len(list(loader)) == 18
    assert (counts_of(loader).samples, counts_of(loader).decoded) == (18, 0)


@pytest.mark.parametrize("decoded", [False, True])
def test_other_samples_than_images_for_the_native_core(decoded: bool, tmp_path: Path) -> None:
    loader = checked(TensorFolder(tensor_files(tmp_path / "tensors", 6)), 1, cache="1MiB", cache_decoded=decoded)
    assert ("files unchanged: the samples are not images" in loader.explain()) is decoded
    assert (counts_of(loader).samples, counts_of(loader).decoded) == (6, 0)
    others: Any = {"the dataset has no files": penstock.Arrays(np.zeros((4, 2))), "Python reads the files": range(9)}
    for why, dataset in others.items():
        loader = made(dataset, cache="1MiB", cache_decoded=decoded)
        assert list(loader)
        assert f"nothing is kept: {why}" in loader.explain() and "files unchanged" not in loader.explain()


def test_pixels_that_do_not_fit(photos: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(photos, compose([v1.Resize((200, 200)), v1.ToTensor()]))
    for cache in ("1MiB", (tmp_path / "cache", "1MiB")):
        loader = checked(dataset, cache=cache)
        assert (counts_of(loader).samples, counts_of(loader).decoded) == (8, 8), "the others come from their files"
    both = checked(dataset, cache=["1MiB", (tmp_path / "both", "2MiB")])
    assert [tier.decoded for tier in both.stats().cache.values()] == [8, 10], "8 images fit into the first MiB"
    assert "pixels as Resize leaves them" in both.explain()
    small = ImageFolder(photos, compose(STILL["v1"]))  # pixels take less than files
    counts = counts_of(checked(small, 3, num_workers=2, cache=5 * (16 + 20 * 20 * 3) + 7))
    assert (counts.samples, counts.decoded, counts.dropped) == (5, 5, 0)


def test_each_form_has_a_part_of_its_own(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, resize, crop = tmp_path / "cache", v1.Resize(26), v1.CenterCrop(20)

    def parts(*steps: Any, decoded: bool = True) -> int:
        dataset = ImageFolder(photos, compose([*steps, v1.ToTensor()]))
        checked(dataset, batch_size=3, cache=folder, cache_decoded=decoded)
        return len(list(folder.glob("*.index")))

    assert parts(resize, crop) == 1
    assert parts(resize, crop, v1.RandomHorizontalFlip(0.0)) == 1, "what follows the pixels is not theirs"
    assert parts(resize, crop, v1.Pad(2, fill=7)) == 1
    assert parts(resize, crop, decoded=False) == 2
    others: list[list[Any]] = [
        [v1.Resize(26, interpolation=BICUBIC), crop], [v1.Resize(26, max_size=30), crop], [v1.Resize(27), crop],
        [v1.Pad(2), resize, crop], [v1.Pad(2, fill=7), resize, crop], [v1.Pad(2, padding_mode="edge"), resize, crop],
        [resize, crop, v1.Grayscale()],
    ]  # fmt: skip
    assert [parts(*steps) for steps in others] == list(range(3, 10))
    assert parts(v2.Resize(26), v2.CenterCrop(20)) == 9, "Pillow does the same for both generations"
    settings = (Image, "MAX_IMAGE_PIXELS", 10**6), (ImageFile, "LOAD_TRUNCATED_IMAGES", True), (PIL, "__version__", "0")
    for number, setting in enumerate(settings, 10):
        monkeypatch.setattr(*setting)
        assert parts(resize, crop) == number


@pytest.mark.parametrize("decoded", [True, False])
def test_a_changed_dataset_has_a_cache_of_its_own(decoded: bool, photos: Path, tmp_path: Path) -> None:
    path, folder = photos / "class0" / "00.jpg", tmp_path / "cache"
    for change in (
        lambda: None,
        lambda: noise_image(99, 70, 70).save(path),
        lambda: os.utime(path, (1, 1)),  # of the same name and size
        lambda: path.rename(photos / "class0" / "zz.jpg"),
        lambda: shutil.copytree(photos, tmp_path / "other"),
    ):
        change()
        root = tmp_path / "other" if (tmp_path / "other").exists() else photos
        checked(ImageFolder(root, compose(STILL["v1"])), cache=folder, cache_decoded=decoded)
    assert len(list(folder.glob("*.index"))) == 5


def test_a_transform_that_changes_between_epochs(photos: Path) -> None:
    dataset = ImageFolder(photos)
    loader = made(dataset, num_workers=2)
    for name in ("v1", "v1 fixed", "v2 on tensors", "v1"):
        dataset.transform = compose(STILL[name])
        assert_passes(loader, torchs(dataset))


@pytest.mark.parametrize("decoded", [True, False])
def test_files_that_a_program_exchanges_in_the_list(decoded: bool, tmp_path: Path) -> None:
    (tmp_path / "data" / "class").mkdir(parents=True)
    for number in range(130):
        noise_image(number, 20, 22).save(tmp_path / "data" / "class" / f"{number:03}.{'png' if number % 2 else 'jpg'}")
    dataset = torchvision.datasets.ImageFolder(tmp_path / "data", compose(STILL["v1 grey"]))
    loader = made(dataset, batch_size=7, cache=tmp_path / "cache", cache_decoded=decoded)
    list(loader)
    samples = dataset.samples
    samples[1], samples[2] = samples[2], samples[1]  # the part of the folder is found by 64 files: neither is one
    assert_passes(loader, torchs(dataset, 7))
    assert len(list((tmp_path / "cache").glob("*.index"))) == 1
    assert counts_of(loader).dropped == 2, "another file at the same place is no sample of the cache"


GOOD = np.arange(60, dtype=np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"x", b"PIX1", b"PIX0" + b"PIX1", (4, 5, 1), (5, 5, 3), (0, 5, 3), (5, 4, 2), (2**32 - 1, 5, 3),
        (2**31, 2**31, 4), (20, 1, 3),
    ],
)  # fmt: skip
def test_entries_that_are_no_pixels(content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What carries the right checksum may still be of another kind, or have another size than it says."""
    entry = content if isinstance(content, bytes) else numbers(*content) + GOOD.tobytes()
    path = tmp_path / "data" / "class" / "a.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(entry)
    cache = _native.SampleCache([_native.CacheTier.in_memory(1, 1000)])
    monkeypatch.setattr("penstock.storage.tiers.Caches.of", lambda *_: [cache])
    dataset = ImageFolder(tmp_path / "data", compose([v1.Resize((4, 5)), v1.PILToTensor()]))
    with pytest.raises(penstock.SampleError):
        list(DataLoader(dataset, cache="1KiB"))
    assert cache.find(0, dataset.paths.name(0)) == entry
    noise_image(1, 40, 50).save(path)
    ((images, _),) = list(made(dataset, batch_size=1, cache="1KiB"))
    # An image that another recipe would have made is one.
    other = torch.from_numpy(GOOD).reshape(20, 1, 3).permute(2, 0, 1)
    assert torch.equal(images, (other if content == (20, 1, 3) else dataset[0][0])[None])


def numbers(height: int, width: int, channels: int) -> bytes:
    return b"PIX1" + b"".join(value.to_bytes(4, "little") for value in (height, width, channels))


def test_images_of_more_pixels_than_pillow_allows(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_image(1, 90, 90).save(photos / "class0" / "large.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    loader = made(ImageFolder(photos, compose(STILL["v1"])))
    for _ in range(2):
        with pytest.warns(Image.DecompressionBombWarning):
            list(loader)
    assert counts_of(loader).decoded == 18
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    with pytest.raises(penstock.SampleError, match="decompression bomb"):
        list(loader)


def test_truncated_images_where_pillow_allows_them(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photos / "class0" / "00.jpg"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    loader = checked(ImageFolder(photos, compose(STILL["v1"])))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(penstock.SampleError, match="truncated"):
        list(loader)

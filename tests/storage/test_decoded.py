"""cache_decoded=True: the pixels that a recipe's first steps make come from the tiers, and no element changes."""

from __future__ import annotations

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
from penstock.sources.cached import KeptPixels, kept_pixels
from tests.accelerator import replaced_by_the_cpu
from tests.native_testing import SlowTable
from tests.packing.packed import start_readers
from tests.photos import noise_image
from tests.python_processes import Program
from tests.same import assert_passes, assert_same
from tests.sample_datasets import tensor_files
from tests.storage.test_tiers import TIERS, spoil

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


def pictures(root: Path) -> Path:
    """Write images of the modes and formats that programs meet: JPEGs that are decoded natively, and others."""
    for number in range(18):
        image = noise_image(number, 40 + number, 50 + number % 5)
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = number % 9
        options: dict[str, Any] = {}
        if kind == 1:
            image = image.convert("L")
        elif kind == 2:
            image = image.convert("CMYK")
        elif kind == 3:
            image = image.convert("P")
        elif kind == 4:
            image = image.convert("RGBA")
            image.putalpha(90)
        elif kind == 5:
            exif = Image.Exif()
            exif[0x0112] = 6  # the orientation, which torchvision does not look at
            options["exif"] = exif
        elif kind == 6:
            options["progressive"] = True
        elif kind == 7:
            image = image.convert("1")
        image.save(folder / f"{number:02}.{'png' if kind in (3, 4, 7) else 'jpg'}", **options)
    return root


FOLDERS: dict[str, Callable[..., Any]] = {"ours": ImageFolder, "torchvision": torchvision.datasets.ImageFolder}
ALL_TIERS = {name: TIERS[name] for name in ("memory", "folder")}


def counts_of(loader: Any) -> Any:
    (counts,) = loader.stats().cache.values()
    return counts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tiers", ALL_TIERS)
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", STILL)
def test_elements_are_torchs(name: str, folder: str, tiers: str, workers: int, tmp_path: Path) -> None:
    dataset = FOLDERS[folder](pictures(tmp_path / "data"), compose(STILL[name]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=1 if name == "v1 larger" else 4))
    loader = DataLoader(
        dataset,
        batch_size=1 if name == "v1 larger" else 4,
        num_workers=workers,
        cache=TIERS[tiers](tmp_path),
        cache_decoded=True,
    )
    assert "files as they are" not in loader.explain(), loader.explain()
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert_passes(loader, wanted)
    counts = counts_of(loader)
    assert (counts.samples, counts.decoded, counts.dropped, counts.error) == (18, 18, 0, None)
    assert counts.hits >= 36
    assert "pixels as" in loader.explain()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_those_without_a_cache(name: str, folder: str, workers: int, tmp_path: Path) -> None:
    dataset = FOLDERS[folder](pictures(tmp_path / "data"), compose(RANDOM[name]))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "num_workers": workers}
    plain, kept = DataLoader(dataset, **options), DataLoader(dataset, **options, cache="8MiB", cache_decoded=True)
    epochs = [list(plain) for _ in range(3)]
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    assert_same(list(kept), epochs[0])
    spoil(tmp_path / "data")
    assert_same([list(kept) for _ in range(2)], epochs[1:])
    assert counts_of(kept).decoded == 18


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_flip_without_chance_is_torchs(flip: float, tmp_path: Path) -> None:
    steps = [v1.Resize(26), v1.CenterCrop(22), v1.RandomHorizontalFlip(flip)]
    dataset = ImageFolder(pictures(tmp_path / "data"), compose([*steps, v1.ToTensor(), NORMALIZE]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, cache="8MiB", cache_decoded=True)
    assert_passes(loader, wanted)
    assert counts_of(loader).decoded == 18


@pytest.mark.parametrize("method", [None, "thread", "auto", "process"])
@pytest.mark.parametrize("workers", [0, 2])
def test_worker_methods(method: Any, workers: int, tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(STILL["v1"]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(
        dataset, batch_size=4, num_workers=workers, worker_method=method, cache=tmp_path / "cache", cache_decoded=True
    )
    assert_passes(loader, wanted)
    if method == "process":
        assert "nothing is kept: Python reads the files" in loader.explain()
    else:
        assert counts_of(loader).decoded == 18


def test_pixels_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_the_cpu(monkeypatch)
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(STILL["v1"]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, device="cuda", cache="8MiB", cache_decoded=True)
    assert_passes(loader, wanted)
    assert counts_of(loader).decoded == 18 and counts_of(loader).hits >= 18


def test_what_only_torchvision_does(tmp_path: Path) -> None:
    """Small images, of which numpy repeats the reflection, are done by their own transform each time."""
    steps = [v1.Pad(60, padding_mode="reflect"), v1.CenterCrop(90), v1.ToTensor()]
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(steps))
    loader = DataLoader(dataset, batch_size=4, cache="8MiB", cache_decoded=True)
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=4)))
    assert counts_of(loader).samples == 0


@pytest.mark.parametrize("name", ["subset", "concatenated"])
def test_datasets_of_datasets(name: str, tmp_path: Path) -> None:
    made = compose(STILL["v1"])
    parts = [ImageFolder(pictures(tmp_path / "data" / part), made) for part in "ab"]
    dataset: Any = Subset(parts[0], [5, 3, 3, 17]) if name == "subset" else ConcatDataset(parts)
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, cache=tmp_path / "cache", cache_decoded=True)
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert_same(list(loader), wanted)
    assert counts_of(loader).decoded == len(set(dataset.indices) if name == "subset" else dataset)
    assert loader.explain().count("pixels as CenterCrop leaves them") == 1


# --- what is kept, and what is not ------------------------------------------------------------------------------------


def found(transform: Any) -> KeptPixels | str:
    recipe = penstock.recipe.reader.read(transform, mode="RGB")
    assert isinstance(recipe, penstock.recipe.steps.Recipe), recipe
    return kept_pixels(recipe)


def test_which_pixels_are_kept() -> None:
    def kept(*steps: Any) -> tuple[int, str]:
        pixels = found(compose([*steps, v1.ToTensor()]))
        assert isinstance(pixels, KeptPixels), pixels
        return pixels.operations, pixels.after

    resize, crop, pad = v1.Resize(30), v1.CenterCrop((20, 24)), v1.Pad((1, 2))
    flip, grey = v1.RandomHorizontalFlip(), v1.Grayscale()
    assert kept(resize, crop) == (2, "CenterCrop")
    assert kept(resize, flip, crop) == (1, "Resize")
    assert kept(v1.Resize(30, max_size=36)) == (1, "Resize")
    assert kept(crop, pad, flip) == (1, "CenterCrop"), "padding costs nothing to add"
    assert kept(crop, pad, v1.Resize((5, 6)), flip) == (3, "Resize")
    assert kept(pad, crop, pad, grey) == (4, "Grayscale")
    converted = found(compose([crop, v1.ToTensor(), v1.Pad(2)]))
    assert isinstance(converted, KeptPixels) and converted.operations == 1, "pixels are kept, not what they become"


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
def test_where_files_are_kept_as_they_are(steps: list[Any], why: str, tmp_path: Path) -> None:
    last = [] if isinstance(steps[0], v1.ToTensor) else [v1.ToTensor()]
    dataset = ImageFolder(pictures(tmp_path / "data"), compose([*steps, *last]))
    loader = DataLoader(dataset, seed=1, cache=tmp_path / "cache", cache_decoded=True)
    wanted = list(DataLoader(dataset, seed=1))
    assert f"files as they are: {why}" in loader.explain()
    assert not (tmp_path / "cache").exists(), "explain() makes nothing"
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert len(list(loader)) == 18
    assert (counts_of(loader).samples, counts_of(loader).decoded) == (18, 0)


def test_other_samples_than_images_for_the_native_core(tmp_path: Path) -> None:
    tensors = TensorFolder(tensor_files(tmp_path / "tensors", 6))
    loader = DataLoader(tensors, cache="1MiB", cache_decoded=True)
    assert_same(list(loader), list(torch.utils.data.DataLoader(tensors)))
    assert "files as they are: the samples are no images" in loader.explain()
    assert (counts_of(loader).samples, counts_of(loader).decoded) == (6, 0)
    arrays = DataLoader(penstock.Arrays(np.zeros((4, 2))), cache="1MiB", cache_decoded=True)
    assert list(arrays)
    assert (
        "nothing is kept: the dataset has no files" in arrays.explain() and "files as they are" not in arrays.explain()
    )
    lists: DataLoader[Any] = DataLoader(list(range(9)), cache="1MiB", cache_decoded=True)  # type: ignore[arg-type]
    assert list(lists)
    assert "nothing is kept: Python reads the files" in lists.explain() and "files as they are" not in lists.explain()


def test_a_transform_that_python_calls(tmp_path: Path) -> None:
    steps = [v1.Resize(26), v1.Lambda(np.array), v1.Lambda(lambda pixels: pixels[:8, :8])]
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(steps))
    loader = DataLoader(dataset, batch_size=4, cache=tmp_path / "cache", cache_decoded=True)
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=4)))
    assert "files as they are: Python calls the transforms" in loader.explain()
    assert counts_of(loader).samples and not counts_of(loader).decoded


def test_pixels_that_do_not_fit(tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), compose([v1.Resize((200, 200)), v1.ToTensor()]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    for cache in ("1MiB", (tmp_path / "cache", "1MiB")):
        loader = DataLoader(dataset, batch_size=4, cache=cache, cache_decoded=True)
        assert_passes(loader, wanted)
        assert (counts_of(loader).samples, counts_of(loader).decoded) == (8, 8), "the others come from their files"
    both = DataLoader(dataset, batch_size=4, cache=["1MiB", (tmp_path / "both", "2MiB")], cache_decoded=True)
    assert_passes(both, wanted)
    memory, folder = both.stats().cache.values()
    assert memory.decoded == 8 and folder.decoded == 10, "8 images fit into the first MiB"
    assert "pixels as Resize leaves them" in both.explain()


def test_a_full_tier(tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(STILL["v1"]))  # pixels take less than files
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, cache=5 * (16 + 20 * 20 * 3) + 7, cache_decoded=True)
    assert_passes(loader, wanted, 3)
    assert (counts_of(loader).samples, counts_of(loader).decoded, counts_of(loader).dropped) == (5, 5, 0)


@pytest.mark.parametrize(
    ("options", "what"), [({"cache_decoded": True}, "give cache="), ({"cache_decoded": 1}, "True or")]
)
def test_options_that_make_no_sense(options: dict[str, Any], what: str) -> None:
    with pytest.raises(penstock.InvalidOption, match=f"cache_decoded=.*{what}"):
        DataLoader(list(range(3)), **options)  # type: ignore[arg-type]


# --- one after the other, and at once ---------------------------------------------------------------------------------

READER = """
import sys
import torch
from torchvision import transforms
from penstock import DataLoader, ImageFolder
root, folder, size = sys.argv[1:]
recipe = transforms.Compose([transforms.Resize(26), transforms.CenterCrop(int(size)), transforms.ToTensor()])
loader = DataLoader(
    ImageFolder(root, recipe), batch_size=4, num_workers=2, cache=(folder, "1GiB"), cache_decoded=True, shuffle=True
)
total = sum(batch.double().sum().item() for batch, _ in loader)
(counts,) = loader.stats().cache.values()
print(round(total, 3), counts.decoded, counts.hits, counts.dropped)
"""


def read_elsewhere(root: Path, folder: Path, size: int) -> Program:
    return Program(READER, root, folder, size)


def test_processes_and_recipes_share_a_folder(tmp_path: Path) -> None:
    root, folder = pictures(tmp_path / "data"), tmp_path / "cache"
    totals = {}
    for size in (20, 24):
        made = v1.Compose([v1.Resize(26), v1.CenterCrop(size), v1.ToTensor()])
        totals[size] = round(
            sum(image.double().sum().item() for image, _ in map(ImageFolder(root, made).__getitem__, range(18))), 3
        )
    sizes = (20, 24, 20)
    read = [process.communicate()[0].split() for process in [read_elsewhere(root, folder, n) for n in sizes]]
    assert [float(words[0]) for words in read] == [totals[size] for size in sizes]
    assert {words[3] for words in read} == {"0"}
    spoil(root)
    for size in (20, 24):
        words = read_elsewhere(root, folder, size).communicate()[0].split()
        assert (float(words[0]), int(words[1])) == (totals[size], 18) and int(words[2]) >= 18
    assert len(list(folder.glob("*.index"))) == 2


def test_each_form_has_a_part_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = pictures(tmp_path / "data"), tmp_path / "cache"
    resize, crop, bicubic = v1.Resize(26), v1.CenterCrop(20), v1.InterpolationMode.BICUBIC

    def parts(*steps: Any, decoded: bool = True) -> int:
        dataset = ImageFolder(root, compose([*steps, v1.ToTensor()]))
        loader = DataLoader(dataset, batch_size=3, cache=folder, cache_decoded=decoded)
        wanted = list(torch.utils.data.DataLoader(dataset, batch_size=3))
        assert_passes(loader, wanted)
        return len(list(folder.glob("*.index")))

    assert parts(resize, crop) == 1
    assert parts(resize, crop, v1.RandomHorizontalFlip(0.0)) == 1, "what follows the pixels is not theirs"
    assert parts(resize, crop, v1.Pad(2, fill=7)) == 1
    assert parts(resize, crop, decoded=False) == 2
    assert parts(v1.Resize(26, interpolation=bicubic), crop) == 3
    assert parts(v1.Resize(26, max_size=30), crop) == 4
    assert parts(v1.Resize(27), crop) == 5
    assert parts(v1.Pad(2), resize, crop) == 6
    assert parts(v1.Pad(2, fill=7), resize, crop) == 7
    assert parts(v1.Pad(2, padding_mode="edge"), resize, crop) == 8
    assert parts(resize, crop, v1.Grayscale()) == 9
    assert parts(v2.Resize(26), v2.CenterCrop(20)) == 9, "Pillow does the same for both generations"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    assert parts(resize, crop) == 10
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert parts(resize, crop) == 11
    monkeypatch.setattr(PIL, "__version__", "0.0")
    assert parts(resize, crop) == 12


def test_changed_datasets(tmp_path: Path) -> None:
    root, folder = pictures(tmp_path / "data"), tmp_path / "cache"

    def check() -> None:
        dataset = ImageFolder(root, compose(STILL["v1"]))
        loader = DataLoader(dataset, batch_size=4, cache=folder, cache_decoded=True)
        wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
        assert_passes(loader, wanted)

    check()
    noise_image(99, 70, 70).save(root / "class0" / "00.jpg")
    check()
    (root / "class0" / "00.jpg").rename(root / "class0" / "zz.jpg")
    check()
    assert len(list(folder.glob("*.index"))) == 3


def test_a_transform_that_changes_between_epochs(tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(STILL["v1"]))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, cache="8MiB", cache_decoded=True)
    for name in ("v1", "v1 fixed", "v2 on tensors", "v1"):
        dataset.transform = compose(STILL[name])
        assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=4)))


def test_files_that_a_program_exchanges_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "data" / "class").mkdir(parents=True)
    for number in range(130):
        noise_image(number, 20, 22).save(tmp_path / "data" / "class" / f"{number:03}.{'png' if number % 2 else 'jpg'}")
    dataset = torchvision.datasets.ImageFolder(tmp_path / "data", compose(STILL["v1 grey"]))
    loader = DataLoader(dataset, batch_size=7, cache=tmp_path / "cache", cache_decoded=True)
    list(loader)
    samples = dataset.samples
    samples[1], samples[2] = samples[2], samples[1]  # the part of the folder is found by 64 files: neither is one
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=7)))
    assert len(list((tmp_path / "cache").glob("*.index"))) == 1
    assert counts_of(loader).dropped == 2, "pixels of another file are made anew"


# --- what is not trusted ----------------------------------------------------------------------------------------------


GOOD = np.arange(60, dtype=np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"PIX1",
        b"PIX0" + b"PIX1",
        (4, 5, 1),
        (5, 5, 3),
        (0, 5, 3),
        (5, 4, 2),
        (2**32 - 1, 5, 3),
        (2**31, 2**31, 4),
        (20, 1, 3),
    ],
)
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
    ((images, _),) = list(DataLoader(dataset, cache="1KiB", cache_decoded=True))
    if content == (20, 1, 3):  # an image that another recipe would have made is one
        assert torch.equal(images, torch.from_numpy(GOOD).reshape(20, 1, 3).permute(2, 0, 1)[None])
    else:
        assert torch.equal(images, dataset[0][0][None])


def test_the_filler_that_keeps_pixels() -> None:
    operation = {"op": "Resize", "size": (4, 5), "shorter": 0, "longest": 0}
    recipe = _native.Recipe(
        3, [{**operation, "filter": "bilinear", "arithmetic": "pillow", "antialias": True}], "uint8", "hwc", None, []
    )
    cache = _native.SampleCache([_native.CacheTier.in_memory(1, 1000)])
    files = _native.ImageFileFiller(None, recipe, 2000)
    filler = files.keeping_pixels(cache, 1)
    image = np.asarray(noise_image(1, 40, 50))
    assert filler.keep(0, b"a", image)
    kept = cache.find(0, b"a")
    assert kept is not None and kept[:16] == numbers(4, 5, 3) and len(kept) == 16 + 60
    assert not filler.keep(0, b"a", image[..., :1].copy()), "another number of channels"
    assert not filler.keep(0, b"a", image[:0]), "no pixels"
    assert not filler.keep(0, b"a", np.zeros((41, 50, 3), np.uint8)), "more pixels than Pillow takes without a warning"
    with pytest.raises(ValueError, match="height x width"):
        filler.keep(0, b"a", image.reshape(-1))
    for count in (2, 1 << 60):
        with pytest.raises(ValueError, match="fewer operations"):
            files.keeping_pixels(cache, count)
    drawing = _native.Recipe(3, [{"op": "RandomFlip", "horizontal": True, "p": 0.5}], "uint8", "hwc", None, [])
    with pytest.raises(ValueError, match="draws"):
        _native.ImageFileFiller(None, drawing, 0).keeping_pixels(cache, 1)


def numbers(height: int, width: int, channels: int) -> bytes:
    return b"PIX1" + b"".join(value.to_bytes(4, "little") for value in (height, width, channels))


def test_images_of_more_pixels_than_pillow_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = pictures(tmp_path / "data")
    noise_image(1, 90, 90).save(root / "class0" / "large.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    dataset = ImageFolder(root, compose(STILL["v1"]))
    loader = DataLoader(dataset, batch_size=4, cache="8MiB", cache_decoded=True)
    for _ in range(2):
        with pytest.warns(Image.DecompressionBombWarning):
            list(loader)
    assert counts_of(loader).decoded == 18
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    with pytest.raises(penstock.SampleError, match="decompression bomb"):
        list(loader)


def test_truncated_images_where_pillow_allows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = pictures(tmp_path / "data")
    path = root / "class0" / "00.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    dataset = ImageFolder(root, compose(STILL["v1"]))
    loader = DataLoader(dataset, batch_size=4, cache="8MiB", cache_decoded=True)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=4)))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(penstock.SampleError, match="truncated"):
        list(loader)


# --- with readers -----------------------------------------------------------------------------------------------------


def test_readers_keep_no_files_in_the_place_of_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowFiller(_native.ImageFileFiller):
        def __init__(self, paths: Any, recipe: _native.Recipe, max_pixels: int) -> None:
            super().__init__(SlowTable(paths, 0.01), recipe, max_pixels)

    monkeypatch.setattr(_native, "ImageFileFiller", SlowFiller)
    start_readers(monkeypatch)
    dataset = ImageFolder(pictures(tmp_path / "data"), compose(STILL["v1"]))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=3))
    loader = DataLoader(dataset, batch_size=3, num_workers=2, cache="8MiB", cache_decoded=True)
    assert_passes(loader, wanted, 3)
    counts = counts_of(loader)
    assert (counts.decoded, counts.bytes, counts.dropped) == (18, 18 * (16 + 20 * 20 * 3), 0)
    assert loader.stats().reading.ahead + loader.stats().reading.awaited > 0

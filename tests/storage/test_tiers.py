"""cache=: the same batches from tiers, which keep samples until they are full, outlive processes, and trust nothing."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

import penstock
from penstock import DataLoader, ImageFolder, TensorFolder
from tests.data import noise_image, tensor_files, write_tensors
from tests.forking import assert_in_child
from tests.same import assert_passes, assert_same, outcomes

pytestmark = pytest.mark.native

RECIPE = transforms.Compose([transforms.Resize(24), transforms.CenterCrop(20), transforms.ToTensor()])


def pictures(root: Path, count: int = 14, suffixes: tuple[str, ...] = ("png", "jpg", "jpg"), step: int = 1) -> Path:
    """Write a folder of PNG and JPEG files, each `step` pixels higher than the one before."""
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        noise_image(number, 40 + step * number, 50).save(folder / f"{number:02}.{suffixes[number % len(suffixes)]}")
    return root


def torchs(dataset: Any, size: int = 4) -> list[Any]:
    return list(torch.utils.data.DataLoader(dataset, batch_size=size))


def counts_of(loader: Any) -> Any:
    (counts,) = loader.stats().cache.values()
    return counts


def parameters(root: Path) -> Path:
    """Write files that torch.load reads, as the native core reads none of a subclass."""
    for path in tensor_files(root, 14).iterdir():
        torch.save(torch.nn.Parameter(torch.load(path)), path)
    return root


DATASETS: dict[str, Callable[[Path], Any]] = {
    "pt": lambda root: TensorFolder(tensor_files(root / "data", 14)),
    "npy": lambda root: TensorFolder(write_tensors(root / "data", count=14, suffix=".npy"), suffix=".npy"),
    "read by torch.load": lambda root: TensorFolder(parameters(root / "data")),
    "images": lambda root: ImageFolder(pictures(root / "data"), RECIPE),
    "torchvision": lambda root: torchvision.datasets.ImageFolder(pictures(root / "data"), RECIPE),
    "subset": lambda root: Subset(TensorFolder(tensor_files(root / "data", 20)), list(range(3, 17))),
    "concatenated": lambda root: ConcatDataset(
        [TensorFolder(tensor_files(root / "data" / name, 7, name=name + "{}")) for name in "ab"]
    ),
}
TIERS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda root: "8MiB",
    "folder": lambda root: root / "cache",
    "limited": lambda root: (root / "cache", "8 MiB"),
    "both": lambda root: ["1KiB", str(root / "cache")],
}


def spoil(root: Path) -> None:
    """Exchange the bytes of all files for others, and nothing else that a file system shows."""
    for path in root.rglob("*.*"):
        status = path.stat()
        path.write_bytes(os.urandom(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("name", DATASETS)
def test_later_epochs_come_from_the_tiers(name: str, tiers: str, workers: int, tmp_path: Path) -> None:
    dataset = DATASETS[name](tmp_path)
    wanted = torchs(dataset)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, cache=TIERS[tiers](tmp_path))
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert_same(list(loader), wanted)
    counts = loader.stats().cache.values()
    assert sum(one.samples for one in counts) == 14 <= sum(one.hits for one in counts)
    assert {(one.dropped, one.error) for one in counts} == {(0, None)}


def negative(value: Any) -> Any:
    """A transform that only Python knows."""
    return -torchvision.transforms.functional.to_tensor(value) if not isinstance(value, torch.Tensor) else -value


def test_a_tier_that_is_full(tmp_path: Path) -> None:
    dataset = TensorFolder(tensor_files(tmp_path / "data", 40, (100,)))
    size = 10 * (tmp_path / "data" / "00.pt").stat().st_size
    loader = DataLoader(dataset, batch_size=4, num_workers=2, cache=(tmp_path / "cache", size + 5))
    assert_passes(loader, torchs(dataset))
    counts = counts_of(loader)
    assert (counts.samples, counts.bytes, counts.limit) == (10, size, size + 5)
    assert "10 samples" in loader.explain()


def test_explain_makes_nothing(tmp_path: Path) -> None:
    dataset = TensorFolder(tensor_files(tmp_path / "data", 4))
    loader = DataLoader(dataset, cache=tmp_path / "cache", seed=1)
    assert "cache    " in loader.explain()
    loader.batch_at(0, 0)
    repr(loader), len(loader), loader.stats()
    assert not (tmp_path / "cache").exists()


@dataclasses.dataclass
class Kept:
    """A dataset, of which a folder has all samples, and the batches of torch's loader."""

    dataset: Any
    folder: Path
    decoded: bool
    wanted: list[Any]

    def loader(self, **options: Any) -> DataLoader[Any]:
        given = {"batch_size": 4, "cache": self.folder, "cache_decoded": self.decoded, **options}
        return DataLoader(self.dataset, **given)


@pytest.fixture(params=["files", "pixels"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    dataset: Any
    if decoded := request.param == "pixels":
        dataset = ImageFolder(pictures(tmp_path / "data", 12), RECIPE)
    else:
        dataset = TensorFolder(tensor_files(tmp_path / "data", 12, (64,)))
    made = Kept(dataset, tmp_path / "cache", decoded, torchs(dataset))
    assert_same(list(made.loader()), made.wanted)
    return made


def only(folder: Path, suffix: str) -> Path:
    (found,) = folder.glob(f"*.{suffix}")
    return found


def test_bytes_that_change_while_a_loader_is_open(tmp_path: Path) -> None:
    """Each read compares: another machine may write into a folder of a network file system."""
    dataset = TensorFolder(write_tensors(tmp_path / "data", count=14, suffix=".npy"), suffix=".npy")
    loader = DataLoader(dataset, batch_size=4, cache=tmp_path / "cache")
    assert_passes(loader, torchs(dataset))
    data = only(tmp_path / "cache", "data")
    content = data.read_bytes()
    each = len(content) // 14
    data.write_bytes(content[each:] + content[:each])  # a whole file in the place of each
    assert_passes(loader, torchs(dataset))
    assert (counts_of(loader).samples, counts_of(loader).dropped) == (14, 14)


NO_CACHES: Any = ["", 0, -5, "0GiB", True, 3.5, [], ["8GiB", "4GiB"], [None], b"\0", ("8GiB", "4GiB", "x")]


@pytest.mark.parametrize("option", NO_CACHES)
def test_options_that_are_no_cache(option: Any) -> None:
    with pytest.raises(penstock.InvalidOption, match="cache="):
        DataLoader(list(range(3)), cache=option)  # type: ignore[arg-type]


def test_pixels_are_kept_in_a_cache() -> None:
    wrong: Any
    for wrong, words in ((True, "give cache="), (1, "True or")):
        with pytest.raises(penstock.InvalidOption, match=f"cache_decoded=.*{words}"):
            DataLoader(list(range(3)), cache_decoded=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "tiers"),
    [
        ("8GiB", {"memory": "8.0 GiB"}),
        (8 << 30, {"memory": "8.0 GiB"}),
        (["1GB", "/a", ("/b", "2KiB"), ("/c", 5)], {"memory": "954 MiB", "/a": "", "/b": "2.0 KiB", "/c": "0.0 KiB"}),
        (("/b", "2KiB"), {"/b": "2.0 KiB"}),
        ("./8GiB", {str(Path.cwd() / "8GiB"): ""}),
        ("~/x", {str(Path.home() / "x"): ""}),
        (("1KiB", "/a"), {"memory": "1.0 KiB", "/a": ""}),
    ],
)
def test_options(option: Any, tiers: dict[str, str], tmp_path: Path) -> None:
    loader = DataLoader(TensorFolder(tensor_files(tmp_path, 1)), cache=option)
    (line,) = [line for line in loader.explain().splitlines() if line.startswith("cache    ")]
    found = re.findall(r"(?:^cache    |; )(\S+), up to (.*?): 0 samples", line)
    assert found == [(place, most or "what is free") for place, most in tiers.items()]


def test_copies_and_forks_of_a_loader(kept: Kept) -> None:
    loader = kept.loader(cache=[kept.folder, "1MiB"])
    assert_same(list(loader), kept.wanted)
    twin, other = pickle.loads(pickle.dumps(loader)), loader.with_samples(kept.dataset, batch_size=4)
    assert other.cache == [kept.folder, "1MiB"] and other.cache_decoded == kept.decoded
    for one in (twin, other):
        assert_same(list(one), kept.wanted)
        assert one.stats().cache[str(kept.folder)].hits >= 12
    assert_in_child(lambda: assert_same(list(loader), kept.wanted))
    assert_same(list(loader), kept.wanted)


def test_descriptors_and_memory_are_given_back(tmp_path: Path) -> None:
    dataset, held = TensorFolder(tensor_files(tmp_path / "data", 6)), []
    for _ in range(6):  # the first opens what is opened once
        list(DataLoader(dataset, cache=["1MiB", tmp_path / "cache"]))
        held.append(len(os.listdir("/proc/self/fd")))
    assert held[0] == held[-1]


@pytest.mark.parametrize("cache", ["1MiB", "folder"])
def test_errors_of_samples_are_those_of_their_files(kept: Kept, cache: str, tmp_path: Path) -> None:
    files = sorted(path for path in (tmp_path / "data").rglob("*.*"))
    whole = files[1].read_bytes()
    for path, content in zip(files[1:4], (whole[: len(whole) // 2], b"garbage", b""), strict=True):
        path.write_bytes(content)
    files[4].unlink()
    wanted = outcomes(DataLoader(kept.dataset, num_workers=2))
    loader = kept.loader(batch_size=1, num_workers=2, cache=cache if cache == "1MiB" else tmp_path / "new")
    for _ in range(2):
        assert_same(outcomes(loader), wanted)
    assert sum(isinstance(one, tuple) for one in wanted) == 4
    assert counts_of(loader).decoded == (8 if kept.decoded else 0), "no pixels are kept of a file that cannot be read"


def test_a_disk_that_is_full_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    each = TensorFolder(tensor_files(tmp_path / "data", 6))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        list(DataLoader(each, cache=tmp_path / "file"))
    monkeypatch.setattr("penstock.storage.tiers.private_folder", full)
    dataset: ConcatDataset[Any] = ConcatDataset([each, each])
    for cache in (tmp_path / "cache", [tmp_path / "cache", "1MiB"]):
        loader = DataLoader(dataset, batch_size=5, cache=cache)
        with pytest.warns(UserWarning, match=r"cannot be written \(No space left on device\)") as warned:
            first = list(loader)
        assert len(warned) == 1 and warned[0].filename == __file__
        assert_same([first, list(loader)], [torchs(dataset, 5)] * 2)
        counts = loader.stats().cache
        assert counts[str(tmp_path / "cache")].error == "No space left on device"
        assert len(counts) == 1 or counts["memory"].hits >= 12


def test_shards_have_no_files_to_keep(tmp_path: Path) -> None:
    penstock.pack(ImageFolder(pictures(tmp_path / "data", 6, ("jpg",), step=0)), tmp_path / "packed")
    for transform in (RECIPE, negative):
        dataset = penstock.Shards(tmp_path / "packed", transform=transform)
        loader = DataLoader(dataset, batch_size=4, cache="1MiB")
        assert_same(list(loader), torchs(dataset))
        assert loader.stats().cache["memory"].samples == 0

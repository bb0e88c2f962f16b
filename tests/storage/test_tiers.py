"""cache=: the same batches from tiers, which keep samples until they are full, outlive processes, and trust nothing."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

import penstock
import penstock._native as _native
from penstock import DataLoader, ImageFolder, TensorFolder
from penstock._native import CacheTier, SampleCache
from penstock.errors import StorageError, UnsafeCache
from penstock.storage.tiers import Caches, FolderTier, MemoryTier, Tier, caches_of
from tests.forking import assert_in_child
from tests.native_testing import SlowTable
from tests.packing.packed import start_readers
from tests.photos import noise_image
from tests.python_processes import Program
from tests.same import assert_passes, assert_same
from tests.sample_datasets import tensor_files

pytestmark = pytest.mark.native

RECIPE = transforms.Compose([transforms.Resize(24), transforms.CenterCrop(20), transforms.ToTensor()])


def pictures(root: Path, count: int = 14) -> Path:
    """Write a folder of JPEG and PNG files."""
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        noise_image(number, 40 + number, 50).save(folder / f"{number:02}.{'png' if number % 3 == 0 else 'jpg'}")
    return root


def numpy_files(root: Path) -> Path:
    root.mkdir()
    for number in range(14):
        np.save(root / f"{number:02}.npy", np.full((3, 5), number, np.int16))
    return root


def compressed_files(root: Path) -> Path:
    """Write files that torch.load reads, as the native core reads none of a subclass."""
    root.mkdir()
    for number in range(14):
        torch.save(torch.nn.Parameter(torch.full((3,), float(number))), root / f"{number:02}.pt")
    return root


DATASETS: dict[str, Callable[[Path], Any]] = {
    "pt": lambda root: TensorFolder(tensor_files(root / "data", 14)),
    "npy": lambda root: TensorFolder(numpy_files(root / "data"), suffix=".npy"),
    "read by torch.load": lambda root: TensorFolder(compressed_files(root / "data")),
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
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, cache=TIERS[tiers](tmp_path))
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert_same(list(loader), wanted)
    counts = loader.stats().cache
    assert sum(one.samples for one in counts.values()) == 14
    assert sum(one.hits for one in counts.values()) >= 14
    assert all(one.dropped == 0 and one.error is None for one in counts.values())


def negative(value: Any) -> Any:
    """A transform that only Python knows."""
    return -torchvision.transforms.functional.to_tensor(value) if not isinstance(value, torch.Tensor) else -value


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}, {"worker_method": "thread"}])
@pytest.mark.parametrize("tiers", ["memory", "folder"])
@pytest.mark.parametrize("kind", ["tensors", "images", "torchvision"])
def test_samples_whose_transform_is_pythons(kind: str, tiers: str, workers: dict[str, Any], tmp_path: Path) -> None:
    dataset: Any
    if kind == "tensors":
        dataset = TensorFolder(tensor_files(tmp_path / "data", 14), transform=negative)
    else:
        for number in range(14):
            (tmp_path / "data" / str(number % 2)).mkdir(parents=True, exist_ok=True)
            noise_image(number, 30, 30).save(tmp_path / "data" / str(number % 2) / f"{number:02}.jpg")
        dataset = (ImageFolder if kind == "images" else torchvision.datasets.ImageFolder)(tmp_path / "data", negative)
    loader = DataLoader(dataset, batch_size=4, cache=TIERS[tiers](tmp_path), **workers)
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert_same(list(loader), wanted)
    spoil(tmp_path / "data")
    assert_passes(loader, wanted)
    (counts,) = loader.stats().cache.values()
    assert (counts.samples, counts.dropped) == (14, 0) and counts.hits >= 28
    assert "14 samples" in loader.explain()


def test_a_tier_that_is_full(tmp_path: Path) -> None:
    dataset = TensorFolder(tensor_files(tmp_path / "data", 40, (100,)))
    bytes_each = (tmp_path / "data" / "00.pt").stat().st_size
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, cache=(tmp_path / "cache", 10 * bytes_each + 5))
    assert_passes(loader, wanted)
    (counts,) = loader.stats().cache.values()
    assert (counts.samples, counts.bytes, counts.limit) == (10, 10 * bytes_each, 10 * bytes_each + 5)
    assert "10 samples" in loader.explain()


def test_explain_makes_nothing(tmp_path: Path) -> None:
    dataset = TensorFolder(tensor_files(tmp_path / "data", 4))
    loader = DataLoader(dataset, cache=tmp_path / "cache", seed=1)
    assert "cache    " in loader.explain()
    loader.batch_at(0, 0)
    repr(loader), len(loader), loader.stats()
    assert not (tmp_path / "cache").exists()
    python: DataLoader[Any] = DataLoader(list(range(9)), cache=tmp_path / "cache")  # type: ignore[arg-type]
    assert list(python)
    assert "nothing is kept: Python reads" in python.explain()
    arrays = DataLoader(penstock.Arrays(np.zeros((4, 2))), cache="1MiB")
    assert list(arrays)
    assert "nothing is kept: the dataset has no files" in arrays.explain()


# --- what is not trusted ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Kept:
    """A dataset, of which a folder has all samples, and the batches of torch's loader."""

    dataset: Any
    folder: Path
    decoded: bool
    wanted: list[Any]

    def loader(self, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            self.dataset, **{"batch_size": 4, "cache": self.folder, "cache_decoded": self.decoded, **options}
        )


@pytest.fixture(params=["files", "pixels"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    dataset: Any
    if decoded := request.param == "pixels":
        dataset = ImageFolder(pictures(tmp_path / "data", 12), RECIPE)
    else:
        dataset = TensorFolder(tensor_files(tmp_path / "data", 12, (64,)))
    made = Kept(dataset, tmp_path / "cache", decoded, list(torch.utils.data.DataLoader(dataset, batch_size=4)))
    assert_same(list(made.loader()), made.wanted)
    return made


def only(folder: Path, suffix: str) -> Path:
    (found,) = folder.glob(f"*.{suffix}")
    return found


def test_damaged_samples_are_read_anew(kept: Kept) -> None:
    data = only(kept.folder, "data")
    content = bytearray(data.read_bytes())
    for place in (0, len(content) // 2, len(content) - 1):
        content[place] ^= 1
    data.write_bytes(content)
    loader = kept.loader()
    for _ in range(2):
        assert_same(list(loader), kept.wanted)
        (counts,) = loader.stats().cache.values()
        assert counts.dropped == 3, "they were kept anew"


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_truncated_data(left: int, kept: Kept) -> None:
    os.truncate(only(kept.folder, "data"), left)
    for workers in (0, 2):
        assert_passes(kept.loader(num_workers=workers), kept.wanted)


def test_a_damaged_index(kept: Kept) -> None:
    index = only(kept.folder, "index")
    good = index.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(30):
        garbage = bytearray(good)
        for place in generator.integers(64, len(good), 8):
            garbage[place] = generator.integers(256)
        index.write_bytes(garbage)
        assert_same(list(kept.loader()), kept.wanted)
    for bad in (good[:-1], good + b"x", b"x" * 8 + good[8:], good[:8] + b"y" * 8 + good[16:]):
        index.write_bytes(bad)
        with pytest.raises(StorageError, match="is damaged: it does not have 12 entries"):
            list(kept.loader())
    index.write_bytes(b"")
    assert_same(list(kept.loader()), kept.wanted)


@pytest.mark.parametrize("lost", ["header", "entries", "both", "data", "index"])
def test_parts_of_a_folder_that_are_older_than_others(lost: str, kept: Kept) -> None:
    """As a power failure leaves them: of what was written at about the same time, some parts are on the disk."""
    index, data = only(kept.folder, "index"), only(kept.folder, "data")
    content = bytearray(index.read_bytes())
    if lost in ("header", "both"):
        content[16:64] = bytes(48)
    if lost in ("entries", "both"):
        for place in range(64, len(content), 32):
            content[place : place + 16] = bytes(16)
    index.write_bytes(b"" if lost == "index" else content)
    if lost == "data":
        os.truncate(data, data.stat().st_size // 2)
    loader = kept.loader()
    assert_passes(loader, kept.wanted, 3)
    assert loader.stats().cache[str(kept.folder)].samples == 12, "what was lost was kept anew"


def test_bytes_that_change_while_a_loader_is_open(tmp_path: Path) -> None:
    """Each read compares: another machine may write into a folder of a network file system."""
    dataset = TensorFolder(numpy_files(tmp_path / "data"), suffix=".npy")
    loader = DataLoader(dataset, batch_size=4, cache=tmp_path / "cache")
    wanted = list(loader)
    assert_same(list(loader), wanted)
    data = only(tmp_path / "cache", "data")
    content = data.read_bytes()
    each = len(content) // 14
    data.write_bytes(content[each:] + content[:each])  # a whole file in the place of each
    assert_passes(loader, wanted)
    counts = loader.stats().cache[str(tmp_path / "cache")]
    assert (counts.samples, counts.dropped) == (14, 14)


def test_a_changed_dataset_has_a_cache_of_its_own(tmp_path: Path) -> None:
    dataset, folder = TensorFolder(tensor_files(tmp_path / "data", 12, (64,))), tmp_path / "cache"
    list(DataLoader(dataset, batch_size=4, cache=folder))
    for number in range(12):
        torch.save(torch.full((64,), -1.0), tmp_path / "data" / f"{number:02}.pt")
    other = TensorFolder(tensor_files(tmp_path / "other", 12, (64,), name="{:02}"))
    torch.save(torch.full((64,), -2.0), tmp_path / "other" / "05.pt")
    for one in (dataset, other):
        assert_same(
            list(DataLoader(one, batch_size=4, cache=folder)), list(torch.utils.data.DataLoader(one, batch_size=4))
        )
    assert len(list(folder.glob("*.index"))) == 3


def test_files_that_a_program_exchanges_in_the_list(tmp_path: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(pictures(tmp_path / "data"), RECIPE)
    loader = DataLoader(dataset, batch_size=7, cache="1MiB")
    list(loader)
    dataset.samples[3], dataset.samples[9] = dataset.samples[9], dataset.samples[3]
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=7)))
    caches = loader._executors.caches
    assert caches is not None
    ((cache, _),) = caches._held.values()
    name, other = (os.fsencode(dataset.samples[number][0]) for number in (3, 9))
    assert cache.find(3, name) is not None
    assert cache.find(3, other) is None, "another file at the same place is no sample of the cache"
    assert loader.stats().cache["memory"].dropped == 1


def test_folders_that_are_refused(kept: Kept, tmp_path: Path) -> None:
    dataset, folder = kept.dataset, kept.folder
    data = only(folder, "data")
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeCache, match="is a symbolic link"):
        list(kept.loader())
    data.unlink()
    folder.chmod(0o777)
    with pytest.raises(UnsafeCache, match="other users can write"):
        list(DataLoader(dataset, cache=folder))
    with pytest.raises(NotADirectoryError):
        list(DataLoader(dataset, cache=tmp_path / "elsewhere"))
    (tmp_path / "own").mkdir(mode=0o700)
    list(DataLoader(dataset, cache=tmp_path / "own"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "own").iterdir()} == {0o600}


@pytest.mark.parametrize(
    "option", ["", 0, -5, "0GiB", True, 3.5, [], ["8GiB", "4GiB"], [None], b"\0", ("8GiB", "4GiB", "x")]
)
def test_options_that_are_no_cache(option: Any) -> None:
    with pytest.raises(penstock.InvalidOption, match="cache="):
        DataLoader(list(range(3)), cache=option)  # type: ignore[arg-type]


def test_options(tmp_path: Path) -> None:
    def tiers(option: Any) -> tuple[Tier, ...]:
        found = caches_of(option)
        assert found is not None
        return found.tiers

    assert caches_of(None) is None
    assert tiers("8GiB") == tiers(8 << 30) == (MemoryTier(8 << 30),)
    assert tiers(["1GB", "/a", ("/b", "2KiB"), ("/c", 5)]) == (
        MemoryTier(10**9),
        FolderTier(Path("/a"), None),
        FolderTier(Path("/b"), 2048),
        FolderTier(Path("/c"), 5),
    )
    assert tiers(("/b", "2KiB")) == (FolderTier(Path("/b"), 2048),)
    assert tiers("./8GiB") == (FolderTier(Path.cwd() / "8GiB", None),)
    assert tiers("~/x") == (FolderTier(Path.home() / "x", None),)
    assert tiers(("1KiB", "/a"))[1] == FolderTier(Path("/a"), None)


# --- one after the other, and at once ---------------------------------------------------------------------------------

READER = """
import sys
import torch
from penstock import DataLoader, TensorFolder
root, folder = sys.argv[1:]
loader = DataLoader(TensorFolder(root), batch_size=4, num_workers=2, cache=(folder, "1GiB"), shuffle=True)
total = sum(batch.double().sum().item() for batch in loader)
(counts,) = loader.stats().cache.values()
print(round(total, 3), counts.samples, counts.hits, counts.dropped)
"""


def read_elsewhere(root: Path, folder: Path) -> Program:
    return Program(READER, root, folder)


def test_processes_share_a_folder(tmp_path: Path) -> None:
    root, folder = tensor_files(tmp_path / "data", 200, (50,), name="{:03}"), tmp_path / "cache"
    total = round(sum(torch.load(path).double().sum().item() for path in root.iterdir()), 3)
    processes = [read_elsewhere(root, folder) for _ in range(3)]
    found = [process.communicate()[0].split() for process in processes]
    assert {float(words[0]) for words in found} == {total}
    assert {words[3] for words in found} == {"0"}
    later = read_elsewhere(root, folder).communicate()[0].split()
    assert int(later[2]) >= 200 and float(later[0]) == total


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    root, folder = tensor_files(tmp_path / "data", 3000, (4,), name="{:04}"), tmp_path / "cache"
    for _ in range(4):
        process = read_elsewhere(root, folder)
        while not process.has_ended() and not list(folder.glob("*.data")):
            time.sleep(0.002)  # what another process writes gives no event
        time.sleep(0.005)  # amid what it writes next
        process.kill()
    dataset = TensorFolder(root)
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=100))
    loader = DataLoader(dataset, batch_size=100, cache=folder)
    assert_passes(loader, wanted)
    (counts,) = loader.stats().cache.values()
    assert counts.dropped == 0


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
    dataset = TensorFolder(tensor_files(tmp_path / "data", 6))
    list(DataLoader(dataset, cache=["1MiB", tmp_path / "cache"]))  # what is opened once
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        list(DataLoader(dataset, cache=["1MiB", tmp_path / "cache"]))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("cache", ["1MiB", "folder"])
def test_errors_of_samples_are_those_of_their_files(kept: Kept, cache: str, tmp_path: Path) -> None:
    files = sorted(path for path in (tmp_path / "data").rglob("*.*"))
    whole = files[1].read_bytes()
    for path, content in zip(files[1:4], (whole[: len(whole) // 2], b"garbage", b""), strict=True):
        path.write_bytes(content)
    files[4].unlink()

    def errors(loader: Any) -> list[tuple[type, str]]:
        batches, found = iter(loader), []
        for _ in range(12):
            try:
                next(batches)
            except penstock.SampleError as error:
                found.append((type(error), str(error)))
        return found

    wanted = errors(DataLoader(kept.dataset, num_workers=2))
    loader = kept.loader(batch_size=1, num_workers=2, cache=cache if cache == "1MiB" else tmp_path / "new")
    assert errors(loader) == errors(loader) == wanted and len(wanted) == 4
    (counts,) = loader.stats().cache.values()
    assert counts.decoded == (8 if kept.decoded else 0), "no pixels are kept of a file that cannot be read"


# --- the tier itself --------------------------------------------------------------------------------------------------


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    dataset = TensorFolder(tensor_files(tmp_path / "data", 6))
    index, data = os.open(tmp_path / "index", os.O_RDWR | os.O_CREAT), os.open("/dev/full", os.O_RDWR)
    tier = CacheTier(index, data, 6, 1 << 20)
    os.close(index)
    os.close(data)
    caches = Caches((FolderTier(tmp_path, None),))
    key = next(iter(_keys(caches, dataset)))
    caches._held[key] = SampleCache([tier]), [tier]
    loader = DataLoader(dataset, batch_size=2, cache=tmp_path / "unused")
    loader._given = dataclasses.replace(loader._given, caches=caches)
    loader._executors.caches = caches
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=2)))
    assert loader.stats().cache[str(tmp_path)].error == "No space left on device"
    assert "no more after an error (No space left on device)" in loader.explain()


def test_a_disk_that_is_full_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("penstock.storage.tiers.open_private_folder", full)
    each = TensorFolder(tensor_files(tmp_path / "data", 6))
    for cache in (tmp_path / "cache", [tmp_path / "cache", "1MiB"]):
        dataset: ConcatDataset[Any] = ConcatDataset([each, each])
        loader = DataLoader(dataset, batch_size=5, cache=cache)
        with pytest.warns(UserWarning, match=r"cannot be written \(No space left on device\)") as warned:
            first = list(loader)
        assert len(warned) == 1 and warned[0].filename == __file__
        assert_same(first, list(torch.utils.data.DataLoader(dataset, batch_size=5)))
        assert_same(list(loader), first)
        counts = loader.stats().cache
        assert counts[str(tmp_path / "cache")].error == "No space left on device"
        assert len(counts) == 1 or counts["memory"].hits >= 12
    (tmp_path / "file").touch()
    monkeypatch.undo()
    with pytest.raises(NotADirectoryError):
        list(DataLoader(each, cache=tmp_path / "file"))


FULL = """
import ctypes, os, sys, warnings
from pathlib import Path
import torch
from penstock import DataLoader, TensorFolder

root, disk = map(Path, sys.argv[1:])
user, group = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000):  # CLONE_NEWUSER, CLONE_NEWNS
    print("no user namespace:", os.strerror(ctypes.get_errno())), sys.exit()
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
if libc.mount(b"tmpfs", bytes(disk), b"tmpfs", 0, b"size=256k"):
    print("no mount:", os.strerror(ctypes.get_errno())), sys.exit()

dataset = TensorFolder(root)
wanted = torch.cat(list(torch.utils.data.DataLoader(dataset, batch_size=50)))
filler = disk / "filler"
for pages in range(12):
    filler.write_bytes(b"")
    with filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) if os.statvfs(disk).f_bavail > pages else False:
            pass
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loader = DataLoader(dataset, batch_size=50, num_workers=pages % 3, cache=(disk / str(pages), "1GiB"))
        for _ in range(2):
            assert torch.equal(torch.cat(list(loader)), wanted)
    (counts,) = loader.stats().cache.values()
    assert counts.error == "No space left on device", counts
    assert len(warned) <= 1, [str(one.message) for one in warned]
    print(pages, len(warned), counts.samples, counts.dropped)
"""


def test_a_file_system_that_becomes_full(tmp_path: Path) -> None:
    """Full before the cache is opened, while it is made, or behind its first samples: a page more each time."""
    root = tensor_files(tmp_path / "data", 1000, (2,), name="{:04}")
    (tmp_path / "disk").mkdir()
    program = Program(FULL, root, tmp_path / "disk")
    lines, errors = program.communicate()
    if lines.startswith("no "):
        pytest.skip(f"it takes a small file system: {lines.strip()}")
    assert program.returncode == 0, errors
    found = [tuple(map(int, line.split())) for line in lines.splitlines()]
    assert [pages for pages, *_ in found] == list(range(12))
    assert found[0][1:] == (1, 0, 0) and found[-1][1] == 0 and found[-1][2] > 0
    assert all(dropped == 0 for *_, dropped in found)


def _keys(caches: Caches, dataset: Any) -> list[str]:
    loader = DataLoader(dataset, cache="1KiB")
    list(loader)
    assert loader._executors.caches is not None
    return list(loader._executors.caches._held)


def test_indices_that_are_refused(tmp_path: Path) -> None:
    file = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    try:
        for samples in (1 << 60, (1 << 64) - 1):
            with pytest.raises(ValueError, match="more samples than an index can hold"):
                CacheTier(file, file, samples, 10)
        os.write(file, b"x")
        with pytest.raises(ValueError, match="not one of so many samples"):
            CacheTier(file, file, 3, 10)
        folder = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(ValueError, match="not one of so many samples"):
            CacheTier(folder, file, 3, 10)
        os.close(folder)
        with pytest.raises(OSError):
            CacheTier(-1, file, 3, 10)
    finally:
        os.close(file)
    assert SampleCache([CacheTier.in_memory(3, 10)]).find(7, b"x") is None


# --- with readers -----------------------------------------------------------------------------------------------------


def test_readers_bring_what_no_tier_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[SlowTable] = []
    make_filler = _native.TensorFileFiller

    def filler(table: Any) -> Any:
        tables.append(SlowTable(table, 0.0))
        return make_filler(tables[-1])

    monkeypatch.setattr(_native, "TensorFileFiller", filler)
    start_readers(monkeypatch)
    dataset = TensorFolder(tensor_files(tmp_path / "data", 90, (50,)))
    each = (tmp_path / "data" / "00.pt").stat().st_size
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=5))
    loader = DataLoader(dataset, batch_size=5, num_workers=2, cache=40 * each)
    for epoch in range(3):
        assert_same(list(loader), wanted)
        opened = sum(tables[-1].opened())
        assert opened <= 95 if epoch == 0 else opened <= 55, "what a tier has is not opened"
    (counts,) = loader.stats().cache.values()
    assert (counts.samples, counts.bytes, counts.dropped) == (40, 40 * each, 0)
    assert loader.stats().reading.ahead + loader.stats().reading.awaited > 0


def test_shards_have_no_files_to_keep(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "data" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        noise_image(number, 30, 30).save(tmp_path / "data" / str(number % 2) / f"{number}.jpg")
    penstock.pack(ImageFolder(tmp_path / "data"), tmp_path / "packed")
    for transform in (RECIPE, negative):
        dataset = penstock.Shards(tmp_path / "packed", transform=transform)
        loader = DataLoader(dataset, batch_size=4, cache="1MiB")
        assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=4)))
        assert loader.stats().cache["memory"].samples == 0

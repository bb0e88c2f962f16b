"""The index of JPEG decoder states: the pixels that Pillow gives, whatever the index knows, holds or is made of."""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

import penstock._native as _native
from penstock import DataLoader, ImageFolder
from penstock.sources.cached import photos_of
from penstock.storage import jpeg_index
from penstock.storage.jpeg_index import JpegIndexes, Photos
from tests.forking import assert_in_child
from tests.indexed_photos import (
    FORMS,
    LOW,
    MIDDLE,
    PHOTOS,
    counts_of,
    encoded,
    only,
    pictures,
    scan_of,
    torchs,
)
from tests.python_processes import Program
from tests.same import assert_passes, assert_same

pytestmark = pytest.mark.native

RANDOM = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of the user, which is empty; half of the disk need not be free for an index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jpeg_index, "_LEFT", 0.0)
    return tmp_path / "home" / "penstock" / jpeg_index.KIND


DATASETS: dict[str, Callable[[Path, Any], Any]] = {
    "ours": ImageFolder,
    "torchvision": lambda root, recipe: torchvision.datasets.ImageFolder(root, recipe),
    "subset": lambda root, recipe: Subset(ImageFolder(root, recipe), [13, 2, 7, 5, 3, 1]),
    "concatenated": lambda root, recipe: ConcatDataset(
        [ImageFolder(root, recipe), Subset(ImageFolder(root, recipe), [2])]
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_elements_are_pillows(name: str, workers: int, tmp_path: Path) -> None:
    root = pictures(tmp_path / "data")
    middle, low = (DATASETS[name](root, recipe) for recipe in (MIDDLE, LOW))
    for dataset in (middle, low, middle):
        loader = DataLoader(dataset, batch_size=4, num_workers=workers)
        assert_passes(loader, torchs(dataset))
        counts = counts_of(loader)
        assert counts.photos > 0 and counts.hits > 0 and counts.changed == 0 and counts.error is None


@pytest.mark.parametrize("workers", [0, 2])
def test_random_crops_are_those_without_an_index(workers: int, tmp_path: Path, home: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), RANDOM)
    first = DataLoader(dataset, batch_size=4, seed=3, num_workers=workers)
    epochs = [list(first) for _ in range(3)]
    for start in (0, 1):
        again = DataLoader(dataset, batch_size=4, seed=3, num_workers=workers)
        again.set_epoch(start)
        assert_same([list(again) for _ in range(3 - start)], epochs[start:])
        assert counts_of(again).hits > 0
    assert home.stat().st_mode & 0o777 == 0o700
    assert only(home).stat().st_mode & 0o777 == 0o600


def test_what_is_known_grows_downwards(tmp_path: Path, home: Path) -> None:
    root = pictures(tmp_path / "data")
    known = []
    for recipe in (MIDDLE, LOW, MIDDLE):
        list(DataLoader(ImageFolder(root, recipe), batch_size=4, num_workers=2))
        known.append(sum(only(home).read_bytes()[64 : 64 + PHOTOS + 2]))
    assert 0 < known[0] < known[1] == known[2]


def test_explain_and_stats(tmp_path: Path, home: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    assert "index" not in loader.explain() and not home.exists()
    assert counts_of(loader) is None
    list(loader)
    # A progressive file and a PNG are not the own decoder's.
    known = PHOTOS + 1 - PHOTOS // len(FORMS)
    line = (
        f"index    of {PHOTOS + 2} photos the decoder's states of {known} are known, which saves rows above a crop "
        "(kept in the user's cache folder)"
    )
    assert line in loader.explain()
    metrics = loader.stats().metrics()
    assert metrics["penstock/jpeg_index/photos"] == known
    assert metrics["penstock/jpeg_index/bytes"] == counts_of(loader).bytes > 0


def test_recipes_without_a_crop_have_no_index(tmp_path: Path, home: Path) -> None:
    steps = transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()])
    dataset = ImageFolder(pictures(tmp_path / "data"), steps)
    list(DataLoader(dataset, batch_size=4, num_workers=2))
    assert not home.exists()


# --- files that change ------------------------------------------------------------------------------------------------


def replaced(path: Path, data: bytes) -> None:
    """Exchange the bytes of a file, and nothing else that a file system shows."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def of_another_picture(data: bytes) -> bytes:
    """Return a file of the same size and head, with the data of another picture behind it."""
    there = scan_of(data)
    other = encoded(99, subsampling=0)
    assert other[: scan_of(other)] == data[:there]
    data_of_other = other[scan_of(other) : -2][: len(data) - there - 2].rstrip(b"\xff")
    return data[:there] + data_of_other + b"\x00" * (len(data) - there - 2 - len(data_of_other)) + b"\xff\xd9"


def one_byte_off(data: bytes) -> bytes:
    at = scan_of(data) + 300
    while data[at] in (0, 255) or data[at + 1] in (0, 255) or data[at] ^ 1 == 255:
        at += 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "another picture": of_another_picture,
    "one bit": one_byte_off,
    "cut off": lambda data: data[: len(data) // 2],
    "cut off with an end": lambda data: data[: len(data) // 2].rstrip(b"\xff") + b"\xff\xd9",
    "appended to": lambda data: data + b"\0" * 100,
    "another table": lambda data: (
        data.replace(b"\xff\xdb\x00\x43\x00", b"\xff\xdb\x00\x43\x00", 1)[:30] + bytes([data[30] ^ 3]) + data[31:]
    ),
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_between_two_passes(change: str, tmp_path: Path) -> None:
    root = tmp_path / "data" / "class"
    root.mkdir(parents=True)
    for number in range(3):
        (root / f"{number}.jpg").write_bytes(encoded(number, subsampling=0))
    dataset = ImageFolder(tmp_path / "data", MIDDLE)
    loader = DataLoader(dataset, batch_size=1, num_workers=1)
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset)))
    data = (root / "1.jpg").read_bytes()
    replaced(root / "1.jpg", CHANGES[change](data))
    for _ in range(2):
        ours, theirs = iter(loader), iter(torch.utils.data.DataLoader(dataset))
        for number in range(3):
            try:
                wanted: Any = next(theirs)
            except Exception:
                assert number == 1
                with pytest.raises(Exception, match=r"1\.jpg"):
                    next(ours)
                theirs = iter(torch.utils.data.DataLoader(Subset(dataset, [2])))
            else:
                assert_same(next(ours), wanted)
    replaced(root / "1.jpg", data)
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset)))
    assert counts_of(loader).changed > 0 or change in ("appended to", "empty", "cut off")


def test_a_list_of_files_that_a_program_exchanges(tmp_path: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    assert_same(list(loader), torchs(dataset))
    dataset.samples.reverse()
    assert_passes(loader, torchs(dataset))


# --- processes --------------------------------------------------------------------------------------------------------

READ = """
import sys
import penstock
from torchvision import transforms
steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])
photos = penstock.ImageFolder(sys.argv[1], steps)
loader = penstock.DataLoader(photos, batch_size=4, num_workers=2, seed=int(sys.argv[2]))
for epoch in range(int(sys.argv[3])):
    for batch in loader:
        print(sum(int(value) for value in batch[0].flatten()[::97]), flush=True)
"""


def read_elsewhere(root: Path, seed: int, epochs: int) -> Program:
    return Program(READ, root, seed, epochs)


def test_processes_share_an_index(tmp_path: Path, home: Path) -> None:
    root = pictures(tmp_path / "data")
    both = [read_elsewhere(root, 1, 4) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    loader = DataLoader(ImageFolder(root, MIDDLE), batch_size=4, num_workers=2)
    assert_same(list(loader), torchs(ImageFolder(root, MIDDLE)))
    assert counts_of(loader).hits > 0
    assert only(home).stat().st_blocks > 0


def test_a_process_that_is_killed(tmp_path: Path, home: Path) -> None:
    root = pictures(tmp_path / "data")
    for line in (0, 9):
        process = read_elsewhere(root, line, 1000)
        for _ in range(line + 1):
            process.stdout.readline()
        process.kill()
        dataset = ImageFolder(root, MIDDLE)
        assert_same(list(DataLoader(dataset, batch_size=4, num_workers=2)), torchs(dataset))


def test_forks_share_an_index(tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    wanted = torchs(dataset)
    assert_same(list(loader), wanted)
    hits = counts_of(loader).hits

    def reads() -> None:  # torch's own operations may wait for threads of the parent's
        assert [batch[0].numpy().tobytes() for batch in loader] == [batch[0].numpy().tobytes() for batch in wanted]

    assert_in_child(reads)
    assert counts_of(loader).hits > hits


def test_copies_of_a_loader(tmp_path: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    wanted = list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert counts_of(copy) is None
    assert_same(list(copy), wanted)
    assert counts_of(copy).hits > 0


# --- the folder -------------------------------------------------------------------------------------------------------


def in_memory(loader: Any, why: str) -> None:
    """Assert that a loader gives torch's batches by an index in memory, and says why."""
    for _ in range(2):
        assert_same(list(loader), torchs(loader.dataset))
    assert counts_of(loader).hits > 0
    assert f"not kept in the user's cache folder: {why}" in loader.explain()


def writable_by_others(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)


def a_file(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("mine")


@pytest.mark.parametrize(
    ("make", "why"), [(writable_by_others, "other users can write into the cache folder"), (a_file, "")]
)
def test_a_folder_that_cannot_be_used(make: Callable[[Path], None], why: str, tmp_path: Path, home: Path) -> None:
    make(home)
    in_memory(DataLoader(ImageFolder(pictures(tmp_path / "data"), MIDDLE), batch_size=4, num_workers=2), why)
    assert home.read_text() == "mine" if home.is_file() else not list(home.iterdir())


def test_a_symbolic_link_in_the_place_of_an_index(tmp_path: Path, home: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    list(DataLoader(dataset, batch_size=4, num_workers=2))
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path = only(home)
    path.unlink()
    path.symlink_to(mine)
    in_memory(DataLoader(dataset, batch_size=4, num_workers=2), f"'{path.name}' in the cache folder is a symbolic link")
    assert mine.read_text() == "mine"


def read_only(flags: int, name: str, folder: int) -> int | None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("folder_of", lambda kind: None, "the user has no home folder"),
        ("open_own_file", read_only, "Read-only file system"),
        ("_LEFT", 1.0, "the cache folder has no room"),
    ],
)
def test_where_nothing_can_be_kept(
    name: str, value: Any, why: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg_index, name, value)
    in_memory(DataLoader(ImageFolder(pictures(tmp_path / "data"), MIDDLE), batch_size=4, num_workers=2), why)
    assert not home.exists() or not any(path.stat().st_blocks for path in home.glob("*.states"))


def test_a_damaged_file_is_made_anew(tmp_path: Path, home: Path) -> None:
    dataset = ImageFolder(pictures(tmp_path / "data"), MIDDLE)
    list(DataLoader(dataset, batch_size=4, num_workers=2))
    path = only(home)
    path.write_bytes(b"no index" + path.read_bytes()[8:])
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    assert_passes(loader, torchs(dataset))
    assert counts_of(loader).hits > 0 and only(home) == path


def test_the_folder_is_bounded(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ImageFolder(pictures(tmp_path / "one"), MIDDLE), ImageFolder(pictures(tmp_path / "other"), MIDDLE)
    loader = DataLoader(one, batch_size=4, num_workers=2)
    list(loader)
    path = only(home)
    size = path.stat().st_blocks * 512
    monkeypatch.setattr(jpeg_index, "MAX_BYTES", size + 100)
    held = DataLoader(other, batch_size=4, num_workers=2)
    in_memory(held, "the cache folder has no room")  # the other one is held
    del loader, held
    os.utime(path, (time.time() - 1000,) * 2)
    loader = DataLoader(other, batch_size=4, num_workers=2)
    assert_same(list(loader), torchs(other))
    assert only(home) != path


@pytest.mark.parametrize(
    ("mean", "size", "slot"),
    [(113_000, 400, 512), (40_000, 400, 160), (14_000, 400, 64), (5_000, 400, 0), (113_000, 1 << 24, 64), (1e5, 0, 0)],
)
def test_an_index_takes_less_than_half_a_percent(mean: float, size: int, slot: int) -> None:
    photos = Photos(size, (), packed_bytes=mean)
    assert photos.slot_bytes(1 << 30) == slot
    if slot and size < 1000:
        assert _native.JpegIndex.file_bytes(size, slot) - 4096 < 0.005 * mean * size


def test_names_that_tell_datasets_apart(tmp_path: Path) -> None:
    def named(index: int) -> tuple[str, str]:
        return str(index), str(tmp_path / str(index))

    def damaged(index: int) -> tuple[str, str]:
        raise ValueError("too many values to unpack")

    made = [
        photos_of(1000, named, 1e5),
        photos_of(1001, named, 1e5),
        photos_of(1000, lambda index: named(index + 1), 1e5),
        photos_of(1000, named, 4e4),
    ]
    known = [photos for photos in made if photos is not None]
    assert 50 < len(known[0].names) <= 64
    assert len({jpeg_index.file_name(photos, photos.slot_bytes(1 << 30)) for photos in known}) == 4
    assert JpegIndexes().describe(known) is None
    assert photos_of(1000, damaged, 1e5) is None

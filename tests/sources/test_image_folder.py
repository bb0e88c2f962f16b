"""ImageFolder against torchvision's, and the cache of its scan."""

from __future__ import annotations

import gc
import os
import pickle
import pkgutil
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from penstock import ImageFolder
from tests import same
from tests.data import noise_image

torchvision = pytest.importorskip("torchvision")
pytestmark = pytest.mark.native

HOUR_NS = 3_600_000_000_000
#: A tree that has changed within this time before a scan may change once more without a later time.
RACY_NS = 2_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "scans"


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The roots of all scans so far that listed a tree."""
    roots: list[bytes] = []
    name = "penstock._native.scan_image_folder"
    original = pkgutil.resolve_name(name)

    def scan(root: bytes, extensions: list[str], threads: int) -> Any:
        roots.append(root)
        return original(root, extensions, threads)

    monkeypatch.setattr(name, scan)
    return roots


def tree(root: Path, *files: str | bytes) -> Path:
    """Make empty files and the folders above them."""
    for name in files:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def age(root: Path, by_ns: int = HOUR_NS) -> None:
    """Set the folders' modification times back, as if the tree were older."""
    then = time.time_ns() - by_ns
    for folder, _, _ in os.walk(root):
        os.utime(folder, ns=(then, then))


def assert_same(root: Path | str) -> ImageFolder:
    expected, ours = torchvision.datasets.ImageFolder(root), ImageFolder(root)
    for name in ("classes", "class_to_idx", "samples", "imgs", "targets"):
        assert getattr(ours, name) == getattr(expected, name)
    assert (list(ours.samples), ours.labels.tolist()) == (expected.samples, expected.targets)
    assert len(ours) == len(expected)
    return ours


def test_nested_and_odd_names(tmp_path: Path) -> None:
    suffixes = torchvision.datasets.folder.IMG_EXTENSIONS
    root = tree(
        tmp_path / "data", *(f"b/suffix{suffix}" for suffix in suffixes),
        "b/1.jpg", "b/10.jpg", "b/2.JPG", "b/x.JpEg", "b/x.txt", "b/.jpg", "b/jpg", "b/x.jpg.bak", "b/a.webp",
        "a/z.png", "a/c/1.png", "a/c-d/1.png", "a/c/d/1.tiff", "a/c.d/1.tif", "a/c d/1.bmp", "a/C/1.pgm",
        "a-b/1.ppm", "a b/name with spaces.jpg", "ä/ü.jpg", "ä/\U0001f600.jpg", "ä/\uffee.jpg", "ä/new\nline.jpg",
        "a/folder.jpg/1.jpg", "in root.jpg", "a/deep/er/and/deeper/1.jpg",
    )  # fmt: skip
    ours = assert_same(root)
    assert ours.samples[-1] == (str(root / "ä" / "\U0001f600.jpg"), 4)
    assert_same(f"{root}/")
    # Names that are not UTF-8 sort as Python's strings.
    names = [b"\xff", b"\x80", b"\xc3", b"\xc3\xa9", b"\xc3A", b"\xe2\x82", b"\xe2\x82\xac", b"\xef\xbf\xae",
             b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f\xc3\xa9", b"\xf5\x80", b"a", b"\xc0\x80", b"a\xff", b"a\xc3\xa9"]  # fmt: skip # noqa: E501
    tree(tmp_path / "bytes", *(b"c/" + name + b".jpg" for name in names), *(name + b"/x.jpg" for name in names))
    assert_same(tmp_path / "bytes")


PARTS = st.text(st.sampled_from("aB-./é\udcff\U0001f600 "), min_size=1, max_size=4)
NAMES = st.lists(PARTS, min_size=2, max_size=4).map("/".join)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NAMES, min_size=1, max_size=8))
def test_any_tree(tmp_path: Path, names: list[str]) -> None:
    root = tmp_path / "any"
    shutil.rmtree(root, ignore_errors=True)
    for name in names:
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        tree(root, "/".join(["class", *parts, "x.jpg"]), *["/".join([*parts, "y.png"])] * (len(parts) > 0))
    assert_same(root)


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside", "far/1.jpg", "far/deep/2.jpg", "3.png")
    root = tree(tmp_path / "data", "a/1.jpg", "b/1.jpg", "b/n/1.jpg")
    links: dict[str, str | Path] = {
        "a/far": outside / "far", "a/file.jpg": outside / "3.png", "a/again.jpg": "1.jpg", "a/dangling.jpg": "nowhere",
        "a/dangling": "nowhere", "c": outside, "d": "b", "nothing": "nowhere",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "a" / "fifo.jpg")
    assert_same(root)
    (tmp_path / "link").symlink_to(root)
    assert_same(tmp_path / "link")
    cycle = tree(tmp_path / "cycle", "a/1.jpg", "a/n/2.jpg")
    (cycle / "a" / "n" / "up").symlink_to(cycle / "a")
    (cycle / "a" / "self.jpg").symlink_to("self.jpg")  # ELOOP: a file, for os.walk too
    found = [os.path.relpath(path, cycle) for path, _ in ImageFolder(cycle).samples]
    assert found == ["a/1.jpg", "a/self.jpg", "a/n/2.jpg"]


def test_relative_root_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "data", "a/1.jpg")
    monkeypatch.chdir(tmp_path)
    assert_same("data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert assert_same("~/data").root == str(tmp_path / "data")


def test_errors_are_torchvisions_with_what_to_do(tmp_path: Path) -> None:
    root, classes = tree(tmp_path / "data", "x.jpg"), tree(tmp_path / "b", "full/1.jpg", "none/1.txt", "empty/n/README")
    message = r"Found no valid file for the classes empty, none\. Supported extensions are: \.jpg, .*\.webp"
    for where, error, words in (
        (root, FileNotFoundError, f"Couldn't find any class folder in {root}"),
        (root / "nowhere", FileNotFoundError, r"No such file or directory.*nowhere"),
        (root / "x.jpg", NotADirectoryError, r"x\.jpg"),
        (classes, FileNotFoundError, message),
    ):
        for make in (torchvision.datasets.ImageFolder, ImageFolder):
            with pytest.raises(error, match=words):
                make(where)
    with pytest.raises(TypeError, match="root must be a str"):
        ImageFolder(os.fsencode(root))  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "a/1.jpg")
    folder = os.open(root / "a", os.O_RDONLY)
    for _ in range(20):  # deeper than PATH_MAX: fails for root too, who may read every folder
        os.mkdir("d" * 250, dir_fd=folder)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    with pytest.raises(OSError, match=rf"File name too long: '{root}/a/ddd"):
        ImageFolder(root)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tree(tmp_path / "photos", *(f"class{number % 2}/{number}.png" for number in range(5)))
    for number, mode in enumerate(("RGB", "L", "P", "RGBA", "1")):
        noise_image(number, 5, 7).convert(mode).save(root / f"class{number % 2}" / f"{number}.png")
    return root


def test_samples_are_torchvisions(photos: Path) -> None:
    def as_array(image: Image.Image) -> np.ndarray[Any, Any]:
        assert image.mode == "RGB"
        return np.asarray(image)

    expected = torchvision.datasets.ImageFolder(photos, as_array, lambda label: label + 10)
    ours = ImageFolder(photos, as_array, lambda label: label + 10)
    for index in (*range(5), -1, -5, np.int64(2)):
        same.assert_same(ours[index], expected[index])
    image, label = ImageFolder(photos)[-1]
    assert (image.mode, label) == ("RGB", 1)
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"sample index {index} is out of range: there are 5 samples"):
            ours[index]
    with pytest.raises(TypeError):
        ours["0"]  # type: ignore[index]
    assert repr(ours) == f"ImageFolder('{photos}': 5 files in 2 classes)"


def test_samples_is_a_sequence(photos: Path) -> None:
    expected, samples = torchvision.datasets.ImageFolder(photos).samples, ImageFolder(photos).samples
    for which in (slice(1, 4), slice(None, None, -2), -1):
        assert samples[which] == expected[which]
    assert expected[3] in samples and samples.index(expected[3]) == 3
    assert samples == ImageFolder(photos).samples
    for other in (expected[:-1], [*expected[:-1], ("x", 0)], 5):
        assert samples != other


def test_pickle_lists_nothing(photos: Path, cache: Path, listings: list[bytes]) -> None:
    ours = ImageFolder(photos, target_transform=str)
    assert ours.targets == [0, 0, 0, 1, 1]
    held = pickle.dumps(ours)
    shutil.rmtree(cache, ignore_errors=True)
    again = pickle.loads(held)
    assert len(listings) == 1
    for name in ("samples", "classes", "targets", "class_to_idx"):
        assert getattr(again, name) == getattr(ours, name)
    assert (again[3][1], repr(again)) == ("1", repr(ours))


def test_samples_cost_few_objects(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", *(f"class/{i:04}.jpg" for i in range(3000)))
    before = len(gc.get_objects())
    ours = ImageFolder(root)
    assert len(gc.get_objects()) - before < 100 and sys.getsizeof(ours.samples) < 1000
    assert ours.samples[1234] == (str(root / "class" / "1234.jpg"), 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An old tree with nested folders and a link to a folder outside."""
    tree(tmp_path / "outside", "x/1.jpg")
    root = tree(tmp_path / "data", "a/1.jpg", "a/n/2.jpg", "b/3.jpg", "b/other.txt")
    (root / "b" / "link").symlink_to(tmp_path / "outside")
    (root / "b" / "later").symlink_to(tmp_path / "later")
    age(root)
    age(tmp_path / "outside")
    return root


def test_second_start_reads_one_file(root: Path, tmp_path: Path, cache: Path, listings: list[bytes]) -> None:
    first = ImageFolder(root)
    assert len(listings) == len(list(cache.iterdir())) == 1
    opened: list[str] = []
    watching = [True]
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and watching[0] else None)
    second = ImageFolder(str(root))
    watching[0] = False
    assert len(listings) == 1
    assert [path for path in opened if path.startswith(str(tmp_path)) or ".npz" in path] == [
        str(cache), next(cache.iterdir()).name,
    ]  # fmt: skip
    assert (second.samples, second.classes) == (first.samples, first.classes)
    assert_same(root)
    assert len(listings) == 1


def switched_link(root: Path) -> None:
    tree(root.parent / "elsewhere", "q/1.jpg")
    age(root.parent / "elsewhere")
    os.rename(root.parent / "outside", root.parent / "gone")
    os.symlink("elsewhere", root.parent / "outside")


def hidden_change(root: Path) -> None:
    before = (root / "a" / "n").stat().st_mtime_ns
    tree(root, "a/n/3.jpg")
    os.utime(root / "a" / "n", ns=(before, before))


@pytest.mark.parametrize(
    "change",
    [
        lambda root: tree(root, "a/4.jpg"),
        lambda root: tree(root, "a/n/4.jpg"),
        lambda root: tree(root, "c/1.jpg"),
        lambda root: tree(root, "a/n/deep/1.jpg"),
        lambda root: (root / "a/n/2.jpg").unlink(),
        lambda root: (root / "a/1.jpg").rename(root / "a/renamed.jpg"),
        lambda root: (root / "a").rename(root / "z"),
        lambda root: shutil.rmtree(root / "a"),
        lambda root: tree(root.parent / "outside", "y.jpg"),
        lambda root: tree(root.parent / "later", "z.jpg"),
        switched_link,
        hidden_change,
    ],
)
def test_changes_are_noticed(root: Path, listings: list[bytes], change: Callable[[Path], object]) -> None:
    before = list(assert_same(root).samples)
    change(root)
    assert list(assert_same(root).samples) != before
    assert len(listings) == 2


def test_a_tree_changed_just_before_the_scan_is_not_kept(root: Path, cache: Path, listings: list[bytes]) -> None:
    for by_ns in (RACY_NS // 2, -HOUR_NS):  # a clock that goes wrong is no reason to trust
        age(root / "a" / "n", by_ns=by_ns)
        ImageFolder(root)
        assert not list(cache.glob("*"))
    age(root / "a" / "n", by_ns=RACY_NS + 1)
    ImageFolder(root)
    ImageFolder(root)
    assert len(listings) == 3


def rewrite(entry: Path, **changed: Any) -> None:
    with np.load(entry) as file:
        arrays = dict(file)
    np.savez(entry, **{name: array for name, array in (arrays | changed).items() if array is not None})


NPY = b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}".ljust(70)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry.write_bytes(b""),
        lambda entry: entry.write_bytes(b"garbage"),
        lambda entry: entry.write_bytes(pickle.dumps([1, 2])),
        lambda entry: entry.write_bytes(entry.read_bytes()[:-30]),
        lambda entry: entry.write_bytes(entry.read_bytes().replace(b"a/n/2.jpg", b"a/n/9.jpg")),
        lambda entry: entry.write_bytes(NPY),
        lambda entry: (entry.unlink(), entry.mkdir()),
        lambda entry: rewrite(entry, names=None),
        lambda entry: rewrite(entry, names=np.frombuffer(b"a/1.jpg\0a/2.jpg", np.uint8)),
        lambda entry: rewrite(entry, names=np.frombuffer(b"a/1.jpg\0", np.uint8)),
        lambda entry: rewrite(entry, counts=np.array([-1, 5])),
        lambda entry: rewrite(entry, counts=np.array([4])),
        lambda entry: rewrite(entry, counts=np.array([2.0, 2.0])),
        lambda entry: rewrite(entry, folders=np.zeros(0, np.uint8), stamps=np.zeros((0, 4), np.int64)),
        lambda entry: rewrite(entry, stamps=np.zeros((1, 4), np.int64)),
        lambda entry: rewrite(entry, stamps=np.zeros((16, 2), np.int64)),
    ],
)
def test_a_damaged_cache_is_none(root: Path, cache: Path, listings: list[bytes], damage: Any) -> None:
    ImageFolder(root)
    entry = next(cache.iterdir())
    damage(entry)
    assert_same(root)
    assert len(listings) == 2
    assert_same(root)
    assert len(listings) == 2 + entry.is_dir()  # written anew


def test_no_cache_folder(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert_same(root)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert_same(root)
    assert len(list((tmp_path / "home" / ".cache" / "penstock" / "scans").iterdir())) == 1
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert_same(root)


def test_each_root_has_its_own_entry(root: Path, cache: Path, listings: list[bytes]) -> None:
    shutil.copytree(root, root.with_name("copy"), symlinks=True)
    age(root.with_name("copy"))
    for _ in range(2):
        for name in ("data", "copy"):
            assert len(ImageFolder(root.with_name(name))) == 4
    assert len(listings) == len(list(cache.iterdir())) == 2


def test_the_cache_folder_stays_small(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(cache, *(f"{i}.npz" for i in range(70)), "new.tmp", "old.tmp", "README")
    for i in range(70):
        os.utime(cache / f"{i}.npz", ns=(0, i * HOUR_NS))
    os.utime(cache / "old.tmp", ns=(0, 0))
    ImageFolder(root)
    kept = {path.name for path in cache.iterdir()}
    entries = {name for name in kept if name.endswith(".npz")}
    assert kept - entries == {"new.tmp", "README"}
    assert len(entries) == 64 and {f"{i}.npz" for i in range(7, 70)} < entries
    monkeypatch.setattr("penstock.system.cache_folder.MAX_BYTES", 0)
    for i in range(70):
        (cache / f"{i}.npz").write_bytes(b"x")
    tree(root, "a/5.jpg")
    age(root)
    ImageFolder(root)
    assert [path for path in cache.iterdir() if path.suffix == ".npz"] == [cache / max(entries, key=len)]

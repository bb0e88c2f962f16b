"""JPEG files that OpenCV reads in our workers give the arrays that they give elsewhere, whoever decodes them."""

from __future__ import annotations

import os
import pkgutil
import random
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch.utils.data as tud
from PIL import Image

import penstock
from tests.carriers_under_test import options
from tests.data import Made
from tests.hooks.jpegs import FILES, PLAIN, encoded, jpeg, picture
from tests.in_workers import Worker, answered, within
from tests.jpegs import PHOTOS, SAMPLINGS, damaged, encode, extreme
from tests.waiting import run_in_threads

cv2: Any = pytest.importorskip("cv2")
imread = cv2.imread  # as a program has it that imports the function by name
pytestmark = pytest.mark.native

FLAGS = (-1, 0, 1, 4, 1 | 128, 2, 6, 0 | 128, *([256] if hasattr(cv2, "IMREAD_COLOR_RGB") else []))
SIZES = ((1, 1), (2, 3), (7, 9), (16, 16), (33, 17), (131, 83), (3, 260))


def row(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def described(array: Any) -> Any:
    """Return all that a program sees of an array, or of what was raised."""
    if type(array) is not np.ndarray:
        return array
    flags = array.flags
    owns = (flags.owndata, flags.writeable, flags.aligned, flags.c_contiguous, flags.f_contiguous, array.base is None)
    return array.dtype, array.shape, array.strides, owns, array.tobytes()


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return described(call(*arguments, **named))
    except Exception as error:
        return type(error), str(error)


def natively_outcome(name: str, *arguments: Any, worker: Callable[..., Any] = within, **named: Any) -> Any:
    return worker(lambda: outcome(getattr(cv2, name), *arguments, **named))


def same_as_opencv(data: bytes, *flags: int) -> Any:
    """Assert that files in memory are decoded as by OpenCV in our workers, and return who did it."""
    worker, answered = Worker(), 0
    for one in flags or FLAGS:
        wanted = outcome(cv2.imdecode, row(data), one)
        found = natively_outcome("imdecode", row(data), one, worker=worker)
        before, answered = answered, worker.answered
        # OpenCV leaves the rows that a file lacks as it has found the memory.
        assert found == wanted or (answered == before and found[:-1] == wanted[:-1]), one
    return worker.calls["cv2.imdecode"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_files_of_pillow(sampling: str) -> None:
    for seed, (width, height) in enumerate(SIZES):
        data = encode(width, height, sampling, seed, quality=(30, 75, 92, 100)[seed % 4])
        counts = same_as_opencv(data)
        assert counts.answered == len(FLAGS) - (3 if sampling == "rgb" else 0), counts  # grey of RGB is OpenCV's


@pytest.mark.parametrize("sampling", [411, 420, 422, 440, 444])
def test_files_of_opencv(sampling: int) -> None:
    chosen = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    for seed, (width, height) in enumerate(SIZES):
        options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, chosen, cv2.IMWRITE_JPEG_QUALITY, 60 + 8 * (seed % 5)]
        options += [cv2.IMWRITE_JPEG_RST_INTERVAL, seed % 3, cv2.IMWRITE_JPEG_OPTIMIZE, seed % 2]
        done, data = cv2.imencode(".jpg", np.asarray(picture(width, height, seed)), options)
        assert done
        counts = same_as_opencv(data.tobytes())
        assert bool(counts.answered) is (sampling != 411)


@pytest.mark.parametrize("name", FILES)
def test_other_files(name: str) -> None:
    assert bool(same_as_opencv(FILES[name]).answered) is (name in PLAIN)


def test_extreme_coefficients() -> None:
    same_as_opencv(extreme())


@pytest.mark.filterwarnings("ignore")
def test_damaged_files() -> None:
    rng, answered = random.Random(5), 0
    for number in range(600):
        sampling = SAMPLINGS[number % len(SAMPLINGS)]
        data = damaged(encode(70, 50, sampling, number, progressive=number % 9 == 8), rng)
        if data:
            answered += same_as_opencv(data, (1, 0, -1)[number % 3]).answered
    assert 20 < answered < 550


def exif_of(orientation: int, **more: Any) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a description", orientation
    for name, value in more.items():
        exif[int(name[1:])] = value
    return exif


@pytest.mark.parametrize("orientation", range(10))
def test_orientations(orientation: int) -> None:
    for sampling in ("4:2:0", "grey"):
        data = encode(35, 22, sampling, exif=exif_of(orientation), icc_profile=b"a profile")
        assert same_as_opencv(data).answered == len(FLAGS)


def test_damaged_metadata() -> None:
    data = encode(35, 22, "4:2:0", exif=exif_of(6, _271="a maker"))
    start = data.index(b"Exif")
    rng = random.Random(2)
    for _ in range(300):
        out = bytearray(data)
        out[start + rng.randrange(80)] = rng.randrange(256)
        same_as_opencv(bytes(out), 1)
    two = encode(35, 22, "4:2:0", exif=exif_of(3))
    at = two.index(b"\xff\xe1")
    segment = two[at : at + 2 + int.from_bytes(two[at + 2 : at + 4], "big")]
    for both in (data[:2] + segment + data[2:], data[: start - 4] + segment + data[start - 4 :]):
        same_as_opencv(both, 1)


@pytest.mark.parametrize(
    "flags", [*range(-3, 9), 16, 17, 32, 33, 64, 65, 128, 129, 255, 256, 257, 258, 260, 263, 384, 512]
)
def test_flags(flags: int) -> None:
    for data in (encode(35, 22, "4:2:0", exif=exif_of(6)), encode(35, 22, "grey", exif=exif_of(6))):
        same_as_opencv(data, flags)


def test_arguments(tmp_path: Path) -> None:
    data, path = jpeg(), tmp_path / "ä.jpg"
    path.write_bytes(data)
    files: list[Any] = [str(path), path, PurePosixPath(path), os.fsencode(path), str(path) + "\0", 3, None]
    for file in [*files, str(tmp_path), str(tmp_path / "none")]:
        assert natively_outcome("imread", file) == outcome(cv2.imread, file)
    for arguments, named in (
        ((str(path), 0), {}), ((str(path),), {"flags": -1}), ((), {"filename": str(path)}), ((), {}),
        ((str(path), "1"), {}), ((str(path), True), {}), ((str(path), np.int64(0)), {}), ((str(path), 1, 2, 3), {}),
    ):  # fmt: skip
        assert natively_outcome("imread", *arguments, **named) == outcome(cv2.imread, *arguments, **named)
    whole = row(data)
    spread = np.zeros(2 * len(data), np.uint8)
    spread[::2] = whole
    for buffer in (whole.copy(), whole[None], whole[:, None], spread[::2], whole.view(np.int8), data, list(data[:9])):
        assert natively_outcome("imdecode", buffer, 1) == outcome(cv2.imdecode, buffer, 1)
    assert natively_outcome("imdecode", whole) == outcome(cv2.imdecode, whole)
    image = np.zeros((70, 90, 3), np.uint8)
    assert natively_outcome("imread", str(path), image) == outcome(cv2.imread, str(path), image)


def test_files_by_path(tmp_path: Path) -> None:
    worker = Worker()
    for number, data in enumerate(FILES.values()):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        for flags in FLAGS:
            wanted = outcome(cv2.imread, str(path), flags)
            assert natively_outcome("imread", str(path), flags, worker=worker) == wanted
    assert worker.answered > 50


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photos beside the project")
def test_photos() -> None:
    worker = Worker()
    for path in sorted(path for path in PHOTOS.rglob("*") if path.is_file())[::23]:
        for flags in (0, 1):
            wanted = outcome(cv2.imread, str(path), flags)
            assert natively_outcome("imread", str(path), flags, worker=worker) == wanted
    counts = worker.calls["cv2.imread"]
    assert counts.answered > 4 * sum(one.calls for one in counts.refused.values())


def test_an_array_belongs_to_the_program() -> None:
    first = answered(lambda: cv2.imdecode(row(jpeg()), 1))
    before = first.copy()
    first[:] = 7
    second, turned = answered(lambda: (again := cv2.imdecode(row(jpeg()), 1), cv2.cvtColor(again, cv2.COLOR_BGR2RGB)))
    assert np.array_equal(second, before) and (first == 7).all()
    assert np.array_equal(turned, before[..., ::-1])


def test_threads() -> None:
    files = [encode(60 + seed, 50, SAMPLINGS[seed % 4], seed) for seed in range(8)]
    wanted = [cv2.imdecode(row(data), 1) for data in files]

    def decode() -> None:
        for _ in range(20):
            for data, one in zip(files, wanted, strict=True):
                assert np.array_equal(cv2.imdecode(row(data), 1), one)

    run_in_threads(4, lambda _: Worker()(decode))


# --- in loaders -------------------------------------------------------------------------------------------------------

SIZE = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for i in range(SIZE):
        image = picture(90, 70, i)
        data = encoded(image, "PNG") if i == 3 else jpeg(image, progressive=i == 5, exif=exif_of(1 + i % 4))
        (root / f"{i}.jpg").write_bytes(data)
    return root


WAYS = options("caller", "threads, 2", "processes, 2")


@WAYS
def test_batches_are_torchs(folder: Path, options: dict[str, Any]) -> None:
    def read(index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(f"{folder}/{index}.jpg"), cv2.COLOR_BGR2RGB)
        return image, imread(f"{folder}/{index}.jpg", 0), cv2.getNumThreads()

    theirs = list(tud.DataLoader(Made(read, SIZE), 4, num_workers=options.get("num_workers", 0)))
    loader: Any = penstock.DataLoader(Made(read, SIZE), 4, **options)
    for _ in range(2):
        for ours, wanted in zip(loader, theirs, strict=True):
            assert all(bool((one == other).all()) for one, other in zip(ours, wanted, strict=True))
    counts = loader.stats().calls["cv2.imread"]
    assert counts.answered == 4 * (SIZE - 2)
    assert counts.refused == {
        "not a JPEG": (4, example(folder, 3)),
        "JPEG: progressive, in several scans, unusual or damaged": (4, example(folder, 5)),
    }
    assert "calls    cv2.imread: 40 answered natively; 4 OpenCV's own (" in loader.explain()
    assert cv2.imread is imread and type(cv2.imread) is type(len)


def example(folder: Path, number: int) -> str:
    path = f"{folder}/{number}.jpg"
    return path if len(path) <= 40 else f"...{path[-37:]}"


def test_only_workers_are_answered(folder: Path) -> None:
    loader = penstock.DataLoader(Made(lambda index: cv2.imread(f"{folder}/{index}.jpg"), 2), 2)
    for batch in loader:
        assert type(cv2.imread) is not type(len)
        assert np.array_equal(cv2.imread(f"{folder}/0.jpg"), batch[0].numpy())
    assert loader.stats().calls["cv2.imread"].answered == 2


def test_a_function_of_the_programs_own_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Made(lambda index: cv2.imread(f"{folder}/{index}.jpg"), SIZE)
    monkeypatch.setattr(cv2, "imread", lambda path: np.ones(3))
    for _ in range(2):
        batches: Any = list(penstock.DataLoader(dataset, 4))
        assert [batch.tolist() for batch in batches] == [[[1.0] * 3] * 4] * 3


@pytest.fixture
def _looked_at_anew() -> Iterator[None]:
    looked = pkgutil.resolve_name("penstock.hooks.opencv.decoded_alike")
    looked.cache_clear()
    yield
    looked.cache_clear()


@pytest.mark.usefixtures("_looked_at_anew")
def test_another_opencv_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "penstock.hooks.opencv._decode"
    monkeypatch.setattr(other, lambda data, flags: np.zeros((3, 3), np.uint8))
    counts = same_as_opencv(jpeg())
    assert counts.answered == 0
    assert counts.refused == {"this OpenCV decodes JPEG in another way": (len(FLAGS), "")}


@pytest.mark.usefixtures("_looked_at_anew")
def test_limits_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "100")
    assert same_as_opencv(jpeg()).answered == 0

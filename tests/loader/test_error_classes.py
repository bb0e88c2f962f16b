"""Errors of samples are also what torch's loader, over the plain Python dataset, would have raised there."""

from __future__ import annotations

import builtins
import copy
import io
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, UnidentifiedImageError
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1

import penstock
from penstock.errors import like, pair
from tests.corrupt import npy, saved
from tests.data import Made, noise_image, tensor_files
from tests.resources import open_files

TORCH: Any = torch.utils.data.DataLoader
OURS: Any = penstock.DataLoader


def raised(act: Callable[[], Any]) -> Any:
    with pytest.raises(BaseException) as caught:
        act()
    return caught.value


def encoded(form: str, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    noise_image(5, 30, 40).convert(mode).save(out, form)
    return out.getvalue()


PNG = encoded("PNG")
IMAGES: dict[str, Any] = {
    "missing": None, "folder": "folder", "loop": "loop", "under-a-file": "under-a-file",
    "empty": b"", "garbage": b"garbage here", "truncated": encoded("JPEG")[:-200], "jpeg-head": encoded("JPEG")[:30],
    "png-truncated": PNG[:-100], "png-head": PNG[:20], "png-crc": PNG[:60] + bytes([PNG[60] ^ 1]) + PNG[61:],
    "tiff-truncated": encoded("TIFF")[:-500], "tiff-head": encoded("TIFF")[:9], "bmp-truncated": encoded("BMP")[:-50],
    "bmp-head": encoded("BMP")[:20], "gif-truncated": encoded("GIF")[:60], "ppm-truncated": encoded("PPM")[:20],
    "ppm-size": b"P6\n12 x\n255\n", "bomb": "bomb",
}  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    for i in range(6):
        noise_image(i, 30, 40).save(tmp_path / "class" / f"{i}.jpg")
    return tmp_path


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        return error


def spoil(path: Path, content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)
    elif content == "under-a-file":
        (path.parent / "file").write_bytes(b"")
        path.symlink_to("file/below")
    elif content == "bomb":
        Image.new("L", (400, 300)).save(path)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)


NATIVE = v1.Compose([v1.Resize((16, 16)), v1.PILToTensor()])
ASSISTED = v1.Compose([v1.RandomRotation(3), v1.Resize((16, 16)), v1.PILToTensor()])


@pytest.mark.parametrize("damage", IMAGES)
@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder], ids=["torchvision", "ours"])
def test_images(photos: Path, kind: Any, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photos / "class" / "3.jpg"
    theirs = torchvision.datasets.ImageFolder(str(photos), NATIVE)
    datasets = [kind(str(photos), transform) for transform in (NATIVE, ASSISTED)]
    content = IMAGES[damage]
    spoil(path, content, monkeypatch)
    want = raised(lambda: list(TORCH(theirs, 4)))
    ways: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2, "worker_method": "thread"}]
    for dataset in datasets:
        for options in ways:
            got: Any = raised(lambda dataset=dataset, options=options: list(OURS(dataset, 4, **options)))  # type: ignore[misc]
            assert isinstance(got, type(want)), (options, want, got)
            if kind is penstock.ImageFolder or dataset is datasets[0]:
                assert isinstance(got, penstock.CorruptSample if isinstance(content, bytes) else penstock.SampleError)
                assert str(path) in str(got) and not any(words in str(got) for words in ("\n", ".;"))
            if isinstance(want, OSError):
                assert (got.errno, got.strerror, got.filename) == (want.errno, want.strerror, want.filename)
    if kind is penstock.ImageFolder:
        position = datasets[0].samples[:].index((str(path), 0))
        assert isinstance(raised(lambda: datasets[0][position]), type(want))


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("missing", FileNotFoundError), ("folder", IsADirectoryError), ("truncated", OSError), ("ppm-size", ValueError),
        ("bomb", Image.DecompressionBombError), ("garbage", UnidentifiedImageError), ("empty", UnidentifiedImageError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["process", None])
def test_images_in_worker_processes(
    photos: Path, damage: str, kind: Any, method: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's worker sends the class of the error by reference, and the parent makes another error of it."""
    dataset = penstock.ImageFolder(photos, v1.Lambda(np.asarray))
    spoil(photos / "class" / "3.jpg", IMAGES[damage], monkeypatch)
    got = raised(lambda: list(OURS(dataset, 4, num_workers=1, worker_method=method)))
    assert isinstance(got, kind) and isinstance(got, penstock.SampleError)
    assert str(photos / "class" / "3.jpg") in str(got)


def test_a_path_that_no_file_can_have(photos: Path) -> None:
    want, dataset = (torchvision.datasets.ImageFolder(str(photos), NATIVE) for _ in range(2))
    dataset.samples[3] = (str(photos / "class" / "3\0.jpg"), 0)
    for loader in (TORCH, OURS):
        with pytest.raises(ValueError, match="embedded null byte"):
            list(loader(dataset, 4))
    iterator = iter(OURS(dataset, batch_size=1, num_workers=2))
    good: list[Any] = [raised(lambda: next(iterator)) if i == 3 else next(iterator)[0] for i in range(6)]
    assert all(torch.equal(good[i][0], want[i][0]) for i in range(6) if i != 3)


class Foreign:
    """What torch.load(weights_only=True) refuses."""


def plain(root: Path, suffix: str = ".pt", labels: dict[str, int] | None = None) -> Made:
    """Return one tensor a file, as the tutorials read it."""

    def get(index: int) -> Any:
        path = root / f"{index}{suffix}"
        x = torch.load(path) if suffix == ".pt" else torch.from_numpy(np.load(path))
        return x if labels is None else (x, labels[str(index)])

    return Made(get, 6)


GOOD, OLD = saved(torch.zeros(50)), saved(torch.zeros(50), _use_new_zipfile_serialization=False)
TENSORS: dict[str, tuple[str, Any]] = {
    "missing": (".pt", None), "folder": (".pt", "folder"), "loop": (".pt", "loop"), "empty": (".pt", b""),
    "byte": (".pt", b"P"), "text": (".pt", b"just text"), "png": (".pt", encoded("PNG")), "head": (".pt", GOOD[:100]),
    "elements": (".pt", GOOD[:-800]), "end": (".pt", GOOD[:-1]), "no-zip": (".pt", b"PK\x03\x04 no zip"),
    "old-elements": (".pt", OLD[:-9]), "old-head": (".pt", OLD[:80]), "old-byte": (".pt", OLD[:1]),
    "foreign": (".pt", saved(Foreign())), "shape": (".pt", saved(torch.zeros(49))),
    "no-pickle": (".pt", GOOD.replace(b"data.pkl", b"dato.pkl")),
    "npy-missing": (".npy", None), "npy-folder": (".npy", "folder"), "npy-empty": (".npy", b""),
    "npy-text": (".npy", b"just text"), "npy-magic": (".npy", b"\x93NUMPY"), "npy-cut-magic": (".npy", b"\x93NU"),
    "npy-head": (".npy", npy(np.zeros(50))[:60]), "npy-elements": (".npy", npy(np.zeros(50))[:-8]),
    "npy-objects": (".npy", npy(np.array([None], dtype=object))),
    "npy-version": (".npy", b"\x93NUMPY\x09\x00" + bytes(200)),
}  # fmt: skip


#: What the words of torch and of zip have, and a sentence of ours has not.
UNSAID = (".;", "\x1b", "\n", "Weights only", "PyTorch 2.6", "miniz", "  ")


@pytest.mark.parametrize("damage", TENSORS)
def test_tensors(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix, content = TENSORS[damage]
    tensor_files(tmp_path, 6, (50,), "{}")
    for i in range(6):
        np.save(tmp_path / f"{i}.npy", np.full(50, float(i)))
    ids = [str(i) for i in range(6)]
    spoil(tmp_path / f"3{suffix}", content, monkeypatch)
    want = raised(lambda: list(TORCH(plain(tmp_path, suffix), 4)))
    for transform in (None, torch.Tensor.clone):
        dataset = penstock.TensorFolder(tmp_path, ids, suffix=suffix, transform=transform)
        for workers, method in ((0, None), (2, "thread"), (0, "process")):
            got: Any = raised(lambda w=workers, m=method, d=dataset: list(OURS(d, 4, num_workers=w, worker_method=m)))  # type: ignore[misc]
            assert isinstance(got, type(want)), (want, got)
            if isinstance(want, OSError):
                assert (got.errno, got.filename) == (want.errno, str(want.filename))
        if damage != "shape":
            before = open_files()
            got = raised(lambda d=dataset: d[3])  # type: ignore[misc]
            assert isinstance(got, (type(want), penstock.SampleError))
            assert open_files() - before == set()
            if isinstance(content, bytes) and suffix == ".pt" and isinstance(got, penstock.SampleError):
                assert str(got).startswith("sample '3' (") and not any(words in str(got) for words in UNSAID), got


def test_labels(tmp_path: Path) -> None:
    tensor_files(tmp_path, 6, name="{}")
    labels = {str(i): i for i in range(6) if i != 3}
    for loader, dataset in (
        (TORCH, plain(tmp_path, labels=labels)),
        (OURS, penstock.TensorFolder(tmp_path, map(str, range(6)), labels)),
    ):
        with pytest.raises(KeyError):
            list(loader(dataset, 4))


@pytest.mark.parametrize(
    ("content", "kind"), [(b"", EOFError), (b"text", ValueError), (npy(np.zeros(9))[:-1], ValueError)]
)
def test_arrays(tmp_path: Path, content: bytes, kind: Any) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    for path, error in ((tmp_path / "a.npy", kind), (tmp_path / "b.npy", FileNotFoundError)):
        assert isinstance(raised(lambda path=path: np.load(path, mmap_mode="r")), error)  # type: ignore[misc]
        got = raised(lambda path=path: penstock.Arrays(path))  # type: ignore[misc]
        assert isinstance(got, error) and isinstance(got, penstock.SampleError)


ROWS = TensorDataset(torch.arange(8.0))
NO_INDICES = (
    100, -100, 16, -17, "two", 1.5, None, 2**70, (1,), b"a", ..., np.float64(1), [1], [1, 2], torch.tensor([1]),
    slice(0, 2),
)  # fmt: skip


@pytest.mark.parametrize("index", NO_INDICES, ids=repr)
@pytest.mark.parametrize(
    "dataset", [ROWS, ConcatDataset([ROWS, ROWS]), Subset(ROWS, [1, 2, 30])], ids=["rows", "concat", "subset"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_indices(dataset: Any, index: Any) -> None:
    want = outcome(lambda: list(TORCH(dataset, 2, sampler=[0, index])))
    for workers in (0, 1):
        got = outcome(lambda w=workers: list(OURS(dataset, 2, sampler=[0, index], num_workers=w)))  # type: ignore[misc]
        if isinstance(want, Exception):
            assert isinstance(got, type(want)), (want, got)
        else:
            assert str(got) == str(want)


def test_an_object_in_the_file(tmp_path: Path) -> None:
    torch.save(Foreign(), tmp_path / "x.pt")
    with pytest.raises(pickle.UnpicklingError) as caught:
        list(OURS(penstock.TensorFolder(tmp_path)))
    assert str(caught.value) == (
        f"sample 'x' ({tmp_path}/x.pt) cannot be read as a tensor: it holds an object made by {__name__}.Foreign, "
        "which torch.load refuses with weights_only=True; write it again with torch.save(tensor, path) or numpy.save, "
        "or leave it out"
    )


@pytest.mark.parametrize(
    ("name", "words"), [("a.pt", r"IDs are given without the suffix '\.pt': 'a'"), ("b", "restore the file")]
)
def test_ids_with_the_suffix(tmp_path: Path, name: str, words: str) -> None:
    torch.save(torch.zeros(3), tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError, match=words):
        list(OURS(penstock.TensorFolder(tmp_path, [name])))
    assert len(list(OURS(penstock.TensorFolder(tmp_path, ["a.pt"], suffix="")))) == 1


@pytest.mark.parametrize("name", ["nophotos", "file", "file/below"])
def test_a_root_that_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    root = tmp_path / name
    want: Any = raised(lambda: torchvision.datasets.ImageFolder(root))
    got: Any = raised(lambda: penstock.ImageFolder(root))
    assert (type(got), got.errno, os.fspath(got.filename)) == (type(want), want.errno, os.fspath(want.filename))
    assert str(root) in str(got) and "one folder for each class in it, as root/dog/1.jpg" in str(got)
    with pytest.raises(FileNotFoundError, match="no such folder; root must hold one file for each sample") as caught:
        penstock.TensorFolder(root)
    assert str(root) in str(caught.value)


CAUSES: list[BaseException] = [
    OSError("text"), OSError(5, "I/O error", "f"), IsADirectoryError(21, "x", "f"), NotADirectoryError(20, "x", "f"),
    FileNotFoundError(2, "No", "f"), PermissionError(13, "No", "f"), BlockingIOError(11, "x"),
    UnidentifiedImageError("x"), Image.DecompressionBombError("b"), Image.DecompressionBombWarning("b"),
    SyntaxError("broken PNG"), struct.error("x"), MemoryError(), pickle.UnpicklingError("u"), EOFError("e"),
    RuntimeError("r"), ValueError("v"), KeyError("k"), IndexError("i"), TypeError("t"), zipfile.BadZipFile("z"),
    UnicodeDecodeError("utf8", b"a", 0, 1, "r"), AttributeError("a"), ImportError("i", name="n", path="p"),
    ZeroDivisionError(), NotImplementedError(), RecursionError(), OverflowError(), AssertionError(), StopIteration(3),
]  # fmt: skip


def copies(error: BaseException) -> Iterator[BaseException]:
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):  # 2 makes an OSError of its subclasses, for Python 2
        yield pickle.loads(pickle.dumps(error, protocol))
    yield copy.copy(error)
    yield copy.deepcopy(error)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
@pytest.mark.parametrize("kind", [penstock.CorruptSample, penstock.ImageTooLarge], ids=lambda kind: kind.__name__)
def test_an_error_of_two_classes(kind: Any, cause: BaseException) -> None:
    error = like(cause, kind, "our sentence", sample_id="s", path="/p")
    error.__notes__ = ["a note"]
    assert pair(kind, type(cause)) is type(error)
    assert (type(error).__name__, type(error).__module__) == (kind.__name__, "penstock.errors")
    one: Any
    for one in (error, *copies(error)):
        assert type(one) is type(error)
        assert all(isinstance(one, parent) for parent in (kind, type(cause), penstock.SampleError))
        assert (str(one), one.sample_id, one.path, one.__notes__) == ("our sentence", "s", "/p", ["a note"])
        if isinstance(cause, OSError):
            assert (one.errno, one.strerror, one.filename) == (cause.errno, cause.strerror, cause.filename)


@pytest.mark.parametrize(
    "kind", [penstock.MissingSample, penstock.UnreadableSample, penstock.OutsideRoot], ids=lambda k: k.__name__
)
def test_classes_that_exclude_each_other(kind: Any) -> None:
    """An OSError cannot be a UnicodeDecodeError too: what both can be, it is."""
    error = like(UnicodeDecodeError("utf8", b"a", 0, 1, "r"), kind, "our sentence", sample_id="s", path="/p")
    assert isinstance(error, kind) and isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == "our sentence"


def test_every_class_survives_the_way_to_another_process() -> None:
    for kind in vars(penstock).values():
        if isinstance(kind, type) and issubclass(kind, penstock.SampleError):
            for one in copies(kind("our sentence", sample_id="s", path="/p")):
                assert (type(one), str(one)) == (kind, "our sentence")


def test_an_error_of_a_target_transform_comes_before_that_of_shapes(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number, width in enumerate((40, 30)):
        noise_image(number, 30, width).save(tmp_path / "class" / f"{number}.jpg")

    def refuse(label: int) -> int:
        raise LookupError(f"there is no label {label}")

    dataset = torchvision.datasets.ImageFolder(tmp_path, v1.ToTensor(), refuse)
    assert type(raised(lambda: next(iter(TORCH(dataset, 2))))) is LookupError
    assert type(raised(lambda: next(iter(OURS(dataset, 2))))) is LookupError
    dataset.target_transform = None
    assert isinstance(raised(lambda: next(iter(OURS(dataset, 2)))), penstock.ShapeMismatch)


class Unsaid(RuntimeError):
    """Fails to say what it is about once it is made of a text, as soundfile's LibsndfileError does."""

    def __str__(self) -> str:
        raise TypeError("an integer is required")


class Constant(OSError):
    def __str__(self) -> str:
        return "the file is bad"


class Named(Exception):
    """torch makes it anew by a keyword that it does not take."""

    message = "the file is bad"

    def __init__(self, path: str) -> None:
        super().__init__(path)


@pytest.mark.parametrize("kind", [Unsaid, Constant, Named])
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "device": "cpu"}])
def test_an_error_of_a_worker_keeps_class_file_and_sample(kind: Any, options: dict[str, Any]) -> None:
    def fail(index: int) -> Any:
        raise kind("x.wav")

    error = raised(lambda: next(iter(OURS(Made(fail), **options))))
    assert isinstance(error, RuntimeError if kind is Named else kind)
    said = str(error) if kind is Named else "\n".join(error.__notes__)
    assert f"Caught {kind.__name__} in DataLoader worker process 0." in said
    assert "in __getitem__ of sample 0" in said and "in fail" in said


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of exceptions")
def test_a_group_of_exceptions_keeps_its_words() -> None:
    """Only torch's workers, which send an error as one text, lose what a group holds: they raise a TypeError."""
    group: Any = vars(builtins)["ExceptionGroup"]

    def fail(index: int) -> Any:
        raise group("two files", [ValueError("a.wav"), OSError("b.wav")])

    def error_with(**options: Any) -> Any:
        return raised(lambda: next(iter(OURS(Made(fail), **options))))

    for error in (error_with(), error_with(num_workers=1, worker_method="thread")):
        assert isinstance(error, group) and [str(one) for one in error.exceptions] == ["a.wav", "b.wav"]
    error = error_with(num_workers=1)
    assert type(error) is RuntimeError
    for words in ("Caught ExceptionGroup", "two files (2 sub-exceptions)", "ValueError: a.wav", "OSError: b.wav"):
        assert words in str(error)


def test_threads_that_were_tried_on_an_error_without_words_leave_it_to_processes() -> None:
    def fail(index: int) -> Any:
        raise Unsaid

    loader = OURS(Made(fail), num_workers=1, worker_method="auto")
    assert "trying a few samples failed, Unsaid" in str(loader.explain())

"""The classes of errors that are ours and another one's: made on demand, and alive in another process."""

from __future__ import annotations

import copy
import pickle
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image, UnidentifiedImageError

import penstock
from penstock.errors import like, pair

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
    error.add_note("a note")
    assert pair(kind, type(cause)) is type(error)
    assert (type(error).__name__, type(error).__module__) == (kind.__name__, "penstock.errors")
    for one in (error, *copies(error)):
        assert type(one) is type(error)
        assert isinstance(one, kind)
        assert isinstance(one, type(cause))
        assert isinstance(one, penstock.SampleError)
        assert (str(one), one.sample_id, one.path) == ("our sentence", "s", "/p")
        assert one.__notes__ == ["a note"]
        if isinstance(cause, OSError):
            assert isinstance(one, OSError)
            assert (one.errno, one.strerror, one.filename) == (cause.errno, cause.strerror, cause.filename)


@pytest.mark.parametrize(
    "kind", [penstock.MissingSample, penstock.UnreadableSample, penstock.OutsideRoot], ids=lambda k: k.__name__
)
def test_classes_that_exclude_each_other(kind: Any) -> None:
    """An OSError cannot be a UnicodeDecodeError too: what both can be, it is."""
    error = like(UnicodeDecodeError("utf8", b"a", 0, 1, "r"), kind, "our sentence", sample_id="s", path="/p")
    assert isinstance(error, kind)
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == "our sentence"


def test_every_class_survives_the_way_to_another_process() -> None:
    for kind in vars(penstock).values():
        if isinstance(kind, type) and issubclass(kind, penstock.SampleError):
            for one in copies(kind("our sentence", sample_id="s", path="/p")):
                assert (type(one), str(one)) == (kind, "our sentence")

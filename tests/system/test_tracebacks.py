"""Errors of a user's code lead to their line: no frame of the package stands in between."""

from __future__ import annotations

import builtins
import dataclasses
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.data import IterableDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import penstock
from tests.data import Made

WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
PACKAGE = str(Path(penstock.__file__).parent)
DEVELOPMENT = SimpleNamespace(flags=SimpleNamespace(dev_mode=True))
SAME = ValueError("one object")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses to be assigned to."""

    code: int


def broken(*_: Any) -> Any:
    raise ValueError("broken")


class OwnClass(Exception):
    """Takes weak references, which built-in classes do not."""


def own_class(_: int) -> Any:
    raise OwnClass("broken")


def chained(_: int) -> Any:
    try:
        broken()
    except ValueError as error:
        raise KeyError("no sample") from error


def frozen(_: int) -> Any:
    raise Frozen(3)


def same(_: int) -> Any:
    raise SAME


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield 1.0
        broken()


class StatefulStream(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {"at": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def batches() -> Iterator[list[int]]:
    yield [0, 1]
    broken()


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "getitem": lambda: {"dataset": Made(broken, 8)},
    "cause": lambda: {"dataset": Made(chained, 8)},
    "frozen": lambda: {"dataset": Made(frozen, 8)},
    "collate_fn": lambda: {"dataset": Made(float, 8), "collate_fn": broken},
    "stream": lambda: {"dataset": Stream()},
    "stateful stream": lambda: {"dataset": StatefulStream()},
    "collate_fn of a stream": lambda: {"dataset": Stream(), "collate_fn": broken},
    "sampler": lambda: {"dataset": Made(float, 8), "batch_sampler": batches()},
    "worker_init_fn": lambda: {"dataset": Made(float, 8), "worker_init_fn": broken},
}


def raised(loader: Any) -> Exception:
    try:
        list(loader)
    except Exception as error:
        return error
    raise AssertionError("no error")


def files_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def lines_of(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def ours(error: BaseException) -> list[str]:
    return [line for line in lines_of(error) if PACKAGE in line]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_printed_has_no_frame_of_the_package_and_no_more_lines_than_torchs(case: str, way: str) -> None:
    if (case, way) == ("worker_init_fn", "inline"):
        pytest.skip("there is no worker")
    error = raised(penstock.DataLoader(**CASES[case](), **WAYS[way]))
    theirs = raised(torch.utils.data.DataLoader(**CASES[case](), num_workers=WAYS[way]["num_workers"]))
    lines = lines_of(theirs)
    theirs.with_traceback(None)  # it holds the iterator in a cycle, which ends after 5 s a worker
    assert ours(error) == []
    assert type(error) is type(theirs)
    assert len(lines_of(error)) <= len(lines)


def test_the_users_frames_are_those_that_torchs_loader_shows() -> None:
    def tail(loader: Any) -> list[Any]:
        frames = traceback.extract_tb(raised(loader).__traceback__)
        own = [number for number, frame in enumerate(frames) if frame.name == "__getitem__"]
        return [(frame.filename, frame.lineno) for frame in frames[own[0] :]]

    for make in (broken, chained, frozen):
        wanted = tail(torch.utils.data.DataLoader(Made(make, 8)))
        assert wanted
        assert tail(penstock.DataLoader(Made(make, 8), num_workers=0)) == wanted
        assert tail(penstock.DataLoader(Made(make, 8), num_workers=2, worker_method="thread")) == wanted


@pytest.mark.native
@pytest.mark.parametrize("way", WAYS)
def test_a_transform_of_the_users_behind_native_steps(way: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / "a" / f"{number}.jpg")
    dataset = ImageFolder(str(tmp_path), transforms.Compose([transforms.Resize(4), broken]))
    error = raised(penstock.DataLoader(dataset, **WAYS[way]))
    assert ours(error) == []
    assert any(line.endswith("in broken") for line in lines_of(error))


def test_a_transform_on_the_device() -> None:
    feed = penstock.Feed("cpu", transform=broken)
    error = raised(penstock.DataLoader(Made(float, 8), num_workers=0, device=feed))
    assert ours(error) == []
    assert files_of(error) == [__file__] * 2


def test_an_error_of_the_package_shows_the_users_line_only(tmp_path: Path) -> None:
    torch.save(torch.zeros(2), tmp_path / "a.pt")
    dataset = penstock.TensorFolder(tmp_path, ids=["a", "b"])
    error = raised(penstock.DataLoader(dataset, batch_size=2, num_workers=0))
    assert isinstance(error, penstock.MissingSample)
    assert files_of(error) == [__file__]
    with pytest.raises(penstock.InvalidOption) as caught:
        penstock.DataLoader(Made(float, 8), worker_method="unknown")  # type: ignore[arg-type]
    assert files_of(caught.value) == [__file__]


def test_the_frame_that_raised_stays_where_it_is_the_packages() -> None:
    error = raised(penstock.DataLoader([1, 2], sampler=[5], num_workers=0))  # type: ignore[arg-type]
    assert isinstance(error, IndexError)
    assert len(ours(error)) == 1


def test_one_error_raised_at_each_batch() -> None:
    batches = iter(penstock.DataLoader(Made(same, 8), num_workers=0))
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            next(batches)
        assert caught.value is SAME
        assert ours(SAME) == []
    assert SAME.__notes__ == [f"in __getitem__ of sample {number}" for number in range(3)]
    SAME.__traceback__ = None  # it would keep the pass, and its lease on functions of other packages


def test_an_error_from_a_worker_process_is_in_no_cycle() -> None:
    error = weakref.ref(raised(penstock.DataLoader(Made(own_class, 8), num_workers=1)))
    assert error() is None


def test_while_the_profiler_runs() -> None:
    with torch.profiler.profile():
        error = raised(penstock.DataLoader(Made(broken, 8), num_workers=0))
    assert ours(error) == []


def test_development_mode_keeps_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.system.tracebacks.sys", DEVELOPMENT)
    assert ours(raised(penstock.DataLoader(Made(broken, 8), num_workers=0)))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups of exceptions")
def test_groups_and_rings_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = penstock.DataLoader(Made(broken, 8), num_workers=0)
    with monkeypatch.context() as context:
        context.setattr("penstock.system.tracebacks.sys", DEVELOPMENT)
        one, other = raised(loader), raised(loader)
    one.__context__, other.__context__ = other, one
    group: Any = vars(builtins)["ExceptionGroup"]("two", [one, other])
    assert ours(one) and ours(group)

    def give(_: int) -> Any:
        raise group

    found: Any = raised(penstock.DataLoader(Made(give, 8), num_workers=0))
    assert found is group and ours(group) == [] and group.exceptions == (one, other)

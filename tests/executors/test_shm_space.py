"""A /dev/shm that is too small for the batches of worker processes is said once, with both figures."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import penstock
from penstock.executors.workers import shm_space
from penstock.executors.workers.shm_space import FOLDER, ShmSpace, bytes_in_files, note_space
from tests.sample_datasets import Made

SAMPLE = 256 << 10  # bytes
MIB = 1 << 20


LARGE = Made(lambda index: torch.full((SAMPLE // 4,), float(index)), 40)


def in_a_dict(samples: list[torch.Tensor]) -> Any:
    return OrderedDict(values=[torch.stack(samples)], size=len(samples))


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says how much space /dev/shm seems to have."""
    real = os.statvfs

    def have(free: int) -> None:
        small = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda path: small if path == FOLDER else real(path))

    return have


def warned(loader: Any, epochs: int = 1) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [batch for _ in range(epochs) for batch in loader]
    assert len(batches) == 10 * epochs
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


TWO: Any = {"num_workers": 2, "collate_fn": in_a_dict}


def test_both_figures_once_a_loader(space: Any) -> None:
    space(4 * MIB)
    loader = penstock.DataLoader(LARGE, 4, **TWO)
    (text,) = warned(loader, epochs=2)
    assert text.startswith(
        "2 worker processes need 6.0 MiB in /dev/shm, which had 4.0 MiB free when the pass began: a batch takes "
        "1.0 MiB there, and 6 of them are in flight or in use at a time."
    )
    assert "--shm-size" in text and "--ipc=host" in text and "worker_method='thread'" in text


def test_prefetch_factor_counts(space: Any) -> None:
    space(10 * MIB)
    assert warned(penstock.DataLoader(LARGE, 4, **TWO)) == []
    (text,) = warned(penstock.DataLoader(LARGE, 4, prefetch_factor=5, **TWO))
    assert "need 12 MiB" in text and "12 of them" in text


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {**TWO, "worker_method": "thread"}],
    ids=["in blocks", "in blocks, persistent", "threads"],
)
def test_batches_that_need_no_such_space(space: Any, options: dict[str, Any]) -> None:
    space(0)
    assert warned(penstock.DataLoader(LARGE, 4, **options)) == []


def test_a_warning_that_is_an_error_loses_no_batch(space: Any) -> None:
    space(0)
    batches = iter(penstock.DataLoader(LARGE, 4, **TWO))
    found: list[Any] = [next(batches)]
    with pytest.raises(UserWarning, match="/dev/shm"):
        next(batches)
    found += batches
    assert [batch["values"][0][0, 0].item() for batch in found] == [4.0 * number for number in range(10)]


def test_what_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(path: str) -> Any:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", nothing)
    assert shm_space.free_bytes() is None
    assert warned(penstock.DataLoader(LARGE, 4, **TWO)) == []


def test_page_locked_copies_count_as_what_they_were_copied_from(space: Any) -> None:
    space(MIB)
    batch = [torch.zeros(MIB // 4), "name"]
    assert bytes_in_files(batch) == 0
    for pinned in (False, True):
        watched = ShmSpace()
        watched.begin()
        watched.look(batch, 1, 2, pinned=pinned)
        if pinned:
            with pytest.warns(UserWarning, match="1 worker process needs 4.0 MiB"):
                watched.warn()
        watched.warn()


def test_torchs_error_gets_a_note(space: Any) -> None:
    space(3 * MIB)
    error = RuntimeError("unable to allocate shared memory(shm) for file </torch_1_0>: No space left on device (28)")
    note_space(error)
    (note,) = error.__notes__
    assert note.startswith("/dev/shm has 3.0 MiB free. Give /dev/shm more space")
    for other in (RuntimeError("another"), ValueError(str(error))):
        note_space(other)
        assert not hasattr(other, "__notes__")

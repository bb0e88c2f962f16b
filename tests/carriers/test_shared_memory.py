"""Worker processes build batches in memory that is used again: torch's batches, and nobody's memory overwritten."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import re
import signal
import weakref
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.data as tud

import penstock
from penstock.carriers.post_mortem import note_space
from penstock.memory import shared_memory
from tests.data import Made
from tests.forking import assert_ended_well, begin_in_child
from tests.same import assert_passes, assert_same, outcomes

LARGE = 3000  # elements of float32 a sample: 4 of them are more than SHARED_BYTES
SIZE = 24
Pair = namedtuple("Pair", ["first", "second"])


def large(index: int) -> torch.Tensor:
    return torch.full((LARGE,), float(index))


def with_label(index: int) -> Any:
    return large(index), index


MAKERS: dict[str, Callable[[int], Any]] = {
    "large": large,
    "with label": with_label,
    "images": lambda i: torch.full((40, 45, 3), i, dtype=torch.uint8).permute(2, 0, 1),
    "channels last": lambda i: torch.full((2, 3, 40, 45), i, dtype=torch.uint8).to(memory_format=torch.channels_last),
    "nested": lambda i: {"a": Pair(large(i), [str(i), i]), "b": (np.full((50, 50), i), {"c": large(i) > 3})},
    "of two sizes": lambda i: torch.zeros(LARGE + (i // 8) % 2),
    "complex": lambda i: torch.full((LARGE,), complex(i, 1), dtype=torch.complex64),
    "arrays": lambda i: (np.full((LARGE,), i, dtype=np.float64), np.int32(i), np.float32(i)),
}


def loader(make: Any = with_label, size: int = SIZE, **options: Any) -> Any:
    return penstock.DataLoader(Made(make, size), **{"batch_size": 4, "num_workers": 2, **options})


def last_column(batches: Any) -> list[list[float]]:
    return [(batch[0] if isinstance(batch, list) else batch)[:, -1].tolist() for batch in batches]


def numbers(size: int) -> list[list[float]]:
    return [[4.0 * number + i for i in range(4)] for number in range(size // 4)]


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"seed": 3}], ids=str)
def test_batches_are_torchs(made: str, options: dict[str, Any]) -> None:
    theirs = list(tud.DataLoader(Made(MAKERS[made], SIZE - 1), 4, num_workers=1))
    ours = loader(MAKERS[made], SIZE - 1, **options)
    assert_passes(ours, theirs, 3)


def test_memory_is_used_again_and_looks_like_torchs() -> None:
    ours, addresses = loader(), set()
    for _ in range(3):
        for batch, labels in ours:
            addresses.add(batch.data_ptr())
            assert batch.untyped_storage().nbytes() == batch.nbytes
            assert batch.is_contiguous() and batch.is_leaf and batch._base is None
            del batch, labels
    assert len(addresses) < 12 and 0 < len(ours._pass_factory.shared._blocks) < 12
    blocks = weakref.WeakSet(ours._pass_factory.shared._blocks)
    del ours
    gc.collect()
    assert not blocks, "with which their descriptors are closed"


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_small_tensors_of_complex_halves() -> None:
    def halves(index: int) -> torch.Tensor:
        return torch.full((6,), float(index), dtype=torch.float16).view(torch.complex32)

    ours, theirs = loader(halves, 8, num_workers=1), tud.DataLoader(Made(halves, 8), 4, num_workers=1)
    found, wanted = ([torch.view_as_real(one) for one in batches] for batches in (ours, theirs))
    assert_same(found, wanted)
    assert {one.dtype for one in found} == {torch.float16}


def in_three(samples: list[torch.Tensor]) -> Any:
    batch = torch.stack(samples)
    return batch, batch[:2], batch[2:]


def test_memory_with_several_tensors_is_used_again_only_when_all_are_gone() -> None:
    held: list[Any] = []
    ours = loader(large, 400, collate_fn=in_three)
    for number, batch in enumerate(itertools.chain(ours, ours)):
        held.append((batch, torch.arange(4.0) + 4 * (number % 100)))
        del batch
        if len(held) > 6:
            (_, first, second), expected = held.pop(0)
            del _
            assert torch.equal(torch.cat([first, second])[:, -1], expected)
            del first, second


def test_a_batch_that_a_forked_process_holds_is_left_to_it() -> None:
    ours = loader(large)
    batches = iter(ours)
    next(batches)
    batch = next(batches)
    reader, writer = os.pipe()

    def check(batch: Any = batch) -> None:
        os.read(reader, 1)
        assert float(batch[0, 0]) == 4.0

    child = begin_in_child(check)
    del batch, check
    for _ in range(3):
        list(map(len, ours))
    os.write(writer, b"x")
    assert_ended_well(child)
    for descriptor in (reader, writer):
        os.close(descriptor)


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_that_are_left_do_not_write_into_those_that_follow(persistent: bool) -> None:
    ours, held = loader(large, 400, persistent_workers=persistent, prefetch_factor=4), []
    for turn in range(12):
        for number, batch in enumerate(itertools.islice(ours, turn + 1)):
            assert batch[:, 0].tolist() == batch[:, -1].tolist() == numbers(400)[number]
        held.append(batch)
    assert last_column(held) == numbers(400)[:12]


def test_out_of_order() -> None:
    ours = loader(large, 200, in_order=False)
    for _ in range(2):
        assert sorted(last_column(ours)) == numbers(200)


def dying(index: int) -> Any:
    if index == 18:
        os.kill(os.getpid(), signal.SIGKILL)
    return large(index)


def test_a_worker_that_dies_takes_no_memory_with_it() -> None:
    for _ in range(3):
        ours = loader(dying)
        with pytest.raises(penstock.WorkerDied):
            list(map(len, ours))
        blocks = weakref.WeakSet(ours._pass_factory.shared._blocks)
        del ours
        gc.collect()
        assert not blocks


@pytest.mark.parametrize(
    ("name", "refused", "number"),
    [("open", r"/proc/.*/fd/", errno.EACCES), ("memfd_create", "penstock-batch", errno.ENOSPC)],
    ids=["workers cannot open it", "the system has none"],
)
def test_memory_that_is_refused(name: str, refused: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(os, name)

    def refuse(what: Any, *arguments: Any, **named: Any) -> int:
        if re.match(refused, str(what)):
            raise OSError(number, "refused")
        return int(real(what, *arguments, **named))

    monkeypatch.setattr(os, name, refuse)  # in the workers too, which are forked
    ours = loader()
    assert last_column(ours) == last_column(ours) == numbers(SIZE)


def test_a_parent_without_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = loader()
    list(map(len, ours))  # what a field takes is known
    monkeypatch.setattr(shared_memory, "SharedBlock", mock.Mock(side_effect=OSError(28, "No space left on device")))
    ours._pass_factory.shared = shared_memory.SharedBuffers()
    ours._pass_factory.shared.learn(4 * 4 * LARGE)
    assert last_column(ours) == numbers(SIZE)


def test_what_is_torchs_own_way_stays_it() -> None:
    ours = loader(large, batch_size=None)
    for _ in range(2):
        list(map(len, ours))
    assert ours._pass_factory.shared.counts() == (0, 0)


@pytest.mark.parametrize(
    "make", [lambda i: large(i) if i % 8 < 5 else large(i).tolist(), lambda i: large(i).requires_grad_()]
)
def test_errors_are_those_of_default_collate(make: Any) -> None:
    ours, theirs = (outcomes(one) for one in (loader(make), tud.DataLoader(Made(make, SIZE), 4, num_workers=2)))
    kinds = [[one[0] if isinstance(one, tuple) else None for one in found] for found in (ours, theirs)]
    assert kinds[0] == kinds[1] != [None] * 6


def aliased(samples: list[torch.Tensor]) -> Any:
    stacked = torch.stack(samples)
    return {"pair": Pair(stacked, stacked[0]), "again": stacked, "alone": stacked + 1, "column": stacked.T[:1]}


@pytest.mark.parametrize("elements", [10, LARGE])
def test_tensors_that_share_memory_do_so_where_they_arrive(elements: int) -> None:
    made = Made(lambda index: torch.arange(float(elements)) + index, 8)
    ours: Any = penstock.DataLoader(made, 4, num_workers=1, collate_fn=aliased)
    batches = list(itertools.chain(ours, ours))[2:]
    assert (ours._pass_factory.shared.counts() != (0, 0)) == (elements == LARGE)
    theirs = list(tud.DataLoader(made, 4, num_workers=1, collate_fn=aliased))
    assert_same(batches, theirs)
    for one in (*batches, *theirs):
        assert one["again"] is one["pair"].first
        one["pair"].first[0, 0] = -5
        assert one["again"][0, 0] == one["pair"].second[0] == one["column"][0, 0] == -5
        assert one["alone"][0, 0] > 0


def test_torchs_error_of_a_full_dev_shm_gets_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=3 << 8, f_frsize=4096))
    error = RuntimeError("unable to allocate shared memory(shm) for file </torch_1_0>: No space left on device (28)")
    note_space(error)
    (note,) = error.__notes__
    assert note.startswith("/dev/shm has 3.0 MiB free. Give /dev/shm more space (docker run --shm-size=...")
    for other in (RuntimeError("another"), ValueError(str(error))):
        note_space(other)
        assert not hasattr(other, "__notes__")


def test_batches_that_grow_leave_no_blocks_behind_in_workers() -> None:
    loader = penstock.DataLoader(Made(lambda index: torch.zeros(8000 + 800 * index), 80), 1, num_workers=2)
    batches = iter(loader)
    processes = [os.getpid(), *(worker.pid for worker in batches._workers)]
    most = 0
    for _ in batches:
        lines = [line.split() for pid in processes for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        most = max(most, len({inode for _, _, _, _, inode, *name in lines if "penstock-batch" in "".join(name)}))
    assert 2 < most <= 2 * 2 + 6 + 2 * 3  # of batches in flight, kept ones, and what each worker has still to hear of

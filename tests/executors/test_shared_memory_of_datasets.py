"""Memory that worker processes share is shared by threads: what the parent sets is seen, a cache is filled once."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.executors.copies import SCRATCH_BYTES
from tests.resources import collect
from tests.values import flat

SAMPLES = 20


def in_array(numbers: int) -> Any:
    return multiprocessing.Array("d", numbers).get_obj()


KINDS: dict[str, Callable[[int], Any]] = {
    "tensor": lambda numbers: torch.zeros(numbers, dtype=torch.float64).share_memory_(),
    "array of a tensor": lambda numbers: torch.zeros(numbers, dtype=torch.float64).share_memory_().numpy()[:],
    "tensor of an Array": lambda numbers: torch.frombuffer(in_array(numbers), dtype=torch.float64)[1:],
    "array of a tensor of an Array": lambda numbers: torch.frombuffer(in_array(numbers), dtype=torch.float64).numpy(),
    "array of an Array": lambda numbers: np.frombuffer(in_array(numbers)),
    "Array": in_array,
    "RawArray": lambda numbers: multiprocessing.RawArray("d", numbers),
    "ctypes on a mapping": lambda numbers: (ctypes.c_double * numbers).from_buffer(mmap.mmap(-1, 8 * numbers)),
    "array of a mapping": lambda numbers: np.frombuffer(mmap.mmap(-1, 8 * numbers)),
    "tensor of a mapping": lambda numbers: torch.from_numpy(np.frombuffer(mmap.mmap(-1, 8 * numbers))),
}


class Caching(tud.Dataset[Any]):
    """Each sample holds the epoch, which the parent sets, and how many samples were made and not found."""

    def __init__(self, memory: Any, **held: Any) -> None:
        self.memory, self.held = memory, held

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[float, float]:
        made, self.memory[2 + index] = float(not self.memory[2 + index]), 1 + index
        return float(self.memory[0]), made


def epochs(loader: Any, memory: Any) -> list[tuple[set[float], float]]:
    """Return the epochs that samples have seen, and how many samples each epoch has made."""
    found = []
    for epoch in range(3):
        memory[0] = epoch
        seen, made = zip(*loader, strict=True)
        found.append((set(torch.cat(seen).tolist()), float(torch.cat(made).sum())))
    if loader.persistent_workers:
        loader._iterator._shutdown_workers()
    return found


@pytest.fixture(params=[SAMPLES + 8, SCRATCH_BYTES // 4], ids=["small", "large"])
def numbers(request: Any) -> int:
    return int(request.param)


@pytest.mark.parametrize(
    ("kind", "method"), [*((kind, "thread") for kind in KINDS), ("array of a tensor of an Array", "process")]
)
def test_what_the_parent_sets_is_seen_and_what_workers_keep_stays(kind: str, numbers: int, method: Any) -> None:
    for persistent in (False, True):
        memory = KINDS[kind](numbers)
        options: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "persistent_workers": persistent}
        loader = penstock.DataLoader(Caching(memory), worker_method=method, **options)
        assert epochs(loader, memory) == [({0.0}, SAMPLES), ({1.0}, 0), ({2.0}, 0)]


def test_auto_shares_it_too(numbers: int) -> None:
    for kind, make in KINDS.items():
        memory = make(numbers)
        loader = penstock.DataLoader(Caching(memory), 5, num_workers=2, worker_method="auto")
        found = epochs(loader, memory)
        assert [seen for seen, _ in found] == [{0.0}, {1.0}, {2.0}], kind
        assert [made for _, made in found][1:] == [0, 0] and found[0][1] <= SAMPLES, kind


@pytest.fixture
def block() -> Iterator[SharedMemory]:
    made = SharedMemory(create=True, size=8 * (SAMPLES + 8))
    made.unlink()  # nobody can open it by its name
    yield made
    collect()
    made.close()


@pytest.mark.parametrize("method", ["thread", "process"])
def test_a_block_of_shared_memory_is_shared_and_so_is_its_buffer(block: SharedMemory, method: Any) -> None:
    def check() -> None:
        memory: Any = memoryview(block.buf).cast("d")  # type: ignore[arg-type]
        array: Any = np.ndarray(SAMPLES + 8, buffer=block.buf)
        for held in (memory, array):
            array[:] = 0
            dataset = Caching(held, block=block, array=array)
            loader = penstock.DataLoader(dataset, 5, num_workers=2, worker_method=method)
            assert epochs(loader, memory) == [({0.0}, SAMPLES), ({1.0}, 0), ({2.0}, 0)]
        memory.release()

    check()


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_a_mapping_of_a_file_is_shared_where_it_is_not_a_copy(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "memory").write_bytes(bytes(8 * SAMPLES))
    mapped = np.memmap(tmp_path / "memory", np.float64, mode)

    class Writing(Caching):
        def __getitem__(self, index: int) -> Any:
            self.memory[index] = index
            return index

    loader = penstock.DataLoader(Writing(mapped), 5, num_workers=2, worker_method="thread")
    if mode == "r+":
        assert flat(loader) == mapped.tolist() == list(range(SAMPLES))
    else:  # each worker process would have pages of its own
        with pytest.raises(penstock.InvalidOption, match="an array that the copies share was written to"):
            list(loader)

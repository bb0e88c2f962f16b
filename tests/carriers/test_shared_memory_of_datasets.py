"""Memory that worker processes share is shared by threads: what the parent sets is seen, a cache is filled once."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.resources import collect

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
    """Each sample holds the epoch, which the parent sets, and whether it was not found in what samples keep."""

    def __init__(self, memory: Any, **held: Any) -> None:
        self.memory, self.held = memory, held

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[float, float]:
        made, self.memory[2 + index] = float(not self.memory[2 + index]), 1 + index
        return float(self.memory[0]), made


def check(dataset: Caching, memory: Any, loader_class: Any = penstock.DataLoader, **options: Any) -> None:
    loader = loader_class(dataset, 5, num_workers=2, **options)
    for epoch in range(3):
        memory[0] = epoch
        seen, made = (torch.cat(column) for column in zip(*loader, strict=True))
        assert set(seen.tolist()) == {epoch}
        assert made.sum() == SAMPLES * (epoch == 0) or (options.get("worker_method") == "auto" and epoch == 0)
    if loader.persistent_workers:
        loader._iterator._shutdown_workers()


@pytest.mark.parametrize("numbers", [SAMPLES + 8, 1 << 18], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_parent_sets_is_seen_and_what_workers_keep_stays(kind: str, numbers: int) -> None:
    for options in ({"worker_method": "thread"}, {"worker_method": "thread", "persistent_workers": True}):
        check(Caching(memory := KINDS[kind](numbers)), memory, **options)
    check(Caching(memory := KINDS[kind](numbers)), memory, worker_method="auto")


def test_it_is_so_in_torchs_worker_processes() -> None:
    memory = KINDS["array of a tensor of an Array"](SAMPLES + 8)
    check(Caching(memory), memory, tud.DataLoader)


def test_a_block_of_shared_memory_is_shared_and_so_is_its_buffer() -> None:
    block = SharedMemory(create=True, size=8 * (SAMPLES + 8))
    block.unlink()  # nobody can open it by its name

    def read() -> None:
        array: Any = np.ndarray(SAMPLES + 8, buffer=block.buf)
        check(Caching(array, block=block), array, worker_method="thread")

    read()
    collect()
    block.close()


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_a_mapping_of_a_file_is_shared_where_it_is_not_a_copy(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "memory").write_bytes(bytes(8 * (SAMPLES + 8)))
    mapped = np.memmap(tmp_path / "memory", np.float64, mode)
    if mode == "r+":
        check(Caching(mapped), mapped, worker_method="thread")
    else:  # each worker process would have pages of its own
        with pytest.raises(penstock.InvalidOption, match="an array that the copies share was written to"):
            check(Caching(mapped), mapped, worker_method="thread")

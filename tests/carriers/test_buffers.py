"""Batch memory: lent, taken back when nothing rests on it any more, kept in bounds."""

from __future__ import annotations

import pytest
import torch

import penstock._native as _native
from penstock.memory.buffers import Buffers, Field

pytestmark = pytest.mark.native


def test_a_block_comes_back_and_is_used_again() -> None:
    buffers, spec = Buffers(pinned=False, keep=2), Field(_native.Spec("float32", [3, 4 << 10]))
    rows = buffers.rows(5, spec)
    assert (rows.tensor.shape, rows.tensor.dtype) == ((5, 3, 4 << 10), torch.float32)
    assert rows.memory.nbytes == 5 * 48 << 10
    address = rows.tensor.data_ptr()
    assert address % 64 == 0 and buffers.counts() == (1, 0, 1)
    view = rows.tensor[2, 1]
    del rows
    assert buffers.counts() == (1, 0, 1)  # the view holds it
    del view
    assert buffers.counts() == (0, 1, 1) and buffers.rows(5, spec).tensor.data_ptr() == address
    assert repr(buffers) == "Buffers(pinned=False, lent=0, free=1, created=1)"


def test_a_much_larger_block_is_not_wasted_on_a_small_batch() -> None:
    buffers = Buffers(pinned=False, keep=4)
    buffers.rows(1, Field(_native.Spec("uint8", [10 << 20])))
    small = buffers.rows(1, Field(_native.Spec("uint8", [100 << 10])))
    assert (buffers.counts(), small.memory.nbytes) == ((1, 1, 2), 100 << 10)


def test_small_batches_are_left_to_torchs_allocator() -> None:
    buffers = Buffers(pinned=False, keep=4)
    rows = buffers.rows(3, Field(_native.Spec("uint8", [100])))
    assert rows.tensor.shape == (3, 100) and rows.memory.ctypes.data == rows.tensor.data_ptr()
    assert rows.tensor.untyped_storage().nbytes() == 300 and rows.tensor.untyped_storage().resizable()
    assert buffers.counts() == (0, 0, 0)


EMPTY = [(3, "float32", [0, 5]), (0, "float32", [5])]


@pytest.mark.parametrize(
    ("count", "name", "shape"), [*((3, name, [2]) for name in _native.DTYPES if hasattr(torch, name)), *EMPTY]
)
def test_every_dtype_and_empty_rows(count: int, name: str, shape: list[int]) -> None:
    rows = Buffers(pinned=False, keep=1).rows(count, Field(_native.Spec(name, shape)))
    assert (str(rows.tensor.dtype), rows.tensor.shape) == (f"torch.{name}", (count, *shape))


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float99", [1]), ("uint8", [-1]), ("float32", [2**40, 2**40]), ("uint8", [1] * 9)]
)
def test_bad_specs(dtype: str, shape: list[int]) -> None:
    with pytest.raises(ValueError, match=r"dtype|dimensions|shape"):
        _native.Spec(dtype, shape)
    with pytest.raises(MemoryError):
        Buffers(pinned=False, keep=1).rows(1, Field(_native.Spec("uint8", [2**62])))


def test_pinned_memory_needs_an_accelerator() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: page-locked memory cannot be had")
    rows = Buffers(pinned=True, keep=1).rows(4, Field(_native.Spec("float32", [8])))
    assert rows.tensor.is_pinned()


def test_no_more_than_keep_are_kept_and_more_for_more_batches_in_flight() -> None:
    buffers, field = Buffers(pinned=False, keep=4), Field(_native.Spec("uint8", [1 << 17]))

    def kept() -> int:
        lent = [buffers.rows(1, field) for _ in range(12)]
        del lent
        return buffers.counts()[1]

    found = [kept()]
    for times in (2.5, 0.5):
        buffers.keep_times(times)
        found.append(kept())
    assert found == [4, 10, 4]

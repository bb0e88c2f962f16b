"""Columns of Arrow, read natively: what pyarrow's to_pylist() gives, padded and flat numbers, and damaged buffers."""

from __future__ import annotations

import gc
import threading
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import penstock._native as _native
from penstock.tables.column import Column, column_of

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

from tests.tables.columns import NUMBERS, TEXTS, TIMES, value  # noqa: E402

pytestmark = pytest.mark.native

#: Types that the native core reads, and of which Python makes the objects.
NATIVE = [one for one in (*NUMBERS, *TEXTS, pa.null(), pa.binary(0)) if one != pa.float16()] + [
    pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.int32(), 2), pa.list_(pa.bool_()),
    pa.list_(pa.list_(pa.float32())), pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    pa.list_(pa.struct([("a", pa.int64())])),
]  # fmt: skip
OTHERS = [*TIMES, pa.decimal128(10, 3), pa.float16(), pa.struct([("a", pa.int64()), ("b", pa.date32())])]


def array_of(kind: Any, rows: int = 30) -> Any:
    draw = Random(str(kind))
    return pa.array([value(draw, kind, 0.2, None) for _ in range(rows)], kind)


def chunkings(array: Any) -> list[Any]:
    """Return columns of an array's rows: whole, in slices, with a chunk of no rows."""
    lists = [[array], [array, array.slice(1)], [array.slice(1, 1), array.slice(0, 0), array.slice(1), array]]
    return [pa.chunked_array(chunks, type=array.type) for chunks in lists]


@pytest.mark.parametrize("kind", NATIVE + OTHERS, ids=str)
def test_objects_are_pyarrows(kind: Any) -> None:
    rng = np.random.default_rng(1)
    for chunked in chunkings(array_of(kind)):
        column = Column(chunked)
        assert (column._native is not None) == (kind in NATIVE)
        rows = rng.integers(0, len(chunked), 30)
        expected = [chunked[row].as_py() for row in rows.tolist()]
        assert repr(column.objects(rows)) == repr(expected)
        if column._native is not None:
            assert column.has_nulls(np.arange(len(chunked))) == ("None" in repr(chunked.to_pylist()))
            for outside in (-1, len(chunked)):
                with pytest.raises(IndexError):
                    column.objects(np.array([0, outside]))


@pytest.mark.parametrize("stored", ["bool_", "int8", "uint16", "int32", "int64", "uint64", "float32", "float64"])
def test_numbers_of_lists_are_gathered(stored: str) -> None:
    rng = np.random.default_rng(2)
    values = [rng.integers(0, 2 if stored == "bool_" else 100, rng.integers(0, 9)).tolist() for _ in range(50)]
    values = [list(map(bool if stored == "bool_" else float if "float" in stored else int, row)) for row in values]
    for kind in (pa.list_(getattr(pa, stored)()), pa.large_list(getattr(pa, stored)())):
        for chunked in chunkings(pa.array(values, type=kind)):
            column = Column(chunked)
            rows = rng.integers(0, len(chunked), 17)
            asked = [chunked[row].as_py() for row in rows.tolist()]
            lengths = column.lengths(rows)
            assert lengths is not None and lengths.tolist() == list(map(len, asked))
            for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
                if "float" in stored and not dtype.is_floating_point:
                    assert column.flat(rows, dtype, int(lengths.sum())) is None
                    continue
                if stored in ("int64", "uint64", "int32") and dtype is torch.float32:
                    continue  # which has no one answer
                flat = column.flat(rows, dtype, int(lengths.sum()))
                if flat is None:
                    assert dtype.is_floating_point and "64" in stored
                    continue
                assert flat.tolist() == [number for row in asked for number in row]
                for left in (False, True):
                    for width in (int(lengths.max()), 3, 0):
                        padded = column.padded(rows, dtype, width, -1, left=left)
                        cut = [row[:width] for row in asked]
                        more = [[-1] * (width - len(row)) for row in cut]
                        pairs = zip(more, cut, strict=True) if left else zip(cut, more, strict=True)
                        assert padded is not None and padded.tolist() == [a + b for a, b in pairs]


def test_what_is_no_list_of_numbers_is_refused() -> None:
    rows = np.arange(2)
    for values in (["a", "b"], [["a"], []], [None, [1]], [[None], [1]], [[[1]], []], [{"a": 1}, {"a": 2}]):
        column = Column(pa.chunked_array([pa.array(values)]))
        assert column.padded(rows, torch.int64, 2, 0) is None and column.flat(rows, torch.int64, 1) is None
    numbers = Column(pa.chunked_array([pa.array([3, 4])]))
    assert numbers.lengths(rows) is None
    flat = numbers.flat(rows, torch.int64, 2)
    assert flat is not None and flat.tolist() == [3, 4] and numbers.flat(rows, torch.int64, 3) is None


def patched(kind: Any, values: list[Any], before: np.ndarray, after: np.ndarray) -> Any:
    """Return a column of a file of Arrow in which some bytes were changed; pyarrow does not look at them."""
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(values, type=kind)})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    assert data.count(before.tobytes()) == 1 and before.nbytes == after.nbytes
    return pa.ipc.open_file(pa.py_buffer(data.replace(before.tobytes(), after.tobytes()))).read_all().column("x")


@pytest.mark.parametrize("offsets", [[0, 3, 99], [0, -2, 6], [4, 1, 6], [2**31 - 1] * 3, [-1, 3, 6]], ids=str)
@pytest.mark.parametrize(("large", "width"), [(False, np.int32), (True, np.int64)])
def test_offsets_that_lead_out_of_the_data_are_an_error(offsets: list[int], large: bool, width: Any) -> None:
    before, after = np.array([0, 3, 6], width), np.array(offsets, width)
    column = Column(patched(pa.large_string() if large else pa.string(), ["abc", "def"], before, after))
    with pytest.raises(ValueError, match="damaged"):
        column.objects(np.arange(2))
    lists = pa.large_list(pa.int8()) if large else pa.list_(pa.int8())
    column = Column(patched(lists, [[7, 8, 9], [7, 8, 9]], before, after))
    for read in (column.objects, column.lengths):
        with pytest.raises(ValueError, match="damaged"):
            read(np.arange(2))
    assert column.padded(np.arange(2), torch.int64, 3, 0) is None and column.has_nulls(np.arange(2))


@pytest.mark.parametrize("after", [[99, 0], [0, 99], [0, 2**31 - 1], [0, -1], [-1, 0]], ids=str)
def test_views_that_lead_out_of_the_data_are_an_error(after: list[int]) -> None:
    text = "a text of more than twelve bytes"
    head = np.frombuffer(text[:4].encode(), np.int32)[0]
    before = np.array([len(text), head, 0, 0], np.int32)
    column = Column(patched(pa.string_view(), [text], before, np.array([len(text), head, *after], np.int32)))
    with pytest.raises(ValueError, match="damaged"):
        column.objects(np.arange(1))
    before, longer = before[:2], np.array([4000, head], np.int32)
    with pytest.raises(ValueError, match="damaged"):
        Column(patched(pa.string_view(), [text], before, longer)).objects(np.arange(1))


@pytest.mark.parametrize("kind", [kind for kind in NATIVE if kind not in (pa.null(), pa.binary(0))], ids=str)
def test_buffers_that_are_too_small_are_not_read(kind: Any) -> None:
    array = array_of(kind, 160)
    for sizes in ([0] * 20, [2] * 20, []):
        schema, exported = array.__arrow_c_array__()
        column = _native.ArrowColumn()
        with pytest.raises(ValueError, match=r"smaller than it says"):
            column.add(schema, exported, sizes)
        assert column.rows == 0


def test_a_column_holds_its_arrays_and_is_kept_with_its_table() -> None:
    before = pa.total_allocated_bytes()
    table = pa.table({"x": pa.array([list(range(1000))] * 100)})
    column = column_of(table, "x")
    assert column_of(table, "x") is column
    held = pa.total_allocated_bytes()
    del table
    gc.collect()
    flat = column.flat(np.arange(100), torch.int64, 100_000)
    assert flat is not None and flat[:1000].tolist() == list(range(1000)) and pa.total_allocated_bytes() >= held - 4096
    del column
    gc.collect()
    assert pa.total_allocated_bytes() <= before + 4096


def test_threads_read_one_column() -> None:
    chunked = pa.chunked_array([pa.array([[i] * (i % 300) for i in range(1000)])] * 3)
    column, wrong = Column(chunked), []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            rows = rng.integers(0, 3000, 400)
            padded = column.padded(rows, torch.int64, 300, -1)
            expected = (rows % 1000) * ((rows % 1000 % 300) > 0) - ((rows % 1000 % 300) == 0)
            if padded is None or padded[:, 0].tolist() != expected.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

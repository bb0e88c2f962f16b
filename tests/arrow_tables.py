"""Hugging Face datasets of numbers of all types, and the comparison of their batches with those of torch's loader.

The tests that import this module are skipped where the packages are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.same import assert_same

datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")

ROWS, BATCH = 29, 6
KINDS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64")
Value = datasets.Value


datasets.disable_progress_bars()


def numbers(kind: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Return numbers of a type, its least and its greatest among them."""
    dtype, rng = np.dtype(kind), np.random.default_rng([seed, len(kind), *map(ord, kind), *shape])
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "f":
        found = rng.standard_normal(shape).astype(dtype)
        found.flat[:6] = [0.0, -0.0, np.nan, np.inf, np.finfo(dtype).tiny, 1 / 3]
        return found
    found = rng.integers(0, 100, shape).astype(dtype)
    found.flat[:2] = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    return found


def features(shape: str, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Return a feature of each type: "scalar", "fixed", "list" or "array"."""
    make: dict[str, Callable[[str], Any]] = {
        "scalar": Value,
        "fixed": lambda kind: datasets.Sequence(Value(kind), length=3),
        "list": lambda kind: datasets.Sequence(Value(kind)),
        "array": lambda kind: datasets.Array3D((2, 1, 3), kind),
    }
    lists_of_bits = shape != "scalar"  # which are read by Python
    return {f"{shape}_{kind}": make[shape](kind) for kind in kinds if not (lists_of_bits and kind == "bool")}


SHAPES = {"scalar": (), "fixed": (3,), "list": (5,), "array": (2, 1, 3)}


def table(*shapes: str, rows: int = ROWS, kinds: tuple[str, ...] = KINDS, seed: int = 0) -> Any:
    """Return a dataset with a column of each of these shapes and types."""
    found = {name: feature for shape in shapes for name, feature in features(shape, kinds).items()}
    columns = {name: numbers(name.split("_")[1], (rows, *SHAPES[name.split("_")[0]]), seed) for name in found}
    return datasets.Dataset.from_dict(
        {name: column.tolist() for name, column in columns.items()}, features=datasets.Features(found)
    )


def simple(rows: int = ROWS) -> Any:
    """Return a dataset of an embedding and a label."""
    return table("scalar", "fixed", rows=rows, kinds=("float32", "int64")).with_format("torch")


def equal(dataset: Any, native: bool | None = True, **options: Any) -> None:
    """Assert that our loader gives the batches that torch's gives; NaN equals NaN. native: None asks for no word."""
    arguments = {"batch_size": BATCH, **options}
    theirs = torch.utils.data.DataLoader(dataset, **{**arguments, "num_workers": 0})
    for workers in (0, 2):
        ours = penstock.DataLoader(dataset, num_workers=workers, **arguments)
        torch.manual_seed(1)
        wanted = list(map(as_bits, theirs))
        torch.manual_seed(1)
        assert native is None or ("native   gather" in ours.explain()) is native, ours.explain()
        assert_same(list(map(as_bits, ours)), wanted)
        assert wanted


def as_bits(batch: Any) -> Any:
    """Return a batch in which floats are whole numbers of the same bits."""
    if isinstance(batch, dict):
        return {name: as_bits(value) for name, value in batch.items()}
    if isinstance(batch, torch.Tensor) and batch.is_floating_point():
        return str(batch.dtype), batch.view({4: torch.int32, 8: torch.int64, 2: torch.int16}[batch.element_size()])
    return batch


def from_columns(**columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns)

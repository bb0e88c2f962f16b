"""Hugging Face datasets of numbers, which the native core reads: batches equal those of torch's loader."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split

import penstock
from tests.arrow_tables import BATCH, ROWS, as_bits, datasets, equal, numbers, pa, simple, table
from tests.carriers_under_test import Executor, executors
from tests.same import assert_same
from tests.values import loaded

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning"),  # of pyarrow, for Dataset.sort
]


def bits(batches: Any) -> list[Any]:
    return list(map(as_bits, batches))


def bits_of_torchs(dataset: Any) -> list[Any]:
    return bits(torch.utils.data.DataLoader(dataset, BATCH))


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_numbers_are_gathered(form: str) -> None:
    """Of other arrangements, formats, chunks and files are those of tests/tables/schemas.py, drawn at random."""
    dataset = table("scalar", "fixed", "list", "array")
    parts = [dataset.shuffle(seed=1), dataset.select(range(9, 20)), dataset.shuffle(seed=2).select(range(3, 19))]
    equal(dataset.with_format(form), shuffle=True, drop_last=True)
    equal(datasets.concatenate_datasets(parts).shuffle(seed=5).with_format(form))
    equal(table("scalar").shuffle(seed=3))
    equal(dataset.with_format(form, columns=["fixed_int8", "scalar_float64", "fixed_uint8"]))
    equal(table("scalar").with_format(form, columns=["scalar_float32", "scalar_int8"], output_all_columns=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float64, torch.float32, torch.bool])
def test_a_dtype_for_all_columns(dtype: torch.dtype) -> None:
    known = {torch.float32: ("float32", "int8", "uint16"), torch.float64: ("float32", "float64", "int32", "uint8")}
    kinds = known.get(dtype, ("bool",) if dtype is torch.bool else ("int8", "int32", "int64", "uint16"))
    dataset = table("scalar", "fixed", "list", kinds=kinds)
    equal(dataset.with_format("torch", dtype=dtype))
    equal(dataset.with_format("torch", dtype=dtype, device="cpu"))
    equal(dataset.with_format("torch", device=torch.device("cpu")))


def test_half_precision_as_it_is_stored() -> None:
    values = np.arange(0, 1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 64)
    equal(of_columns(x=column).with_format("torch", dtype=torch.float16), batch_size=100)


def of_columns(**columns: Any) -> Any:
    return datasets.Dataset(pa.table(columns))


def test_columns_of_other_kinds() -> None:
    """Unsigned numbers of 64 bits, lists without elements, and long rows of all conversions."""
    dataset = of_columns(x=pa.array(np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)))
    equal(dataset.with_format("torch"))
    with pytest.raises((OverflowError, ValueError)):
        list(penstock.DataLoader(dataset))
    empty = pa.array([[]] * 5, pa.list_(pa.int32()))
    equal(of_columns(x=empty, y=pa.array(range(5))).with_format("torch"), batch_size=2)
    sizes = {"int8": 5_000, "int32": 2_049, "float64": 1_025, "float32": 3_000}
    flat = {kind: pa.array(numbers(kind, (7 * size,))) for kind, size in sizes.items()}
    long = {kind: pa.FixedSizeListArray.from_arrays(flat[kind], size) for kind, size in sizes.items()}
    equal(of_columns(**long).with_format("torch"), batch_size=3)


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    dataset = table("scalar", "fixed", "list", "array", rows=103)
    dataset.save_to_disk(tmp_path / "saved", num_shards=3)
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))
    assert type(loaded._data).__name__ != "InMemoryTable"
    equal(loaded.with_format("torch"))
    equal(loaded.map(lambda batch: batch, batched=True, batch_size=10, writer_batch_size=10).with_format("torch"))


@executors("native, caller", "native, default", "native, 1", "native, 8", "native, persistent", "native, fed")
def test_every_native_executor(executor: Executor) -> None:
    dataset = table("scalar", "fixed", "list", "array").shuffle(seed=4).with_format("torch")
    loader = penstock.DataLoader(dataset, batch_size=BATCH, **executor.options)
    assert executor.says in loader.explain()
    for _ in range(2):
        assert_same(bits(loader), bits_of_torchs(dataset))


def test_subsets_splits_and_samplers() -> None:
    dataset = simple()
    equal(Subset(dataset, [5, 3, -1, 28, 0]))
    equal(Subset(dataset.shuffle(seed=1), range(3, 20)))
    equal(random_split(dataset, [20, 9], torch.Generator().manual_seed(1))[0])
    weights = [float(number) for number in range(ROWS)]
    equal(dataset, sampler=torch.utils.data.WeightedRandomSampler(weights, 40))
    batches = [[3, 1], [28, -1, 0], [7]]
    ours = penstock.DataLoader(dataset, batch_sampler=batches, num_workers=2)
    assert_same(bits(ours), bits(torch.utils.data.DataLoader(dataset, batch_sampler=batches)))


@pytest.mark.parametrize(("form", "kind"), [("torch", "float32"), ("torch", "float64"), ("numpy", "int32")])
def test_concat_datasets(form: str, kind: str) -> None:
    """They read sample by sample, and samples may have other dtypes than batches: Python reads them."""
    dataset: Any = table("scalar", kinds=(kind,)).with_format(form)
    for parts in ([dataset] * 2, [dataset, Subset(dataset.shuffle(seed=1), [4, 2])]):
        concat: Any = ConcatDataset(parts)
        assert "single samples of Hugging Face datasets" in penstock.DataLoader(concat, BATCH).explain()
        equal(concat, native=False)
    equal(datasets.concatenate_datasets([dataset, dataset]))


def test_seeds_ranks_and_states() -> None:
    dataset = simple().shuffle(seed=2)

    def made(rank: int = 0, world: int = 1) -> Any:
        return penstock.DataLoader(dataset, BATCH, shuffle=True, seed=5, shard=(rank, world), num_workers=2)

    whole = list(made())
    ranks = [list(made(rank, 2)) for rank in range(2)]
    both = [torch.cat([a["scalar_int64"], b["scalar_int64"]]) for a, b in zip(*ranks, strict=True)]
    assert sorted(torch.cat(both).tolist()[:ROWS]) == sorted(dataset["scalar_int64"][:].tolist())
    begun = made()
    batches = iter(begun)
    first = [next(batches), next(batches)]
    resumed = loaded(made(), begun.state_dict())
    assert_same(bits([*first, *resumed]), bits(whole))
    assert (begun.stats().batches, begun.stats().samples) == (2, 2 * BATCH)


CHANGES: dict[str, Callable[[Any], None]] = {
    "columns": lambda dataset: dataset.set_format("torch", columns=["scalar_int64"]),
    "a dtype": lambda dataset: dataset.set_format("torch", dtype=torch.float64, columns=["scalar_float32"]),
    "a format": lambda dataset: dataset.set_format("numpy"),
    "a transform": lambda dataset: dataset.set_transform(lambda rows: {"n": rows["scalar_int64"]}),
    "an option in place": lambda dataset: dataset._format_kwargs.update(dtype=torch.float64),
    "rows": lambda dataset: vars(dataset).update(_indices=dataset.shuffle(seed=9)._indices),
    "a table": lambda dataset: vars(dataset).update(_data=simple(ROWS)._data),
}


def outcomes(loader: Any, dataset: Any, change: Callable[[Any], None]) -> list[Any]:
    found = []
    for number, batch in enumerate(loader):
        found.append(as_bits(batch))
        if number == 1:
            change(dataset)
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_pass_and_between_passes(change: str) -> None:
    def fresh() -> Any:
        made = simple()
        if "option" in change:
            return made.with_format("torch", columns=["scalar_float32"], dtype=torch.float32)
        return made

    theirs = fresh()
    wanted = outcomes(torch.utils.data.DataLoader(theirs, BATCH), theirs, CHANGES[change])
    given: list[tuple[dict[str, Any], Any]] = [({}, wanted), ({"num_workers": 0}, wanted)]
    for options, batches in (*given, ({"num_workers": 2}, bits_of_torchs(fresh()))):
        ours = fresh()
        loader = penstock.DataLoader(ours, BATCH, **options)
        assert "gather" in loader.explain()
        assert_same(outcomes(loader, ours, CHANGES[change]), batches)
        assert_same(bits(loader), bits_of_torchs(ours))


def test_a_table_is_not_kept() -> None:
    dataset = datasets.Dataset(pa.table({"x": pa.array(np.arange(12, dtype=np.float32))})).with_format("torch")
    equal(dataset)
    kept = weakref.ref(dataset._data.table)
    del dataset
    gc.collect()
    assert kept() is None


def test_mappings_lead_to_rows_as_the_package_leads() -> None:
    dataset = simple()
    table_ = pa.table({"indices": pa.chunked_array([[3, 30], [58, 1]], pa.uint64())})
    dataset._indices = datasets.table.InMemoryTable(table_)
    equal(dataset)

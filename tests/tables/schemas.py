"""Penstock's loader beside torch's on random Hugging Face datasets: `python -m tests.tables.schemas --cases 10000`.

A case is a function of its seed: a table of random columns, its chunks, what `datasets` did to it, a format, a loader.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Subset

import penstock
from tests.differential.values import describe
from tests.same import outcomes
from tests.tables.columns import chunked, column_of

datasets.disable_progress_bars()


@dataclass
class Made:
    """A dataset, and what was done to make it."""

    dataset: Any
    steps: list[str] = field(default_factory=list)


# --- what is done to a dataset ----------------------------------------------------------------------------------------


def upper(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a batch, texts in capital letters: a transform of a user's."""
    return {name: [one.upper() if isinstance(one, str) else one for one in column] for name, column in rows.items()}


def kinds(rows: dict[str, Any]) -> dict[str, Any]:
    return {name: [type(one).__name__ for one in column] for name, column in rows.items()}


def identity(rows: Any) -> Any:
    return rows


def base(draw: Random) -> Made:
    """Return a dataset of some columns, in memory or in a file."""
    rows = draw.choice((1, 2, 3, 7, 20, draw.randrange(1, 51)))
    plain = draw.random() < 0.45
    table, features, steps = {}, {}, [f"{rows} rows"]
    for number in range(draw.choice((1, 1, 2, 3, 5))):
        kind = draw.choice(("numbers", "leaf", "leaf", "nested", "nested", "feature"))
        column, known, said = column_of(draw, rows + 3, kind, plain)
        column, how = chunked(draw, column.slice(draw.randrange(4), rows))
        table[f"c{number}"] = column
        features[f"c{number}"] = known
        steps.append(f"c{number}: {said}, chunks: {how}")
    made = datasets.Dataset(pa.table(table))
    if any(known is not None for known in features.values()):
        whole = {name: made.features[name] if known is None else known for name, known in features.items()}
        info = datasets.DatasetInfo(features=datasets.Features(whole))
        made = datasets.Dataset(
            pa.table({**table, **{name: made.data.table.column(name) for name in table}}), info=info
        )
    return Made(made, steps)


def _on_disk(draw: Random, dataset: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="penstock-schemas-") as folder:
        dataset.save_to_disk(folder, num_shards=draw.choice((1, min(2, len(dataset)))))
        return datasets.load_from_disk(folder)  # its maps outlive the files


ARRANGEMENTS: dict[str, Callable[[Random, Any], Any]] = {
    "select": lambda draw, ds: ds.select(draw.choices(range(len(ds)), k=draw.choice((1, 4, 30)))),
    "select a range": lambda draw, ds: ds.select(range(len(ds) // 3, len(ds))),
    "shuffle": lambda draw, ds: ds.shuffle(seed=draw.randrange(100)),
    "train_test_split": lambda draw, ds: ds.train_test_split(0.5, seed=1)["train"] if len(ds) > 1 else ds,
    "concatenated": lambda draw, ds: datasets.concatenate_datasets([ds, ds.select([0]), ds]),
    "concatenated, shuffled": lambda draw, ds: datasets.concatenate_datasets([ds.shuffle(seed=1), ds]).shuffle(seed=2),
    "beside another": lambda draw, ds: datasets.concatenate_datasets(
        [ds, datasets.Dataset.from_dict({f"beside {ds.num_columns}": [*map(str, range(len(ds)))]})], axis=1
    ),
    "select_columns": lambda draw, ds: ds.select_columns(ds.column_names[-2:]),
    "rename_column": lambda draw, ds: ds.rename_column(ds.column_names[0], "a name"),
    "flatten_indices": lambda draw, ds: ds.shuffle(seed=3).flatten_indices(keep_in_memory=True),
    "sharded": lambda draw, ds: ds.shard(2, 0),
    "batched": lambda draw, ds: ds.select(range(min(6, len(ds)))).batch(2),
    "on disk": _on_disk,
    "nothing": lambda draw, ds: ds,
}

FORMATS: dict[str, Callable[[Random, Any], Any]] = {
    "none": lambda draw, ds: ds,
    "torch": lambda draw, ds: ds.with_format("torch"),
    "numpy": lambda draw, ds: ds.with_format("numpy"),
    "torch in a dtype": lambda draw, ds: ds.with_format(
        "torch", dtype=draw.choice((torch.float32, torch.int64, torch.float16))
    ),
    "numpy in a dtype": lambda draw, ds: ds.with_format("numpy", dtype=np.float32),
    "columns": lambda draw, ds: ds.with_format(
        draw.choice((None, "torch", "numpy")), columns=ds.column_names[:1], output_all_columns=draw.random() < 0.5
    ),
    "a transform": lambda draw, ds: ds.with_transform(draw.choice((upper, kinds, identity))),
    "a transform of columns": lambda draw, ds: ds.with_transform(
        upper, columns=ds.column_names[:1], output_all_columns=draw.random() < 0.5
    ),
    "arrow": lambda draw, ds: ds.with_format("arrow"),
    "pandas": lambda draw, ds: ds.with_format("pandas"),
}
_FORMAT_WEIGHTS = (8, 6, 5, 2, 1, 2, 2, 1, 0.3, 0.3)


class Own(torch.utils.data.Dataset[Any]):
    """A class of a user's around a dataset of the package."""

    def __init__(self, hf: Any, column: str) -> None:
        self.hf = hf
        self.column = column

    def __len__(self) -> int:
        return len(self.hf)

    def __getitem__(self, i: int) -> Any:
        return self.hf[i][self.column]


class Pairs(Own):
    def __getitem__(self, i: int) -> Any:
        row = self.hf[i]
        return row, i


WRAPPED: dict[str, Callable[[Random, Any], Any]] = {
    "itself": lambda draw, ds: ds,
    # The package raises for -1 in a list where it maps indices; the native core reads the last row there, too.
    "a Subset": lambda draw, ds: Subset(ds, draw.choices(range(0 if ds._indices else -1, len(ds)), k=8)),
    "a class": lambda draw, ds: Own(ds, draw.choice(_names(ds))),
    "a class of rows": lambda draw, ds: Pairs(ds, ""),
    "a column": lambda draw, ds: ds[draw.choice(_names(ds))],
}


def _names(dataset: Any) -> list[str]:
    return list(dataset._format_columns or dataset.column_names)


def rows_of(rows: list[Any]) -> Any:
    return rows


def columns_of(rows: list[Any]) -> Any:
    return {name: [row[name] for row in rows] for name in rows[0]} if isinstance(rows[0], dict) else tuple(rows)


def collated_or_rows(rows: list[Any]) -> Any:
    try:
        return torch.utils.data.default_collate(rows)
    except (TypeError, RuntimeError) as error:
        return str(error), rows


# --- a case -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A dataset and the arguments of its loaders."""

    seed: int
    dataset: Any
    steps: tuple[str, ...]
    options: dict[str, Any]

    def __str__(self) -> str:
        return "\n  ".join([f"case {self.seed}", *self.steps, f"options: {self.options}"])


def case_of(seed: int, processes: bool = False) -> Case:
    """Return the case of a seed. `processes`: its loaders have two workers."""
    draw = Random(seed)
    made = base(draw)
    dataset = made.dataset
    for name in draw.choices(list(ARRANGEMENTS), k=draw.choice((0, 1, 1, 2))):
        made.steps.append(name)
        try:
            dataset = ARRANGEMENTS[name](draw, dataset)
        except Exception as error:  # the package's, which does not do it to these types
            made.steps.append(f"refused: {error!r:.100}")
    (how,) = draw.choices(list(FORMATS), _FORMAT_WEIGHTS)
    dataset = FORMATS[how](draw, dataset)
    made.steps.append(f"format: {how} {dataset.format['format_kwargs']}")
    (around,) = draw.choices(list(WRAPPED), (10, 1, 1, 1, 0.5))
    dataset = WRAPPED[around](draw, dataset)
    made.steps.append(around)
    batch = draw.choice((1, 3, 3, 4, len(dataset), None))
    options: dict[str, Any] = {"batch_size": batch, "num_workers": 2 if processes else 0}
    collate = draw.choice((None, None, rows_of, rows_of, columns_of, collated_or_rows))
    if collate is not None:
        options["collate_fn"] = collate
    if draw.random() < 0.4:
        options["shuffle"] = True
    if batch is not None and draw.random() < 0.2:
        options["drop_last"] = True
    return Case(seed, dataset, tuple(made.steps), options)


def described(value: Any) -> str:
    """Return `describe` of a value, and whether arrays in it can be written to; object arrays by their elements.

    The strides of what is empty are left out: numpy's depend on where it comes from.
    """
    if isinstance(value, torch.Tensor) and not value.numel():
        return f"Tensor {value.dtype} {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return f"ndarray {value.dtype} {value.shape} ({', '.join(map(described, value.reshape(-1)))})"
        text = describe(value) if value.size else f"ndarray {value.dtype} {value.shape}"
        return f"{text} writeable={value.flags.writeable}"
    if isinstance(value, dict):
        return f"{type(value).__name__} {{{', '.join(f'{key!r}: {described(one)}' for key, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} ({', '.join(map(described, value))})"
    return describe(value)


def difference(case: Case) -> str | None:
    """Return how two passes of our loader differ from torch's, or None. A warning of Penstock's is a difference."""
    processes = case.options["num_workers"] > 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.manual_seed(case.seed)
        theirs = torch.utils.data.DataLoader(case.dataset, **case.options)
        wanted = [_seen(one, processes) for one in outcomes(theirs)]
        ours = penstock.DataLoader(case.dataset, **case.options)
        for number in range(2):
            torch.manual_seed(case.seed)
            found = [_seen(one, processes) for one in outcomes(ours)]
            for index, (a, b) in enumerate(itertools.zip_longest(found, wanted)):
                if not (a and b and _equal(a, b)):
                    return f"pass {number}, batch {index}\n  ours    {a}\n  torch's {b}"
        ours.explain()
    said = [str(one.message) for one in warned if "enstock" in str(one.message)]
    return f"warnings: {said}" if said else None


def _equal(ours: str, theirs: str) -> bool:
    """Return whether two descriptions are equal; an array of ours may be written to where the package's may not."""
    flags = list(zip(_WRITEABLE.findall(ours), _WRITEABLE.findall(theirs), strict=False))
    return _WRITEABLE.sub("", ours) == _WRITEABLE.sub("", theirs) and ("False", "True") not in flags


_WRITEABLE = re.compile(" writeable=(True|False)")


def _seen(outcome: Any, processes: bool) -> str:
    """Return what was given or raised as text; of an error in a worker, its type and its first line of words."""
    if processes and isinstance(outcome, tuple) and all(isinstance(one, str) for one in outcome):
        words = re.findall(r"^[\w.]*(?:Error|Invalid|NotImplemented)\w*: (.*)", outcome[1], re.MULTILINE)
        return f"raised {outcome[0]} {words[-1] if words else outcome[1].partition(chr(10))[0]}"
    return described(outcome)


def verdict(seed: int, processes: bool = False) -> str | None:
    """Return the case of a seed and how the loaders differ, or None where they do not."""
    case = case_of(seed, processes)
    try:
        found = difference(case)
    except Exception:
        found = traceback.format_exc()
    return None if found is None else f"{case}\n{found}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tables.schemas", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next one's is one more")
    parser.add_argument("--processes", type=int, default=25, help="one case in so many has two workers; 0: none has")
    parser.add_argument("--failures", type=int, default=5, help="stop behind so many")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = 0
    for seed in range(options.seed, options.seed + options.cases):
        found = verdict(seed, bool(options.processes) and seed % options.processes == 0)
        if found is not None:
            failed += 1
            print(found, flush=True)
        if failed >= options.failures:
            break
    print(f"{seed + 1 - options.seed} cases, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

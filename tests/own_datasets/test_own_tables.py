"""Datasets that are indexed by a table: pandas, CSV and JSON files, and SQLite."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

from tests.own_datasets.conformance import assert_conforms, kinds, listed, optional

pandas = optional("pandas")
TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.ToTensor()])


@pytest.fixture(scope="module")
def table(photos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a CSV file of photos and labels."""
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "score"])
        rows.writerows([str(photo), i % 3, i / 7] for i, photo in enumerate(photos))
    return path


class Rows(Dataset):
    def __init__(self, table: Path) -> None:
        with open(table, newline="") as file:
            self.rows = list(csv.DictReader(file))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row: dict[str, Any] = dict(self.rows[index])
        image = TRANSFORM(Image.open(row["path"]).convert("RGB"))
        return row | {"image": image, "label": int(row["label"]), "score": float(row["score"])}


class JsonLines(Dataset):
    """Finds lines by their offsets in a file that each sample opens."""

    def __init__(self, table: Path) -> None:
        self.path = table.with_suffix(".jsonl")
        lines = [json.dumps({"text": f"line {i} é", "ids": list(range(i % 4))}) + "\n" for i in range(12)]
        self.path.write_text("".join(lines))
        self.offsets = [0, *itertools.accumulate(map(len, self.path.read_bytes().splitlines(keepends=True)))]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(self.offsets[index])
            found = json.loads(file.readline())
        ids = (found["ids"] + [0, 0, 0])[:3]
        return found["text"], torch.tensor(ids), len(found["ids"])


class Database(Dataset):
    """SQLite, with a connection for each process and thread that reads."""

    def __init__(self, table: Path) -> None:
        self.path = table.with_suffix(".db")
        with sqlite3.connect(self.path) as connection:
            connection.execute("create table if not exists samples (id integer primary key, data blob, label int)")
            rows = ((i, np.arange(4, dtype=np.float32).tobytes(), i % 3) for i in range(12))
            connection.executemany("insert or replace into samples values (?, ?, ?)", rows)
        connection.close()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            data, label = connection.execute("select data, label from samples where id = ?", (int(index),)).fetchone()
        return torch.frombuffer(bytearray(data), dtype=torch.float32), label


@kinds(Rows, unseeded=(JsonLines, Database))
def test_tables(kind: Any, seed: int | None, table: Path) -> None:
    assert_conforms(kind(table), seed=seed)


class Frame(Dataset):
    """The class of torch's own tutorial: annotations in a DataFrame, read by iloc."""

    needs = ("pandas",)

    def __init__(self, table: Path) -> None:
        self.frame = pandas.read_csv(table)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return TRANSFORM(Image.open(row["path"]).convert("RGB")), self.frame.iloc[index, 1], row.score


class Columns(Frame):
    def __getitem__(self, index: int) -> Any:
        numbers = self.frame[["label", "score"]].to_numpy(dtype=np.float32)[index]
        return numbers, self.frame["path"].values[index], self.frame.loc[index, "label"]


class Groups(Frame):
    """A sample is a group of rows, of any number."""

    def __init__(self, table: Path) -> None:
        super().__init__(table)
        self.groups = dict(list(self.frame.groupby("label")))

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.groups[index]["score"].tolist()[: 2 + index]), index


@kinds(Frame, Columns)
def test_frames(kind: Any, table: Path) -> None:
    assert_conforms(kind(table))


class RowsThemselves(Frame):
    def __getitem__(self, index: int) -> Any:
        return self.frame.iloc[index], self.frame.iloc[[index]]


@kinds(Groups, RowsThemselves)
def test_rows_as_samples(kind: Any, table: Path) -> None:
    assert_conforms(kind(table), collate_fn=listed, seed=None)

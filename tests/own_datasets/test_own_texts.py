"""Datasets of texts, time series and graphs; and those indexed by a table: pandas, CSV and SQLite."""

from __future__ import annotations

import contextlib
import csv
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

from tests.data import Made
from tests.own_datasets.conformance import assert_conforms, kinds, listed, optional


class Texts(Dataset):
    """Words to numbers, by a vocabulary; cut and padded to one length."""

    texts = tuple(f"The {word} fox, {i} of them: it's here!" * (1 + i % 3) for i, word in enumerate("abcdefghijkl"))

    def __init__(self) -> None:
        self.split = re.compile(r"\w+|[^\w\s]").findall
        words = sorted({word for text in self.texts for word in self.split(text.lower())})
        self.vocabulary = {word: i + 1 for i, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        ids = [self.vocabulary.get(word, 0) for word in self.split(self.texts[index].lower())][:12]
        rest = [0] * (12 - len(ids))
        return {"ids": torch.tensor(ids + rest), "mask": [1] * len(ids) + rest, "text": self.texts[index]}


class Masked(Texts):
    """A language model's data: some of the tokens are replaced."""

    def __getitem__(self, index: int) -> Any:
        ids = super().__getitem__(index)["ids"]
        chosen = torch.bernoulli(torch.full(ids.shape, 0.15)).bool()
        return ids.masked_fill(chosen, 103), torch.where(chosen, ids, -100), random.choice(self.texts)


class Windows(Dataset):
    """Sliding windows of a time series, normalised by their own mean."""

    def __init__(self) -> None:
        self.series = torch.sin(torch.arange(60.0)).repeat(2, 1).t().contiguous()

    def __len__(self) -> int:
        return len(self.series) - 24

    def __getitem__(self, index: int) -> Any:
        window = self.series[index : index + 20]
        return ((window - window.mean(0)) / window.std(0)).t(), self.series[index + 20 : index + 24], index

    def __iter__(self) -> Any:  # which torch's loader does not call
        raise AssertionError("a map-style dataset is indexed")


SEQUENCES: dict[str, tuple[Callable[[], Any], int | None]] = {
    "masked": (Masked, 7),
    "texts": (Texts, None),
    "windows": (Windows, None),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str) -> None:
    make, seed = SEQUENCES[name]
    assert_conforms(make(), seed=seed)


class Graph:
    """A graph of any number of nodes, with a batch that torch_geometric would make."""

    def __init__(self, x: torch.Tensor, edges: torch.Tensor, **more: Any) -> None:
        self.x, self.edges = x, edges
        vars(self).update(more)

    @classmethod
    def batch(cls, graphs: list[Graph]) -> Graph:
        sizes = torch.tensor([len(graph.x) for graph in graphs])
        starts = sizes.cumsum(0) - sizes
        edges = [graph.edges + start for graph, start in zip(graphs, starts, strict=True)]
        where = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
        return cls(torch.cat([graph.x for graph in graphs]), torch.cat(edges, 1), batch=where, count=len(graphs))


def graph(index: int) -> Any:
    nodes = 2 + index % 4
    return Graph(torch.rand(nodes, 3), torch.randint(nodes, (2, index)), y=torch.tensor([index]))


def test_graphs() -> None:
    assert_conforms(Made(graph, 12), collate_fn=Graph.batch)


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


def csv_rows(table: Path) -> Made:
    with open(table, newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))

    def read(index: int) -> Any:
        row, image = rows[index], TRANSFORM(Image.open(rows[index]["path"]).convert("RGB"))
        return row | {"image": image, "label": int(row["label"]), "score": float(row["score"])}

    return Made(read, len(rows))


def database(table: Path) -> Made:
    """Read SQLite, with a connection for each process and thread that reads."""
    path = table.with_suffix(".db")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table if not exists samples (id integer primary key, data blob, label int)")
        rows = ((i, np.arange(4, dtype=np.float32).tobytes(), i % 3) for i in range(12))
        connection.executemany("insert or replace into samples values (?, ?, ?)", rows)

    def read(index: int) -> Any:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            data, label = connection.execute("select data, label from samples where id = ?", (int(index),)).fetchone()
        return torch.frombuffer(bytearray(data), dtype=torch.float32), label

    return Made(read, 12)


@pytest.mark.parametrize(("make", "seed"), [(csv_rows, 7), (database, None)])
def test_tables(make: Any, seed: int | None, table: Path) -> None:
    assert_conforms(make(table), seed=seed)


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


@kinds(Frame)
def test_frames(kind: Any, table: Path) -> None:
    assert_conforms(kind(table))


class RowsThemselves(Frame):
    def __getitem__(self, index: int) -> Any:
        return self.frame.iloc[index], self.frame.iloc[[index]]


@kinds(RowsThemselves)
def test_rows_as_samples(kind: Any, table: Path) -> None:
    assert_conforms(kind(table), collate_fn=listed, seed=None)

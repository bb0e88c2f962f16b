"""Datasets of sounds, texts, time series and graphs; and those indexed by a table: pandas, CSV, JSON and SQLite."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import random
import re
import sqlite3
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchvision import transforms as T

from tests.data import Made
from tests.own_datasets.conformance import assert_conforms, kinds, listed, optional

soundfile = optional("soundfile")
RATE = 8000


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the paths of 10 WAV files of different lengths."""
    folder = tmp_path_factory.mktemp("sounds")
    draw = np.random.default_rng(5)
    for i in range(10):
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(draw.integers(-9999, 9999, 300 + 37 * i, dtype=np.int16).tobytes())
    return sorted(folder.iterdir())


class Sounds(Dataset):
    """The wave module, and a padding collate_fn."""

    needs: tuple[str, ...] = ()

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def samples(self, index: int) -> torch.Tensor:
        with wave.open(str(self.paths[index]), "rb") as file:
            frames = file.readframes(file.getnframes())
        return torch.from_numpy(np.frombuffer(frames, dtype=np.int16).astype(np.float32) / 32768)

    def __getitem__(self, index: int) -> Any:
        return self.samples(index), self.paths[index].stem

    @staticmethod
    def collate(batch: list[Any]) -> Any:
        sounds, names = zip(*batch, strict=True)
        return pad_sequence(list(sounds), batch_first=True), torch.tensor([len(sound) for sound in sounds]), names


class Chunks(Sounds):
    """A random second of each sound, with noise."""

    collate: Any = None

    def __getitem__(self, index: int) -> Any:
        sound = self.samples(index)
        start = random.randint(0, len(sound) - 256)
        return (sound[start : start + 256] + 0.01 * torch.randn(256))[None]


class Spectra(Sounds):
    """torch.stft, and parts of it masked out."""

    def __getitem__(self, index: int) -> Any:
        spectrum = torch.stft(self.samples(index), 64, 32, window=torch.hann_window(64), return_complex=True).abs()
        begin = int(torch.randint(spectrum.shape[0] - 4, (1,)))
        spectrum[begin : begin + 4] = 0
        rounded = (spectrum * 100).round()  # the last bits depend on the number of threads
        return rounded.t(), self.paths[index].name


class SoundFile(Sounds):
    needs = ("soundfile",)

    def __getitem__(self, index: int) -> Any:
        samples, rate = soundfile.read(self.paths[index], dtype="float32", frames=300)
        return torch.from_numpy(samples), f"{rate}"


@kinds(Sounds, Chunks, Spectra, SoundFile)
def test_sounds(kind: Any, sounds: list[Path]) -> None:
    assert_conforms(kind(sounds), collate_fn=kind.collate)


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


TOKENS = np.arange(600, dtype=np.uint16)


def tokens(index: int) -> Any:
    """Return blocks of an array of tokens, as nanoGPT reads them."""
    x = torch.from_numpy(TOKENS[index * 32 : index * 32 + 32].astype(np.int64))
    return x, torch.from_numpy(TOKENS[index * 32 + 1 : index * 32 + 33].astype(np.int64))


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


#: Records of a fixed length.
BINARY = b"".join(struct.pack("<if4s", i, i / 2, b"%04d" % i) for i in range(12))
SEQUENCES: dict[str, tuple[Callable[[], Any], int | None]] = {
    "masked": (Masked, 7),
    "texts": (Texts, None),
    "windows": (Windows, None),
    "tokens": (lambda: Made(tokens, 18), None),
    "binary": (lambda: Made(lambda i: struct.unpack_from("<if4s", BINARY, 12 * i), 12), None),
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


def cloud(index: int) -> Any:
    points = np.random.rand(3 + index, 3).astype(np.float32)
    return points[np.argsort(points[:, 0])], np.random.choice(10, 2, replace=False)


@pytest.mark.parametrize(("make", "collate"), [(graph, Graph.batch), (cloud, listed)])
def test_graphs_and_clouds(make: Any, collate: Any) -> None:
    assert_conforms(Made(make, 12), collate_fn=collate)


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


def json_lines(table: Path) -> Made:
    """Find lines by their offsets in a file that each sample opens."""
    path = table.with_suffix(".jsonl")
    lines = [json.dumps({"text": f"line {i} é", "ids": list(range(i % 4))}) + "\n" for i in range(12)]
    path.write_text("".join(lines))
    offsets = [0, *itertools.accumulate(map(len, path.read_bytes().splitlines(keepends=True)))]

    def read(index: int) -> Any:
        with open(path, "rb") as file:
            file.seek(offsets[index])
            found = json.loads(file.readline())
        return found["text"], torch.tensor((found["ids"] + [0, 0, 0])[:3]), len(found["ids"])

    return Made(read, 12)


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


@pytest.mark.parametrize(("make", "seed"), [(csv_rows, 7), (json_lines, None), (database, None)])
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

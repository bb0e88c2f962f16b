"""penstock view on the command line, and what DATASET may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock.errors import InvalidOption
from tests.commands import command, fails
from tests.data import tensor_files, write_photos
from tests.insight.sheets import viewed

MODULE = """
import torch
import penstock
class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((3, 16, 16), index / 4), index % 2
class Holder:
    loader = penstock.DataLoader(Pictures(), batch_size=2, num_workers=0)
    @staticmethod
    def torchs():
        return torch.utils.data.DataLoader(Pictures(), batch_size=2)
class Bad(Pictures):
    def __getitem__(self, index):
        if index == 2:
            raise RuntimeError("two is\\nbad")
        return super().__getitem__(index)
dataset = Pictures()
bad, number = Bad(), 5
def needs(path):
    return dataset
def stops():
    raise SystemExit("usage: ...")
"""


@pytest.fixture
def module(user_module: Callable[[str, str], str]) -> str:
    return user_module("own_pictures_of_a_test", MODULE)


def test_splits(tmp_path: Path) -> None:
    photos = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    for split in ("train", "test"):
        penstock.pack(photos, tmp_path / "packed", split=split)
    packed = str(tmp_path / "packed")
    command("view", packed, "--split", "test", "-o", tmp_path / "a.html")
    assert "cat/1.jpg" in (tmp_path / "a.html").read_text()
    assert "split" in fails("view", packed)
    words = "--split is of a folder of packed shards; "
    assert words in (said := fails("view", str(tmp_path / "photos"), "--split", "train"))
    assert "photos has no dataset.json" in said


def test_objects_of_modules(module: str, tmp_path: Path) -> None:
    write_photos(Path("a:b"), count=1)  # a path that exists
    for given, words in (
        *((f"{module}:{name}", "Pictures: batch 0") for name in ("dataset", "Pictures")),
        *((f"{module}:Holder.{name}", "DataLoader, 2 samples") for name in ("loader", "torchs")),
        ("a:b", "ImageFolder: batch 0"),
    ):
        assert words in command("view", given, "-o", tmp_path / "a.html"), given


def test_what_is_no_dataset(module: str, tmp_path: Path) -> None:
    Path("broken_of_a_test.py").write_text("1 / 0")
    Path("notes.txt").write_text("")
    Path("exits_of_a_test.py").write_text("raise SystemExit(3)")
    for text, words in (
        ("no/such:thing", "no such folder"),
        (f"{module}.py:dataset", f"as in {module}:dataset"),
        ("broken_of_a_test.py", "a file: give the folder of a dataset, or broken_of_a_test:NAME, a dataset or loader"),
        ("notes.txt", "is a file: give the folder of a dataset instead"),
        (f"{module}:cats", "has no 'cats'"),
        (f"{module}:number", "an object of type int"),
        (f"{module}:needs", "cannot be called without arguments: TypeError"),
        (f"{module}:Holder", "an object of type Holder"),
        ("no_such_module_of_a_test:x", "cannot be imported: ModuleNotFoundError"),
        ("broken_of_a_test:x", "cannot be imported: ZeroDivisionError: division by zero"),
        ("exits_of_a_test:x", "cannot be imported: SystemExit: 3"),
        ("", "penstock: "),
        ("a\nb", "a\\nb"),
    ):
        assert words in fails("view", text), text
    assert "--split" in fails("view", f"{module}:dataset", "--split", "train")


def test_a_sheet_in_the_current_folder(module: str) -> None:
    first = "penstock-view.png: Pictures: batch 0 of a penstock.DataLoader, 4 samples\n"
    for _ in range(2):  # the second time over the first one's file
        out = command("view", f"{module}:dataset")
        assert out.startswith(first) and "0: float32 (3, 16, 16), values 0 .. 0.75" in out
    with Image.open("penstock-view.png") as image:
        pixels = np.asarray(image)
    for value in (0, 64, 128, 191):  # rounded: 0.25 and 0.75 of 255
        assert (pixels == value).all(axis=2).sum() >= 16 * 16


def test_folders_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    penstock.pack(penstock.ImageFolder(write_photos(tmp_path / "photos", count=2)), tmp_path / "packed")
    tensor_files(tmp_path / "data", 3, (3, 8, 8))
    for given, more, words in (
        ("photos", [], "cat/1.jpg"),
        ("packed", [], "<p>1 dog</p>"),
        ("data", ["--mean=-1", "--std", "2,2,2"], "mean -1; std 2, 2, 2"),
    ):
        command("view", tmp_path / given, "-o", out, *more)
        assert words in out.read_text()


def test_mistakes_are_one_line(module: str, tmp_path: Path) -> None:
    Path("folder.png").mkdir()
    for arguments, words in (
        ([], "DATASET"),
        (["nowhere"], "nowhere: there is no such folder"),
        ([str(tmp_path)], "class"),
        ([module], "no such folder"),
        ([f"{module}.py"], f"{module}:NAME"),
        ([f"{module}:Holder.loader", "--batch-size", "2"], "options of a dataset"),
        ([f"{module}:bad"], "failed: RuntimeError: two is bad (in __getitem__ of sample 2)"),
        ([f"{module}:stops"], "SystemExit"),
    ):
        assert words in fails("view", *arguments), arguments
    for options, words in (
        ("-o a.jpg", ".png or .html"),
        ("-o none/a.png", "none: there is no such folder for the sheet"),
        ("-o folder.png", "folder.png: Is a directory"),
        ("--batch -1", "'-1' is not a whole number of 0 or more"),
        ("--batch 1", "no batch 1: a penstock.DataLoader has 1 batch"),
        ("--batch-size 0", "at least 1"),
        ("--max 0", "at least 1"),
        ("--mean a,b", "numbers with commas"),
        ("--std 1,nan", "numbers with commas"),
        ("--std 0", "--std holds 0"),
        ("--mean 1,2 --std 1,2,3", "one a channel"),
        ("--mean 1 --as-is", "exclude each other"),
    ):
        assert words in fails("view", f"{module}:dataset", *options.split()), options
    assert not Path("penstock-view.png").exists()


def test_tokens_as_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    columns = {"input_ids": [[1, 2], [2, 0, 1]], "labels": [[-100, 2], [2, 0, -100]], "weight": [1, 2]}
    rows = datasets.Dataset.from_dict(columns)
    model = {"type": "WordLevel", "vocab": {"penstock": 0, "turbine": 1, "wheel": 2}, "unk_token": "wheel"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    options = ("--tokenizer", str(tmp_path))
    for table in (rows, rows.with_format("torch")):
        texts = viewed(table, *options).texts[1]
        assert texts == ("input_ids: wheel penstock turbine", "labels: wheel penstock", "weight: 2")
    pairs = penstock.DataLoader(rows, 2, collate_fn=lambda rows: {"input_ids": [row["input_ids"] for row in rows]})
    assert viewed(pairs, *options).texts == [("input_ids: turbine wheel",), ("input_ids: wheel penstock turbine",)]
    with pytest.raises(InvalidOption, match="no field of tokens"):
        viewed(datasets.Dataset.from_dict({"x": [[1, 2]]}), *options)
    missing = str(tmp_path / "none")
    with pytest.raises(InvalidOption, match=f"--tokenizer {missing}: "):
        viewed(rows, "--tokenizer", missing)

"""penstock view on the command line, and what DATASET may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock
from tests.commands import command, fails
from tests.data import tensor_files, write_photos

MODULE = """
import torch
import penstock
class Pictures(torch.utils.data.Dataset):
    classes = ["cat", "dog"]
    list_IDs = ["<script>a</script>", "b", "c", "d"]
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
class Empty(Pictures):
    def __len__(self):
        return 0
dataset = Pictures()
bad, empty, number = Bad(), Empty(), 5
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


def test_a_page_of_a_loader(module: str) -> None:
    command("view", f"{module}:Holder.loader", "--batch", "1", "-o", "b.html", "--max", "1")
    page = Path("b.html").read_text()
    assert "batch 1 of a penstock.DataLoader" in page and '<p class="id">c</p>' in page and "<p>0 cat</p>" in page
    assert '<p class="id">d</p>' not in page and "the first 1 of 2 samples" in page
    said = command("view", f"{module}:dataset", "-o", "a.html", "--batch-size", "3", "--seed", "3", "--shuffle")
    page = Path("a.html").read_text()
    assert page.count("<figure>") == 3 and "seed 3" in page and "<script>" not in page
    assert "&lt;script&gt;a" in page or page.count('<p class="id">') == 3
    assert "a.html: Pictures: " in said


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
        ([f"{module}:empty"], "the dataset, a Empty, is empty"),
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


TEXTS = """
import datasets, penstock
columns = {"input_ids": [[1, 2], [2, 0, 1]], "labels": [[-100, 2], [2, 0, -100]], "weight": [1, 2]}
rows = datasets.Dataset.from_dict(columns)
torchs = rows.with_format("torch")
def listed(rows):
    return {"input_ids": [row["input_ids"] for row in rows]}
pairs = penstock.DataLoader(rows.select([0, 0]), 2, collate_fn=listed)
numbers = datasets.Dataset.from_dict({"x": [[1, 2]]})
"""


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed: pip install transformers")
@pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed: pip install datasets")
def test_tokens_as_text(user_module: Callable[[str, str], str], tmp_path: Path) -> None:
    module, out = user_module("own_texts_of_a_test", TEXTS), str(tmp_path / "a.html")
    folder = tmp_path / "words"
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {"penstock": 0, "turbine": 1, "wheel": 2}, "unk_token": "wheel"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    for name in ("rows", "torchs"):
        command("view", f"{module}:{name}", "--tokenizer", folder, "-o", out)
        page = Path(out).read_text()
        assert "input_ids: wheel penstock turbine" in page and "labels: wheel penstock<" in page and "weight: 2" in page
    command("view", f"{module}:pairs", "--tokenizer", folder, "-o", out)
    assert Path(out).read_text().count("turbine wheel") == 2
    assert "no field of tokens" in fails("view", f"{module}:numbers", "--tokenizer", str(folder), "-o", out)
    missing = str(tmp_path / "none")
    assert f"--tokenizer {missing}: " in fails("view", f"{module}:rows", "--tokenizer", missing, "-o", out)

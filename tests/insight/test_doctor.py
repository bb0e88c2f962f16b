"""``penstock doctor``: its table, its JSON, its exit codes, and one line for each wrong DATASET."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import doctor, main
from penstock.insight.machine import Check, DatasetFiles, State
from tests.data import photo_files, tensor_files
from tests.insight.penstock_processes import Captured

TRAIN = """
import random
import torch
import penstock
print("the module's own words")
class Noisy(torch.utils.data.Dataset):
    def __init__(self, file=None):
        self.file = file
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return random.random()
noisy = Noisy()
opened = Noisy(open(__file__))
quiet = torch.utils.data.TensorDataset(torch.zeros(4))
class Lengthless(Noisy):
    def __len__(self):
        raise OSError("the list of files is gone")
lengthless = Lengthless()
def make():
    print("called")
    return penstock.DataLoader(quiet, batch_size=2)
"""


@pytest.fixture
def folder(tmp_path: Path, user_module: Callable[[str, str], str]) -> Path:
    """Return a working folder with modules of a user's."""
    user_module("own_train", TRAIN)
    user_module("own_broken", "raise ValueError('first line\\nsecond line')\n")
    return tmp_path


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a machine without faults in the place of this one; return what was asked of it."""
    seen: list[Any] = []

    def examine(of: DatasetFiles | None = None) -> Iterator[Check]:
        seen.append(of)
        yield Check("CPUs", State.OK, "8 CPUs usable")

    monkeypatch.setattr(doctor, "examine", examine)
    return seen


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    given = [argument for argument in arguments if not argument.startswith("-")]
    code = main(["doctor", *arguments, *(["--no-measure"] if given else [])])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = sorted(os.listdir(folder))
    code, out, err = run(capsys)
    assert code == (1 if " bad" in out.splitlines()[-1] else 0) and err == ""
    lines = out.splitlines()
    assert any(" CPUs " in line for line in lines) and any("/dev/shm" in line for line in lines)
    columns = {line.index("  ", 14) for line in lines if line.startswith("worth a look")}
    assert len(columns) <= 3
    assert sorted(os.listdir(folder)) == before
    json.loads(run(capsys, "--json")[1])


def test_exit_code_and_json_of_a_bad_machine(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    checks = [Check("CPUs", State.BAD, "0.5 CPU", "more \x1b[31m"), Check("disk", State.UNKNOWN, "no words")]
    monkeypatch.setattr(doctor, "examine", lambda _=None: iter(checks))
    table = "bad      CPUs  0.5 CPU\n               -> more \\x1b[31m\nunknown  disk  no words\n\n1 bad, 1 unknown\n"
    assert run(capsys)[:2] == (1, table)
    code, out, _ = run(capsys, "--json")
    machine = [
        {"name": "CPUs", "state": "bad", "found": "0.5 CPU", "change": "more \x1b[31m"},
        {"name": "disk", "state": "unknown", "found": "no words", "change": ""},
    ]
    assert (code, json.loads(out)) == (1, {"penstock": penstock.__version__, "bad": True, "machine": machine})
    del checks[0]
    assert run(capsys)[0] == 0


def test_an_image_folder(folder: Path, healthy: list[Any], capsys: Captured) -> None:
    photo_files(folder / "photos", 1)
    code, out, err = run(capsys, "photos")
    assert (code, err) == (0, "") and "photos: no remark of the lint" in out
    assert healthy[0].folder == str(folder / "photos" / "class0")


def test_a_folder_of_tensors_really_measured(folder: Path, capsys: Captured) -> None:
    tensor_files(folder / "data", 3)
    before = sorted(os.listdir(folder / "data"))
    code, out, _ = run(capsys, "data", "--json")
    found = json.loads(out)
    names = [check["name"] for check in found["machine"]]
    assert {"page cache", "file system"} <= set(names)
    assert code == int(found["bad"]) and found["lint"] == [] and found["dataset"] == "data"
    assert sorted(os.listdir(folder / "data")) == before


def test_files_that_are_missing(folder: Path, user_module: Callable[[str, str], str], capsys: Captured) -> None:
    photo_files(folder / "photos", 3)
    listed = "[f'photos/class0/{i}.jpg' for i in range(400)]"
    user_module("own_list", f"import penstock\nphotos = penstock.Images({listed})\n")
    code, out, _ = run(capsys, "own_list:photos")
    assert code == 1 and "of 400 files are missing, the first: " in out


@pytest.mark.usefixtures("healthy", "folder")
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("noisy", 0, ["own_train:noisy: no remark of the lint"]),
        ("Noisy", 0, ["no remark"]),
        ("quiet", 0, []),
        ("make", 0, []),
        ("opened", 1, ["own_train:opened: 1 remark of the lint", "Noisy (own_train.py:6)"]),
        ("lengthless", 0, ["unknown  dataset files  what was checked raised OSError: the list of files is gone"]),
    ],
)
def test_an_object_of_a_module(name: str, code: int, words: list[str], capsys: Captured) -> None:
    found, out, err = run(capsys, f"own_train:{name}")
    assert found == code and all(one in out for one in words), out
    assert "the module's own words" in err and "words" not in out
    rules = [one["rule"] for one in json.loads(run(capsys, f"own_train:{name}", "--json")[1])["lint"]]
    assert rules == ["open-handle"] * code


@pytest.mark.usefixtures("folder", "healthy")
def test_wrong_datasets(capsys: Captured) -> None:
    """tests/insight/test_view.py has the others."""
    for name, words in {
        "own_broken:dataset": "ValueError: first line\\nsecond line",
        ".": "penstock: ",
        "own_train.py": "own_train:NAME, a dataset or loader in it",
        "": "penstock: ",
        "a\nb": "a\\nb",
    }.items():
        code, out, err = run(capsys, name)
        assert (code, out, err.count("\n")) == (2, "", 1) and words in err, err


@pytest.mark.parametrize("flat", [False, True])
def test_a_folder_of_photos_is_measured_with_a_transform(
    flat: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, healthy: list[Any], capsys: Captured
) -> None:
    for module in ("loop_model", "insight.diagnosis"):
        monkeypatch.setattr(f"penstock.{module}.LEAST_SECONDS", 0.05)
    photo_files(folder / "photos", 64)
    given = "photos/class0" if flat else "photos"
    assert main(["doctor", given, "--seconds", "0.5", "--batch-size", "2"]) == 0
    out = capsys.readouterr().out
    assert "Resize(256), CenterCrop(224), ToTensor(), the default transform" in out and "stage decode" in out
    assert "What the words mean: docs/waiting.md" in out

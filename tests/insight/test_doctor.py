"""``penstock doctor``: its checks as table and JSON, the lint, a loop measured in its parts, and the changes tried."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.cli import doctor
from penstock.insight.diagnosis import loader_maker
from penstock.insight.machine import Check, DatasetFiles, State
from tests.commands import Said, command, ran
from tests.data import Stream, photo_files, tensor_files
from tests.same import assert_same

TRAIN = """
import random
import time
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
class Slow(Noisy):
    def __len__(self):
        return 5000
    def __getitem__(self, index):
        time.sleep(2e-3)  # a slow file
        return torch.zeros(4)
slow = Slow()
class Failing(Noisy):
    def __getitem__(self, index):
        raise KeyError("no such sample")
failing = Failing()
rows = torch.utils.data.TensorDataset(torch.arange(8))
empty = torch.utils.data.DataLoader(rows, 16, drop_last=True)
number = 5
def step(batch):
    assert batch.shape[1:] == (4,)
def slow_step(batch):
    time.sleep(5e-3)
def make():
    print("called")
    return penstock.DataLoader(quiet, batch_size=2)
"""


@pytest.fixture
def folder(tmp_path: Path, user_module: Callable[[str, str], str]) -> Path:
    """Return a working folder with a module of a user's."""
    user_module("own_train", TRAIN)
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


def checked(*arguments: str, code: int | None = 0) -> Said:
    """Run the doctor without a measurement."""
    given = [argument for argument in arguments if not argument.startswith("-")]
    return ran("doctor", *arguments, *(["--no-measure"] if given else []), code=code)


def test_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = sorted(os.listdir(folder))
    out, err = checked(code=None)
    lines = out.splitlines()
    assert err == "" and any(" CPUs " in line for line in lines) and any("/dev/shm" in line for line in lines)
    columns = {line.index("  ", 14) for line in lines if line.startswith("worth a look")}
    assert len(columns) <= 3
    assert sorted(os.listdir(folder)) == before
    json.loads(checked("--json", code=1 if " bad" in lines[-1] else 0).out)


def test_exit_code_and_json_of_a_bad_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("CPUs", State.BAD, "0.5 CPU", "more \x1b[31m"), Check("disk", State.UNKNOWN, "no words")]
    monkeypatch.setattr(doctor, "examine", lambda _=None: iter(checks))
    table = "bad      CPUs  0.5 CPU\n               -> more \\x1b[31m\nunknown  disk  no words\n\n1 bad, 1 unknown\n"
    assert checked(code=1).out == table
    machine = [
        {"name": "CPUs", "state": "bad", "found": "0.5 CPU", "change": "more \x1b[31m"},
        {"name": "disk", "state": "unknown", "found": "no words", "change": ""},
    ]
    found = json.loads(checked("--json", code=1).out)
    assert found == {"penstock": penstock.__version__, "bad": True, "machine": machine}
    del checks[0]
    checked()


def test_an_image_folder(folder: Path, healthy: list[Any]) -> None:
    photo_files(folder / "photos", 1)
    out, err = checked("photos")
    assert err == "" and "photos: no remark of the lint" in out
    assert healthy[0].folder == str(folder / "photos" / "class0")


def test_a_folder_of_tensors_on_this_machine(folder: Path) -> None:
    tensor_files(folder / "data", 3)
    before = sorted(os.listdir(folder / "data"))
    found = json.loads(checked("data", "--json", code=None).out)
    assert {"page cache", "file system"} <= {check["name"] for check in found["machine"]}
    assert found["lint"] == [] and found["dataset"] == "data"
    assert sorted(os.listdir(folder / "data")) == before


def test_files_that_are_missing(folder: Path, user_module: Callable[[str, str], str]) -> None:
    photo_files(folder / "photos", 3)
    listed = "[f'photos/class0/{i}.jpg' for i in range(400)]"
    user_module("own_list", f"import penstock\nphotos = penstock.Images({listed})\n")
    assert "of 400 files are missing, the first: " in checked("own_list:photos", code=1).out


@pytest.mark.usefixtures("healthy", "folder")
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("noisy", 0, ["own_train:noisy: no remark of the lint"]),
        ("Noisy", 0, ["no remark"]),
        ("quiet", 0, []),
        ("make", 0, []),
        ("opened", 1, ["own_train:opened: 1 remark of the lint", "Noisy (own_train.py:7)"]),
        ("lengthless", 0, ["unknown  dataset files  what was checked raised OSError: the list of files is gone"]),
    ],
)
def test_an_object_of_a_module(name: str, code: int, words: list[str]) -> None:
    out, err = checked(f"own_train:{name}", code=code)
    assert all(one in out for one in words), out
    assert "the module's own words" in err and "words" not in out
    rules = [one["rule"] for one in json.loads(checked(f"own_train:{name}", "--json", code=code).out)["lint"]]
    assert rules == ["open-handle"] * code


# --- a loop that is measured ------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, folder: Path, healthy: list[Any]) -> None:
    """Let short loops tell enough."""
    for module in ("loop_model", "insight.diagnosis"):
        monkeypatch.setattr(f"penstock.{module}.LEAST_SECONDS", 0.05)


def measured(dataset: str, *arguments: object, code: int = 0) -> Any:
    """Return what is found of a loop, as JSON."""
    given = [f"own_train:{dataset}", "--seconds", "0.2", "--batch-size", "4", "--num-workers", "0", *arguments]
    return json.loads(command("doctor", *given, "--json", code=code))["loop"]


@pytest.mark.usefixtures("short")
def test_a_loop_whose_files_are_slow(caplog: pytest.LogCaptureFixture) -> None:
    given = ["doctor", "own_train:slow", "--step", "own_train:step", "--seconds", "0.2", "--batch-size", "4"]
    out, err = ran(*given, "--num-workers", "0", "--apply")
    for words in ("loader alone", "step  ", "stage getitem", "x predicted; measured: ", "Your loop waited "):
        assert words in out
    assert "findings, the one that would help most first" in out
    said = [line.removeprefix("penstock doctor: measuring ") for line in err.splitlines() if "measuring" in line]
    assert said[:2] == ["the loader alone", "the loop"] and said[2].startswith("num_workers=")
    loop = measured("slow", "--step", "own_train:step", "--apply")
    assert loop["stages"]["getitem"]["samples"] > 40 and loop["step_seconds"] < 1e-3
    first = loop["findings"][0]
    assert first["options"].keys() == {"num_workers"} and first["predicted_gain"] > 2
    assert first["measured_gain"] > 0  # how much more is for benchmarks.diagnosis to say
    assert loop["verdict"].startswith("Your loop waited ") and not caplog.records


@pytest.mark.usefixtures("short")
def test_a_step_that_is_slow() -> None:
    loop = measured("rows", "--step", "own_train:slow_step", "--seconds", "0.4")
    assert loop["findings"] and loop["loader_samples_per_second"] > loop["loop_samples_per_second"]
    assert loop["step_seconds"] >= 5e-3 and loop["findings"][0]["measured_gain"] is None


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("given", "code", "state", "words"),
    [
        ("failing --seconds 0.1", 1, "bad ", "KeyError: 'no such sample'"),
        ("failing --seconds 0.1", 1, "bad ", "sample 0)"),
        ("rows --seconds 0.1 --batch-size 8", 0, "unknown ", "too few batches"),
        ("empty --seconds 0.1", 0, "unknown ", "the loader gives no batch"),
    ],
)
def test_a_loop_that_cannot_be_measured(given: str, code: int, state: str, words: str) -> None:
    out = command("doctor", *f"own_train:{given}".split(), code=code)
    assert any(line.startswith(state) and " the loop " in line and words in line for line in out.splitlines()), out


DATA = tud.TensorDataset(torch.arange(24.0))
SAMPLER = [3, 1, 2, 0]


@pytest.mark.parametrize(
    "loader",
    [
        tud.DataLoader(DATA, batch_size=4, drop_last=True),
        tud.DataLoader(DATA, batch_size=4, sampler=SAMPLER),
        tud.DataLoader(DATA, batch_sampler=[[1, 2], [5]]),
        tud.DataLoader(DATA, batch_size=None, sampler=SAMPLER),
        tud.DataLoader(DATA, batch_size=5, num_workers=2, prefetch_factor=3),
        tud.DataLoader(Stream(10), batch_size=4),
        penstock.DataLoader(DATA, batch_size=4, num_workers=1, worker_method="thread"),
    ],
)
def test_loaders_like_a_given_one(loader: Any) -> None:
    made = loader_maker(loader)()
    assert isinstance(made, penstock.DataLoader) and made.num_workers == loader.num_workers
    assert_same(list(made), list(loader))


def test_arguments_of_a_loader_may_be_changed() -> None:
    given = tud.DataLoader(DATA, batch_size=5, num_workers=2, prefetch_factor=3)
    assert loader_maker(given)(num_workers=0).prefetch_factor is None
    assert loader_maker(given, batch_size=2)(prefetch_factor=7).prefetch_factor == 7
    assert loader_maker(given, batch_size=2)().batch_size == 2
    assert loader_maker(DATA)().batch_size == 32


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--apply", "--apply needs a DATASET"),
        ("--step own_train:step", "--step needs a DATASET"),
        ("own_train:quiet --step step", "a function is named by its module"),
        ("own_train:quiet --step own_train:steps", "own_train has no 'steps'"),
        ("own_train:quiet --step own_train:number", "it is an object of type int"),
        ("own_train:quiet --seconds 0", "not a number above 0"),
        ("own_train:quiet --seconds soon", "not a number above 0"),
        ("own_train:quiet --batch-size 0", "0 is too few"),
        ("own_train:quiet --num-workers -1", "not a whole number of 0 or more"),
    ],
)
def test_wrong_arguments(arguments: str, message: str) -> None:
    out, err = ran("doctor", *arguments.split(), code=2)
    assert out == "" and message in err.splitlines()[-1]  # below the module's own words


@pytest.mark.parametrize("flat", [False, True])
def test_a_folder_of_photos_is_measured_with_a_transform(flat: bool, folder: Path, short: None) -> None:
    photo_files(folder / "photos", 64)
    given = "photos/class0" if flat else "photos"
    out = command("doctor", given, "--seconds", "0.5", "--batch-size", "2")
    assert "Resize(256), CenterCrop(224), ToTensor(), the default transform" in out and "stage decode" in out
    assert "What the words mean: docs/waiting.md" in out

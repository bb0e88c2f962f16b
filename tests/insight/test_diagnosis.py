"""A loop measured in its parts, the changes that are tried, and what ``penstock doctor DATASET`` says of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.cli import main
from penstock.errors import InvalidOption
from penstock.insight.diagnosis import diagnose, loader_maker
from penstock.loop_model import Workers
from tests.data import Made, Stream, rows
from tests.insight.penstock_processes import Captured, fails as one_line
from tests.same import assert_same


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short loops tell enough."""
    for module in ("loop_model", "insight.diagnosis"):
        monkeypatch.setattr(f"penstock.{module}.LEAST_SECONDS", 0.05)


def waits(index: int) -> torch.Tensor:
    time.sleep(2e-3)  # a slow file
    return torch.zeros(4)


def test_a_loop_whose_files_are_slow() -> None:
    noted: list[str] = []
    make = loader_maker(Made(waits, 5000), batch_size=4, num_workers=0)
    found = diagnose(make, lambda batch: None, seconds=0.2, apply=True, note=noted.append)
    assert found.measured.kind is Workers.CALLER and found.step is not None and found.step < 1e-3
    first = found.findings[0]
    assert first.options.keys() == {"num_workers"} and first.gain > 2
    assert found.gains[first] > 0  # how much more is for benchmarks.diagnosis to say
    assert noted[:3] == ["the loader alone", "the loop", first.change]
    assert found.verdict.startswith("Your loop waited ")


def test_a_step_that_is_slow() -> None:
    make = loader_maker(tud.TensorDataset(torch.zeros(2000, 4)), batch_size=8)
    found = diagnose(make, lambda batch: time.sleep(5e-3), seconds=0.2)
    assert found.findings and found.alone > found.together
    assert found.step is not None and found.step >= 5e-3


def test_nothing_is_logged_of_a_diagnosis(caplog: pytest.LogCaptureFixture) -> None:
    diagnose(loader_maker(Made(waits, 5000), batch_size=2), seconds=0.1)
    assert not caplog.records


def fails(index: int) -> int:
    raise KeyError("no such sample")


@pytest.mark.parametrize(
    ("dataset", "options", "seconds", "kind", "words"),
    [
        (rows(8), {"batch_size": 8}, 0.1, InvalidOption, "too few batches"),
        (rows(8), {"batch_size": 16, "drop_last": True}, 0.1, InvalidOption, "no batch"),
        (rows(8), {}, 0, InvalidOption, "above 0"),
        (rows(8), {}, -1, InvalidOption, "above 0"),
        (rows(8), {}, float("nan"), InvalidOption, "above 0"),
        (Made(fails, 100), {}, 0.1, KeyError, "no such sample"),  # the dataset's own
    ],
)
def test_errors(dataset: Any, options: Any, seconds: float, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        diagnose(loader_maker(dataset, **options), seconds=seconds)


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


MODULE = """
from tests.insight.test_diagnosis import Made, fails, waits
dataset, bad, number = Made(waits, 5000), Made(fails, 9), 5
def step(batch):
    assert batch.shape[1:] == (4,)
"""


@pytest.fixture
def module(user_module: Callable[[str, str], str]) -> str:
    return user_module("own_loop", MODULE)


def test_the_command_measures_a_loop(module: str, capsys: Captured) -> None:
    arguments = ["doctor", f"{module}:dataset", "--step", f"{module}:step", "--seconds", "0.1", "--batch-size", "4"]
    main([*arguments, "--num-workers", "0", "--apply"])
    out, err = capsys.readouterr()
    for words in ("loader alone", "step  ", "stage getitem", "x predicted; measured: ", "Your loop waited "):
        assert words in out
    assert "findings, the one that would help most first" in out
    assert "penstock doctor: measuring the loader alone" in err
    main([*arguments, "--json"])
    loop = json.loads(capsys.readouterr().out)["loop"]
    assert loop["stages"]["getitem"]["samples"] > 40
    assert loop["findings"][0]["predicted_gain"] > 1 and loop["findings"][0]["measured_gain"] is None


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--apply", "--apply needs a DATASET"),
        ("--step own_loop:step", "--step needs a DATASET"),
        ("own_loop:dataset --step step", "a function is named by its module"),
        ("own_loop:dataset --step own_loop:steps", "own_loop has no 'steps'"),
        ("own_loop:dataset --step own_loop:number", "it is an object of type int"),
        ("own_loop:dataset --seconds 0", "not a number above 0"),
        ("own_loop:dataset --seconds soon", "not a number above 0"),
        ("own_loop:dataset --batch-size 0", "0 is too few"),
        ("own_loop:dataset --num-workers -1", "not a whole number of 0 or more"),
    ],
)
def test_wrong_arguments(arguments: str, message: str, capsys: Captured) -> None:
    assert message in one_line(capsys, "doctor", *arguments.split())


def test_a_dataset_that_fails_is_bad(module: str, capsys: Captured) -> None:
    assert main(["doctor", f"{module}:bad", "--seconds", "0.1"]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "KeyError: 'no such sample'" in line]
    assert line.split()[:3] == ["bad", "the", "loop"] and "sample 0)" in line


def test_a_dataset_that_is_too_small_is_unknown(user_module: Callable[[str, str], str], capsys: Captured) -> None:
    name = user_module("own_rows", "from tests.data import rows\ndataset = rows(8)\n")
    main(["doctor", f"{name}:dataset", "--seconds", "0.1", "--batch-size", "8"])
    out = capsys.readouterr().out
    assert any(line.startswith("unknown") and "too few batches" in line for line in out.splitlines())

"""penstock plan-capacity: each need is its formula, and the weakest link is the one of which least is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command, fails

JOB = "--gpus 8 --rate 1000 --cpu-ms 1.7 --stored 100KB --batched 600KB --dataset 1TB"


def planned(machines: str) -> tuple[dict[str, Any], dict[str, float], str]:
    """Return what a job needs, as JSON, each need of it, and the sentence of the table."""
    given = ["plan-capacity", *JOB.split(), *machines.split()]
    found = json.loads(command(*given, "--json", code=None))
    needed = {need["name"]: need["needed"] for need in found["needs"]}
    return found, needed, command(*given, code=None).splitlines()[-1]


def test_each_need_is_its_formula() -> None:
    _, needed, _ = planned("--nodes 2 --cores 4 --storage 1GB --network 1GB --cache 250GB")
    assert needed["CPU cores"] == pytest.approx(8 * 1000 * 0.0017 / 0.85)
    assert needed["cache"] == 2e12
    assert needed["storage bandwidth"] == pytest.approx(8 * 1000 * 100e3 * 0.75)
    assert needed["network for fillers"] == pytest.approx(8 * 1000 * 600e3 * 0.5), "half of the cores are missing"


@pytest.mark.parametrize(
    ("machines", "weakest", "reached", "words"),
    [
        ("--nodes 2 --cores 4 --storage 1GB", "CPU cores", 500, "8 cores more are needed, such as 8 fillers"),
        ("--nodes 2 --cores 8 --storage 100MB", "storage bandwidth", 250, "each GPU gets 250 of 1,000 samples/s"),
        ("--nodes 2 --cores 16 --storage 4GB --cache 1", "CPU cores", 1000, "CPU cores, of which 50% is used"),
        ("", None, None, "unknown"),
    ],
)
def test_the_weakest_link_says_what_is_reached(
    machines: str, weakest: str | None, reached: float | None, words: str
) -> None:
    found, needed, sentence = planned(machines)
    assert found["weakest"] == weakest and words in sentence
    assert found["samples_per_second_and_gpu"] == (reached if reached is None else pytest.approx(reached))
    assert machines or needed["network for fillers"] == pytest.approx(8 * 1000 * 600e3)


STAGES = {
    "read": {"seconds": 2.0, "samples": 100, "cpu_seconds": 0.05, "bytes": 1_000_000},
    "decode": {"seconds": 1.0, "samples": 50, "cpu_seconds": 0.2, "bytes": 0},
}


def test_costs_are_those_of_the_doctor(tmp_path: Path) -> None:
    report = tmp_path / "doctor.json"
    given = ["plan-capacity", "--gpus", "1", "--rate", "1000", "--json", "--measured", report]
    report.write_text(json.dumps({"loop": {"stages": STAGES}}))
    needed = {need["name"]: need["needed"] for need in json.loads(command(*given))["needs"]}
    assert needed["CPU cores"] == pytest.approx(1000 * (0.0005 + 0.004) / 0.85)
    assert needed["storage bandwidth"] == pytest.approx(1000 * 10_000)
    for text in ("", "{}", "[]", '{"loop": {"stages": {"read": 1}}}', '{"loop": {"stages": {}}}'):
        report.write_text(text)
        assert "doctor" in fails(*given).replace(str(report), "")


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "doctor.json").write_text(json.dumps({"loop": {"stages": STAGES}}))
    given = ["plan-capacity", "--gpus", "8", "--rate", "1000", "--measured", tmp_path / "doctor.json"]
    head, first, *_ = command(*given, "--nodes", "2", "--cores", "32").splitlines()
    assert head.split() == ["need", "needed", "there", "is", "formula"]
    assert first.split()[:6] == ["CPU", "cores", "42.4", "cores", "64", "cores"]
    assert first.endswith("8 GPUs x 1,000 samples/s x 4.5 ms / 85% of a core's time")
    held = json.loads(command(*given, "--cpu-ms", "45", "--cores", "32", "--json", code=1))
    assert (held["weakest"], held["needs"][0]["share"]) == ("CPU cores", pytest.approx(32 / (8 * 45 / 0.85)))


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("", "give --measured or --cpu-ms"),
        ("--measured nowhere.json", "nowhere.json: No such file"),
        ("--cpu-ms -1", "not a number above 0"),
        ("--cpu-ms nan", "not a number above 0"),
        ("--cpu-ms 1 --gpus 0", "0 is too few"),
        ("--cpu-ms 1 --rate 0", "not a number above 0"),
        ("--cpu-ms 1 --stored -1", "a size in bytes"),
        ("--cpu-ms 1 --cache big", "a size in bytes"),
    ],
)
def test_wrong_arguments(rest: str, says: str) -> None:
    assert says in fails("plan-capacity", "--gpus", "8", "--rate", "1000", *rest.split())

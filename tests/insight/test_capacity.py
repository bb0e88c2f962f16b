"""penstock plan-capacity: each need is its formula, and the weakest link is the one of which least is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import main
from penstock.cli.capacity import measured_costs

COSTS = ["--cpu-ms", "1.7", "--stored", "100KB", "--batched", "600KB", "--dataset", "1TB"]
JOB = ["--gpus", "8", "--rate", "1000", *COSTS]


def planned(capsys: pytest.CaptureFixture[str], machines: str) -> tuple[dict[str, Any], str]:
    """Return what a job needs, as JSON, and the sentence of the table."""
    main(["plan-capacity", *JOB, *machines.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    main(["plan-capacity", *JOB, *machines.split()])
    return found, capsys.readouterr().out.splitlines()[-1]


def needed(found: dict[str, Any]) -> dict[str, float]:
    return {need["name"]: need["needed"] for need in found["needs"]}


def test_each_need_is_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    found = needed(planned(capsys, "--nodes 2 --cores 4 --storage 1GB --network 1GB --cache 250GB")[0])
    assert found["CPU cores"] == pytest.approx(8 * 1000 * 0.0017 / 0.85)
    assert found["cache"] == 2e12
    assert found["storage bandwidth"] == pytest.approx(8 * 1000 * 100e3 * 0.75)
    assert found["network for fillers"] == pytest.approx(8 * 1000 * 600e3 * 0.5), "half of the cores are missing"


@pytest.mark.parametrize(
    ("machines", "weakest", "reached", "words"),
    [
        ("--nodes 2 --cores 4 --storage 1GB", "CPU cores", 500, "8 cores more are needed, such as 8 fillers"),
        ("--nodes 2 --cores 8 --storage 100MB", "storage bandwidth", 250, "each GPU gets 250 of 1,000 samples/s"),
        ("--nodes 2 --cores 16 --storage 4GB --cache 1", "CPU cores", 1000, "CPU cores, of which 50% is taken"),
        ("", None, None, "unknown"),
    ],
)
def test_the_weakest_link_says_what_is_reached(
    machines: str, weakest: str | None, reached: float | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, sentence = planned(capsys, machines)
    assert found["weakest"] == weakest and words in sentence
    assert found["samples_per_second_and_gpu"] == (reached if reached is None else pytest.approx(reached))
    assert machines or needed(found)["network for fillers"] == pytest.approx(8 * 1000 * 600e3)


STAGES = {
    "read": {"seconds": 2.0, "samples": 100, "cpu_seconds": 0.05, "bytes": 1_000_000},
    "decode": {"seconds": 1.0, "samples": 50, "cpu_seconds": 0.2, "bytes": 0},
}


def test_costs_are_those_of_the_doctor() -> None:
    cpu, stored = measured_costs(json.dumps({"loop": {"stages": STAGES}}))
    assert cpu == pytest.approx(0.0005 + 0.004)
    assert stored == pytest.approx(10_000)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"loop": {"stages": {"read": 1}}}', '{"loop": {"stages": {}}}'], ids=range(5)
)
def test_what_the_doctor_did_not_print(text: str) -> None:
    with pytest.raises(penstock.InvalidOption, match="doctor"):
        measured_costs(text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "doctor.json").write_text(json.dumps({"loop": {"stages": STAGES}}))
    command = ["plan-capacity", "--gpus", "8", "--rate", "1000", "--measured", str(tmp_path / "doctor.json")]
    assert main([*command, "--nodes", "2", "--cores", "32"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["need", "needed", "there", "is", "formula"]
    assert out[1].split()[:6] == ["CPU", "cores", "42.4", "cores", "64", "cores"]
    assert out[1].endswith("8 GPUs x 1,000 samples/s x 4.5 ms / 85% of a core's time")
    assert main([*command, "--cpu-ms", "45", "--cores", "32", "--json"]) == 1
    held = json.loads(capsys.readouterr().out)
    assert held["weakest"] == "CPU cores"
    assert held["needs"][0]["share"] == pytest.approx(32 / (8 * 45 / 0.85))


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ([], "give --measured or --cpu-ms"),
        (["--measured", "nowhere.json"], "nowhere.json: No such file"),
        (["--cpu-ms", "-1"], "no number above 0"),
        (["--cpu-ms", "nan"], "no number above 0"),
        (["--cpu-ms", "1", "--gpus", "0"], "0 is too few"),
        (["--cpu-ms", "1", "--rate", "0"], "no number above 0"),
        (["--cpu-ms", "1", "--stored", "-1"], "a size in bytes"),
        (["--cpu-ms", "1", "--cache", "big"], "a size in bytes"),
    ],
)
def test_wrong_arguments(rest: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["plan-capacity", "--gpus", "8", "--rate", "1000", *rest])
    except SystemExit as end:
        assert isinstance(end.code, int)
        code = end.code
    assert code == 2
    assert says in capsys.readouterr().err

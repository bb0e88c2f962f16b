"""benchmarks.gpu where there is no GPU: the part that needs none runs, the rest says what it lacks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.resnet import resnet50

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_part_that_needs_no_gpu(tmp_path: Path) -> None:
    out = tmp_path / "results" / "gpu.json"
    ended = run("--cpu", "--quick", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(out.read_text())
    assert facts["machine"]["torch"] == torch.__version__
    assert [table["name"] for table in facts["tables"]] == ["cpu prefetch", "cpu loader", "cpu stand-in"]
    for table in facts["tables"]:
        assert f"gpu / {table['name']}" in ended.stdout
        assert all(target["met"] is not None for target in table["targets"])
        for row in table["contestants"]:
            assert row["status"] == "measured" and row["how"]
            assert len(row["us_per_batch"]["rounds"]) == 2
            assert all(math.isfinite(value) and value > 0 for value in row["us_per_batch"]["rounds"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    ended = run("--quick", "--out", str(out))
    assert ended.returncode == 2
    assert "no CUDA device" in ended.stderr and "--cpu" in ended.stderr and "Traceback" not in ended.stderr
    assert not out.exists()


def test_the_network_is_resnet_50() -> None:
    model = resnet50()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
        assert model[:-3](torch.zeros(1, 3, 64, 64)).shape == (1, 2048, 2, 2)  # type: ignore[index]

"""The examples of one process as a user runs them."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import python_processes

SCRIPT = Path(__file__).parents[1] / "examples" / "train.py"
_RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def demo_run(test: Callable[..., None]) -> Callable[..., None]:
    """Half a minute on a machine of one's own; the limit is for one that is shared."""
    return pytest.mark.slow(pytest.mark.timeout(400)(test))


def run(*arguments: str, script: Path = SCRIPT) -> python_processes.Ended:
    return python_processes.run(_RUN, script, *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("train") / "data"


@pytest.fixture(scope="module")
def demo(folder: Path) -> "subprocess.CompletedProcess[str]":
    """What `make demo` runs, but for the place of the data and the device."""
    command = [sys.executable, str(SCRIPT), "--data", str(folder), "--device", "cpu", "--workers", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def main() -> Callable[[list[str]], None]:
    spec = importlib.util.spec_from_file_location("train", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@demo_run
def test_the_demo_learns_shows_its_progress_and_compares_both_loaders(demo):
    assert demo.returncode == 0, demo.stderr
    found = re.search(r"^validation accuracy: ([\d.]+)% \((\d+) of 360 digits, on cpu\)$", demo.stdout, re.MULTILINE)
    assert found, demo.stdout
    assert int(found[2]) >= 0.97 * 360
    assert "epoch 10/10: 100%" in demo.stderr
    assert re.search(r"1437/1437 .* samples/s, loss=", demo.stderr)
    rows = re.findall(r"^(.+?)\s+([\d,]+)\s+([\d,]+)\s+[\d.]+x$", demo.stdout, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["one .pt file a sample", "torchvision's ImageFolder"]
    assert all(int(rate.replace(",", "")) > 0 for row in rows for rate in row[1:])


@demo_run
def test_a_second_run_keeps_the_files_and_needs_no_workers(demo, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = run("--data", str(folder), "--device", "cpu", "--workers", "0", "--epochs", "1", "--batch-size", "2000")
    assert again.returncode == 0, again.stderr
    assert "validation accuracy" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@demo_run
def test_the_files_are_in_the_tutorial_layout(demo, folder):
    partition = json.loads((folder / "partition.json").read_text())
    labels = json.loads((folder / "labels.json").read_text())
    assert {split: len(ids) for split, ids in partition.items()} == {"train": 1437, "validation": 360}
    assert sorted(partition["train"] + partition["validation"]) == sorted(labels)
    for split, ids in partition.items():
        for name in ids:
            assert (folder / f"{name}.pt").is_file()
            assert (folder / "images" / split / str(labels[name]) / f"{name}.jpg").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "argument --epochs: a whole number of at least 1 is needed, not '0'"),
        (["--epochs", "many"], "argument --epochs: a whole number of at least 1 is needed, not 'many'"),
        (["--batch-size", "0"], "argument --batch-size: a whole number of at least 1 is needed, not '0'"),
        (["--workers", "-1"], "argument --workers: a whole number of at least 0 is needed, not '-1'"),
        (["--workers", "1.5"], "argument --workers: a whole number of at least 0 is needed, not '1.5'"),
        (["--device", "cuda:99"], "CUDA devices here, and not 'cuda:99': use cpu"),
        (["--device", "abacus"], "argument --device: cpu, cuda or cuda:N is needed, not 'abacus'"),
        (["--speed", "11"], "unrecognized arguments: --speed 11"),
        (["--data", "file/data"], "argument --data: the digits cannot be written to 'file/data': Not a directory"),
    ],
)
def test_a_wrong_argument_is_named(main, capsys, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and "Traceback" not in error


@pytest.mark.timeout(200)
def test_data_parallel_learns() -> None:
    done = run("--epochs", "3", script=SCRIPT.with_name("data_parallel.py"))
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d: mean loss ([\d.]+) on", done.stdout, re.MULTILINE)]
    assert len(losses) == 3 and losses[2] < 0.1 * losses[0] and "\ndevice   " in done.stdout


@pytest.mark.timeout(400)
def test_the_reference_recipe_runs_to_its_end(tmp_path) -> None:
    draw = np.random.default_rng(0)
    for number in range(16):
        for part in ("train", "val"):
            path = tmp_path / part / ("bright" if number % 2 else "dark") / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = draw.integers(0, 90, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(noise + np.uint8(150 * (number % 2))).save(path)
    given = "--epochs 2 --batch-size 8 --workers 2 --model shufflenet_v2_x0_5 --crop 32 --lr 0.05 --ema-decay 0.5"
    done = run(str(tmp_path), "--device", "cpu", *given.split(), script=SCRIPT.with_name("imagenet.py"))
    assert done.returncode == 0, done.stderr
    epochs = re.findall(r"^epoch (\d): mean loss [\d.]+, validation accuracy [\d.]+%$", done.stdout, re.MULTILINE)
    assert epochs == ["1", "2"]
    assert "native   augment TrivialAugmentWide" in done.stdout

"""The examples of one process as a user runs them."""

import importlib.util
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests import python_processes
from tests.frameworks import launching

SCRIPT = Path(__file__).parents[1] / "examples" / "train.py"


def demo_run(test: Callable[..., None]) -> Callable[..., None]:
    """Half a minute on a machine of one's own; the limit is for one that is shared."""
    return pytest.mark.slow(pytest.mark.timeout(400)(test))


def run(*arguments: object, script: Path = SCRIPT, folder: Path | None = None) -> python_processes.Ended:
    return python_processes.run_file(script, *arguments, folder=folder, imported=python_processes.VISION)


def output_of(script: str, *arguments: object, folder: Path) -> str:
    """Run an example in a folder to its end, and return what it prints."""
    done = run(*arguments, script=SCRIPT.parent / script, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("train") / "data"


@pytest.fixture(scope="module")
def demo(folder: Path) -> python_processes.Ended:
    """What `make demo` runs, but for the place of the data and the device."""
    return run("--data", folder, "--device", "cpu", "--workers", "2")


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


RECIPE = "--epochs 2 --batch-size 8 --workers 2 --model shufflenet_v2_x0_5 --crop 32 --lr 0.05 --ema-decay 0.5"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_imagenet_stops_and_continues_behind_the_last_checkpoint(tmp_path) -> None:
    bright_and_dark(tmp_path)
    given = [tmp_path, "--device", "cpu", *RECIPE.split(), "--checkpoint", tmp_path / "run.pt", "--save-every", 2]
    command = "import sys; from penstock.cli import main; sys.exit(main())"
    stopped = python_processes.run(command, "run", "--steps", 3, SCRIPT.with_name("imagenet.py"), *given)
    assert stopped.returncode == 0 and "epoch" not in stopped.stdout, stopped.stderr
    out = output_of("imagenet.py", *given, "--bf16", folder=tmp_path)
    assert out.startswith("continues in epoch 1 behind 2 of 4 steps\n")
    epochs = re.findall(r"^epoch (\d): mean loss [\d.]+, validation accuracy [\d.]+%$", out, re.MULTILINE)
    assert epochs == ["1", "2"]
    assert "native   augment TrivialAugmentWide" in out
    assert "so far   48 samples in 6 batches" in out  # of 8: two of the first epoch were those of the other run


@launching.needs_gloo
@pytest.mark.timeout(600)  # see launching.run
def test_two_processes_of_torchrun_read_what_their_samplers_say() -> None:
    output = launching.run(*launching.TORCHRUN, str(SCRIPT.with_name("ddp.py")), "--samples", "26")
    assert "plan     2 native threads fill batches of 4 in place, in order" in output
    assert "order    by DistributedSampler" in output
    assert re.search(r"^device   (cpu|cuda:0): ", output, re.MULTILINE)
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(TensorDataset(torch.arange(26)), 2, rank)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            (saw,) = re.findall(rf"^epoch {epoch} rank {rank} saw ([\d ]+)$", output, re.MULTILINE)
            assert list(map(int, saw.split())) == list(sampler)


@launching.needs_gloo
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_imagenet_trains_on_two_ranks_and_continues_from_its_checkpoint(tmp_path) -> None:
    bright_and_dark(tmp_path)
    given = [str(tmp_path), "--device", "cpu", *RECIPE.split(), "--checkpoint", str(tmp_path / "run.pt")]
    script = str(SCRIPT.with_name("imagenet.py"))
    first, second = (launching.run(*launching.TORCHRUN, script, *given) for _ in range(2))
    assert re.findall(r"^epoch (\d): mean loss", first, re.MULTILINE) == ["1", "2"]
    assert "rank 0 of 2 gets its part of each global batch" in first
    assert "so far   32 samples in 4 batches" in first  # half of 32 photos, twice
    assert second.count("continues in epoch 3 behind 0 of 2 steps\n") == 2


def test_the_tutorials_files_train_and_their_files_are_read_natively(tmp_path) -> None:
    given = ["--samples", 256, "--epochs", 1]
    first, second = (output_of("tutorial/main.py", *given, folder=tmp_path) for _ in range(2))
    assert first.startswith("There is no folder data: 256 random samples are written there.\nepoch 1: validation")
    assert second.startswith("epoch 1: validation accuracy ")
    assert "torch.load: 192 answered natively" in second
    assert len(list((tmp_path / "data").iterdir())) == 256


def test_cifar10_says_that_its_images_are_made_up(tmp_path) -> None:
    out = output_of("cifar10.py", "--seconds", 1, "--samples", 1000, folder=tmp_path)
    assert out.startswith("There is no CIFAR10 in data: made-up images stand in for it.")
    assert re.search(r"^test accuracy [\d.]+% on 200 images$", out, re.MULTILINE)
    assert "native   gather  1,000 images of 32x32 in memory" in out


@pytest.mark.timeout(200)
def test_lightning_continues_behind_the_batch_where_it_stopped(tmp_path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    out = output_of("lightning_resume.py", folder=tmp_path)
    assert "stopped after 4 of 10 steps: 256 samples" in out
    assert "resumed: 384 samples; each of 640 came once: True" in out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trainer_continues_with_the_batches_of_a_run_that_did_not_stop(tmp_path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    out = output_of("hf_trainer.py", folder=tmp_path)
    assert "resumed behind step 5, trained to step 16" in out
    assert "the batches are those of a run that did not stop: True" in out


@pytest.mark.timeout(200)
def test_timm_trains_and_its_evaluation_is_read_natively(tmp_path) -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install timm")
    out = output_of("timm_train.py", "--epochs", 1, folder=tmp_path)
    assert re.search(r"^epoch 1: loss [\d.]+, accuracy [\d.]+%$", out, re.MULTILINE)
    assert "plan     2 native threads fill batches of 16 in place, in order" in out.split("\n\n")[-1]


@pytest.mark.timeout(300)
def test_the_notebook_runs_and_its_pictures_are_inside(tmp_path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(SCRIPT.with_name("first_look.ipynb"), 4)
    kept = [printed(cell) for cell in notebook.cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter's packages
        nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [printed(cell) for cell in notebook.cells] == kept


def test_the_notebook_holds_its_pictures() -> None:
    cells = json.loads(SCRIPT.with_name("first_look.ipynb").read_text())["cells"]
    assert any("image/jpeg" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
    assert all(cell.get("outputs") or "print" not in "".join(cell["source"]) for cell in cells)


def printed(cell: Any) -> str:
    """Return what a cell has printed, without figures of speed, of explain() its first line, and whether it drew."""
    shown = []
    for output in cell.get("outputs", []):
        text = output.get("text") or " ".join(sorted({"image" for kind in output.data if kind.startswith("image/")}))
        shown += [re.sub(r"[\d,.]+ (?=photos a second|s for)|(?<=Penstock) +[\d,]+", "", text)]
    text = "".join(shown)
    return text.partition("\n")[0] if "explain()" in cell.source else text


def bright_and_dark(root: Path) -> None:
    """Write photos of two classes for training and validation."""
    draw = np.random.default_rng(0)
    for number in range(32):
        for part in ("train", "val"):
            path = root / part / ("bright" if number % 2 else "dark") / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = draw.integers(0, 90, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(noise + np.uint8(150 * (number % 2))).save(path)

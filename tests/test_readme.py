"""README is true for somebody who has nothing but a clone: its blocks run alone, its claims hold."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms

import penstock
from tests import python_processes
from tests.data import noise_image
from tests.pages import FENCE, ROOT, blocks_of, text_of
from tools import chart

README = ROOT / "README.md"
BLOCKS = list(blocks_of(README))


def ended(source: str, *arguments: Any, folder: Path, **environment: str) -> str:
    """Run a program in a folder, and return what it prints."""
    given = {"folder": folder, "environment": environment, "imported": python_processes.VISION}
    done = python_processes.run(source, *arguments, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.line))
def test_a_block_runs_alone_in_an_empty_folder(block: Any, tmp_path: Path) -> None:
    assert ended(block.code, folder=tmp_path) == block.output
    assert list(tmp_path.iterdir()) == []


def test_the_diff_changes_the_loader_and_no_batch() -> None:
    kind, diff = FENCE.findall(text_of(README))[0]
    assert kind == "diff"
    removed, added = (re.search(rf"^\{sign} (.*)$", diff, re.MULTILINE) for sign in "-+")
    assert removed is not None and added is not None and added[1] in BLOCKS[0].code
    batches = []
    for line in (removed[1], added[1]):
        torch.manual_seed(0)
        names: dict[str, Any] = {}
        exec(line, names)
        assert issubclass(names["DataLoader"], penstock.DataLoader) is (line == added[1])
        batches.append(torch.cat([x for (x,) in names["DataLoader"](TensorDataset(torch.arange(99)), 4, shuffle=True)]))
    assert torch.equal(*batches)


@pytest.mark.parametrize(("page", "first"), chart.TABLES)
def test_tables_are_those_of_the_results(page: str, first: str) -> None:
    text = text_of(ROOT / page)
    assert chart.with_table(text, first, chart.TABLES[page, first]) == text, "python tools/chart.py"


def test_the_chart_is_that_of_the_results() -> None:
    for theme in chart.INKS:
        assert text_of(chart.PICTURES / f"gains-{theme}.svg") == chart.drawing(theme), "python tools/chart.py"
        assert f"docs/pictures/gains-{theme}.svg" in text_of(README)


def test_what_is_not_won_is_shown() -> None:
    assert len(chart.README) <= 10
    (equal,) = (row.gain for row in chart.README if "nothing is won" in row.dataset)
    (slower,) = (row.gain for row in chart.README if "torch is faster" in row.dataset)
    assert 0.97 < equal < 1.03 and slower < 1
    assert all(row.gain > 1.2 for row in chart.README if "(*):" not in row.dataset)


def commands() -> list[str]:
    blocks = [body for kind, body in FENCE.findall(text_of(README)) if kind == "sh"]
    return [line for body in blocks for line in body.splitlines() if line.startswith("penstock ")]


@pytest.mark.parametrize("command", commands())
@pytest.mark.timeout(200)
def test_a_command_runs_beside_a_program(command: str, tmp_path: Path) -> None:
    program = next(blocks_of(ROOT / "docs" / "run.md")).code
    (tmp_path / "train.py").write_text(program)
    source = "import sys; from penstock.cli import main; sys.exit(main())"
    ended(source, *shlex.split(command)[1:], folder=tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> datasets.ImageFolder:
    for number in range(8):
        path = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise_image(number, 200, 260).save(path)
    steps = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return datasets.ImageFolder(str(tmp_path / "photos"), transforms.Compose(steps))


@pytest.mark.parametrize("workers", [0, 2])
def test_crops_are_torchs_with_worker_method_process_only(photos: datasets.ImageFolder, workers: int) -> None:
    drawn = []
    given: list[tuple[Any, dict[str, Any]]] = [(DataLoader, {}), (penstock.DataLoader, {"worker_method": "process"})]
    for kind, options in [*given, (penstock.DataLoader, {})]:
        torch.manual_seed(0)
        loader = kind(photos, batch_size=4, shuffle=True, num_workers=workers, **options)
        drawn.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


PASSES = """
import os, sys, time
import penstock
from torchvision import transforms

steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
loader = penstock.DataLoader(penstock.ImageFolder(sys.argv[1], steps), batch_size=4, num_workers=1)
ends = time.monotonic() + float(sys.argv[2])
live = os.path.join(os.environ["XDG_CACHE_HOME"], "penstock", "live")
while time.monotonic() < ends and not os.path.exists(live):  # a file is written in the second second
    for batch in loader:
        pass
"""


def test_the_cache_folder_is_switched_off(photos: datasets.ImageFolder, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "penstock"
    ended(PASSES, photos.root, 60, folder=tmp_path, XDG_CACHE_HOME=str(cache.parent))
    assert {path.name for path in cache.iterdir()} >= {"jpeg-index", "live"}
    other = tmp_path / "other"
    other.mkdir()
    called = PASSES.replace("import penstock\n", "import penstock\npenstock.cache_folder(None)\n")
    assert "`penstock.cache_folder(None)`" in text_of(README) and "`PENSTOCK_NO_CACHE=1`" in text_of(README)
    ended(called, photos.root, 2, folder=tmp_path, XDG_CACHE_HOME=str(other))
    ended(PASSES, photos.root, 2, folder=tmp_path, XDG_CACHE_HOME=str(other), PENSTOCK_NO_CACHE="1")
    assert list(other.iterdir()) == []

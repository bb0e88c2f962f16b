"""README is true for somebody who has nothing but a clone: its blocks run alone, its claims hold."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
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


def test_the_diff_changes_the_loader_of_the_first_block() -> None:
    kind, diff = FENCE.findall(text_of(README))[0]
    assert kind == "diff"
    removed, added = (re.search(rf"^\{sign} (.*)$", diff, re.MULTILINE) for sign in "-+")
    assert removed is not None and added is not None
    first = BLOCKS[0].code
    assert added[1] in first
    loops = first[: first.index("print(")]
    batches = []
    for code in (loops.replace(added[1], removed[1]), loops):
        torch.manual_seed(0)
        names: dict[str, Any] = {}
        exec(code, names)
        batches.append(names["y"])
        assert isinstance(names["loader"], penstock.DataLoader) is (code == loops)
    assert torch.equal(*batches)


def test_tables_and_chart_are_those_of_the_results() -> None:
    text = text_of(README)
    for rows in (chart.UNCHANGED, chart.CHANGED):
        assert "\n|---|---|---|---|\n" + "\n".join(row.cells for row in rows) + "\n\n" in text, "python tools/chart.py"
    for theme in chart.INKS:
        assert text_of(chart.PICTURES / f"gains-{theme}.svg") == chart.drawing(theme), "python tools/chart.py"
        assert f"docs/pictures/gains-{theme}.svg" in text


def test_slower_rows_are_shown() -> None:
    assert [row.gain < 1 for row in chart.UNCHANGED].count(True) >= 2
    assert any(row.gain < 1 for row in chart.UNCHANGED if row.drawn)


def commands() -> list[str]:
    blocks = [body for kind, body in FENCE.findall(text_of(README)) if kind == "sh"]
    return [line for body in blocks for line in body.splitlines() if line.startswith("penstock ")]


@pytest.mark.parametrize("command", commands())
@pytest.mark.timeout(200)
def test_a_command_runs_beside_the_first_block(command: str, tmp_path: Path) -> None:
    assert "`train.py`:\n\n```python\n" + BLOCKS[0].code in text_of(README)
    (tmp_path / "train.py").write_text(BLOCKS[0].code)
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


def test_a_file_in_the_place_of_the_cache_folder_keeps_it_from_being_written(
    photos: datasets.ImageFolder, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "penstock"
    cache.parent.mkdir()
    ended(PASSES, photos.root, 60, folder=tmp_path, XDG_CACHE_HOME=str(cache.parent))
    assert {path.name for path in cache.iterdir()} >= {"jpeg-index", "live"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "penstock").touch()
    ended(PASSES, photos.root, 2, folder=tmp_path, XDG_CACHE_HOME=str(other))
    assert (other / "penstock").read_bytes() == b"" and [path.name for path in other.iterdir()] == ["penstock"]

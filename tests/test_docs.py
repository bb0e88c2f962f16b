"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make the files and names that the examples speak of, and go there."""
    (tmp_path / "data").mkdir()
    ids = [f"id-{i}" for i in range(100)]
    for name in ids:
        torch.save(torch.zeros(3), tmp_path / "data" / f"{name}.pt")
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((60, 80, 3), i, dtype=np.uint8)).save(tmp_path / "photos" / kind / f"{i}.jpg")
    monkeypatch.chdir(tmp_path)
    loader = penstock.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.zeros(8)), 4)
    return {"partition": {"train": ids}, "labels": dict.fromkeys(ids, 1), "loader": loader, "__name__": "__main__"}


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.filterwarnings("ignore:.*no cuda device is available:UserWarning")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_block(number: int, data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    if "accelerate" in BLOCKS[number]:
        pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), data)
    for name in ("loader", "threads", "seeded"):
        if name in data:
            batch, labels = next(iter(data[name]))
            assert len(batch) == len(labels) > 0
    if "print(loader.explain())" in BLOCKS[number]:
        assert "6 native threads fill batches of 64" in capsys.readouterr().out
    if "manifest=" in BLOCKS[number]:
        assert "the sensor was off" in Path("bad.jsonl").read_text()
        assert "1 bad samples" in capsys.readouterr().out


def test_architecture_names_every_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    files = [*(ROOT / "src/penstock").rglob("*.py"), *(ROOT / "native").glob("*.[ch]*")]
    assert len(files) > 40
    missing = [file.name for file in files if file.stem != "__init__" and f"`{file.stem}`" not in text]
    assert not missing

"""Reports: pytorch/pytorch#7238.

A damaged file among thousands ends the run with an error that does not say which file it is.

The error names the sample and its file, from worker processes too; `on_error="replace"` trains on, and counts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

import penstock
from tests.reports.report import Found


def trouble(loader: Any, *, short: bool) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cat"
        place.mkdir()
        for number in range(20):
            noise = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(noise).save(place / f"{number:02}.png")
        damaged = place / "07.png"
        damaged.write_bytes(damaged.read_bytes()[:200])
        photos = datasets.ImageFolder(folder, transforms.ToTensor())
        try:
            for _ in loader(photos, batch_size=4, num_workers=2):
                pass
            text = "07.png"
        except Exception as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        if issubclass(loader, penstock.DataLoader):
            replaced: Any = loader(photos, batch_size=4, num_workers=2, on_error="replace", seed=0)
            assert sum(len(batch) for batch, _ in replaced) == 20 and torch.is_tensor(next(iter(replaced))[0])
    return Found(int("07.png" not in text), 1, "errors that do not name the file")

"""Texts, states and ledgers of many loaders, compared with what was kept of them: they change on purpose or not at all.

`python -m tests.test_goldens` writes tests/goldens.json anew, for a change that is meant; its diff shows what changed.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset, WeightedRandomSampler
from torchvision import datasets, transforms as v1

import penstock
from tests.data import Made, Stream
from tests.values import taken

KEPT = Path(__file__).with_name("goldens.json")


class Numbers(Made):
    """A dataset that only Python can read."""


def identity(image: Any) -> Any:
    return image


def collate(samples: Any) -> Any:
    return samples


def photos(root: Path) -> Path:
    for name in ("cats", "dogs"):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.full((20, 30, 3), 10 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02}.bmp")  # the same bytes from any Pillow
    return root


def tensors(root: Path) -> Path:
    root.mkdir()
    for number in range(24):
        np.save(root / f"id-{number}.npy", np.full((2, 3), number, dtype=np.float32))
    return root


def made(root: Path) -> dict[str, Any]:
    """Return a dataset of each kind."""
    image = v1.Compose([v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()])
    own = v1.Compose([v1.Resize((8, 8)), v1.Lambda(identity), v1.ToTensor()])
    folder, files = photos(root / "photos"), tensors(root / "tensors")
    rows = TensorDataset(torch.arange(48.0).view(24, 2), torch.arange(24))
    ids = [f"id-{number}" for number in range(24)]
    return {
        "rows": rows,
        "arrays": penstock.Arrays(np.arange(24, dtype=np.int16), torch.zeros(24, 2, 2)),
        "subset": Subset(rows, list(range(3, 20))),
        "concat": ConcatDataset([rows, Subset(rows, [0, 1])]),
        "mix": penstock.Mix({"a": (rows, 3), "b": (Subset(rows, [0, 1, 2]), 1)}, length=16),
        "tensor files": penstock.TensorFolder(files, ids, {name: i % 3 for i, name in enumerate(ids)}, suffix=".npy"),
        "photos": datasets.ImageFolder(folder, image),
        "our photos": penstock.ImageFolder(folder, image),
        "photos, a transform of one's own": datasets.ImageFolder(folder, own),
        "python": Numbers(lambda index: (torch.full((3,), float(index)), index % 2), 24),
        "stream": Stream(24, shared=False),
    }


#: Arguments of loaders, by name; those that a dataset cannot have are left out by what they raise.
ARGUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "0 workers": lambda size: {"num_workers": 0},
    "2 workers": lambda size: {"num_workers": 2},
    "seed": lambda size: {"num_workers": 2, "seed": 7, "shuffle": True},
    "shard": lambda size: {"num_workers": 1, "seed": 7, "shuffle": True, "shard": (1, 3)},
    "threads": lambda size: {"num_workers": 2, "worker_method": "thread"},
    "processes": lambda size: {"num_workers": 2, "worker_method": "process", "seed": 7},
    "replace": lambda size: {"num_workers": 0, "on_error": "replace"},
    "collate": lambda size: {"num_workers": 0, "collate_fn": collate},
    "sampler": lambda size: {"num_workers": 0, "sampler": WeightedRandomSampler([1.0] * size, size)},
    "weighted": lambda size: {"num_workers": 0, "sampler": penstock.Weighted([1.0] * size), "seed": 7},
    "single": lambda size: {"num_workers": 0, "batch_size": None},
    "device": lambda size: {"num_workers": 0, "device": "cpu"},
}


def observed(root: Path) -> dict[str, Any]:
    """Return what is to be compared."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dataset_name, dataset in made(root).items():
            for name, arguments in ARGUMENTS.items():
                size = len(dataset) if hasattr(dataset, "__len__") else 24
                found[f"{dataset_name} / {name}"] = of_loader(dataset, arguments(size), root)
    return found


def of_loader(dataset: Any, arguments: dict[str, Any], root: Path) -> Any:
    """Return what a loader explains, its state after two batches, and with a seed the ledger of an epoch."""
    ledger = root / "ledger"
    ledger.unlink(missing_ok=True)
    torch.manual_seed(5)
    try:
        loader: Any = penstock.DataLoader(dataset, **{"batch_size": 4, **arguments})
        text = anywhere(loader.explain(), root).splitlines()
        batches = iter(loader)
        taken(batches, 2)
        found = {"explain": text, "state": json.dumps(loader.state_dict())}
        del batches
        if "seed" in arguments:
            list(penstock.DataLoader(dataset, **{"batch_size": 4, **arguments}, ledger=ledger))
            found["ledger"] = ledger.read_text()
    except Exception as error:
        return anywhere(f"{type(error).__name__}: {error}", root)
    return found


def anywhere(text: str, root: Path) -> str:
    """Return a text without the folder and the addresses that each run has for itself."""
    return re.sub(" at 0x[0-9a-f]+", "", text.replace(str(root), "ROOT"))


def test_texts_states_and_ledgers_are_what_was_kept(tmp_path: Path) -> None:
    kept, now = json.loads(KEPT.read_text("utf-8")), observed(tmp_path)
    assert now.keys() == kept.keys()
    for name, what in now.items():
        assert what == kept[name], name


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        KEPT.write_text(json.dumps(observed(Path(folder)), indent=1, ensure_ascii=False) + "\n")

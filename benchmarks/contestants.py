"""What several questions share: the tutorial's Dataset, and how epochs of a peer are run."""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import Running, Setup, over


def tutorial_dataset(folder: Path, names: list[str], labels: dict[str, int]) -> Any:
    """The Dataset of the tutorial: torch.load of folder/ID.pt, and a dict of labels."""
    import torch

    class Dataset(torch.utils.data.Dataset[Any]):
        def __init__(self, list_ids: list[str], labels: dict[str, int]) -> None:
            self.labels = labels
            self.list_ids = list_ids

        def __len__(self) -> int:
            return len(self.list_ids)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            name = self.list_ids[index]
            return torch.load(prefix + name + ".pt"), self.labels[name]

    prefix = f"{folder}/"
    return Dataset(names, labels)


def dali_epochs(pipeline: Any, setup: Setup) -> Running:
    """Epochs of a built DALI pipeline, whose first output is a batch of four dimensions."""
    import numpy as np

    def epoch() -> int:
        count = 0
        for _ in range(-(-setup.samples // setup.batch)):
            batch = np.asarray(pipeline.run()[0].as_tensor())
            batch[0, 0, 0, 0].item()
            count += len(batch)
        return count

    return Running(epoch)


def ffcv_epochs(packed: Path, images: Any, setup: Setup) -> Running:
    """Epochs of FFCV's Loader on a packed file of fields x and y, in its fully random order, from the page cache."""
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    return over(
        Loader(
            str(packed),
            batch_size=setup.batch,
            num_workers=setup.workers,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={"x": images, "y": [IntDecoder(), ToTensor()]},
        )
    )

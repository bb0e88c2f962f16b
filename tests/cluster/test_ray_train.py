"""Ray Data prepares a dataset, Ray Train trains on it, and Penstock reads it there: as users put them together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests.cluster.conftest import Nodes
from tests.cluster.trained import train
from tests.commands import command
from tests.same import assert_same

pytest.importorskip("ray.train.torch", reason="ray[train] is not installed")
data = pytest.importorskip("ray.data", reason="ray[data] is not installed")
# Ray itself warns of what will change in it, and leaves files and sockets to the garbage collector.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

SAMPLES = 46


def rows() -> list[dict[str, Any]]:
    return [
        {"__key__": f"{number:04}", "npy": np.full((3, 4), float(number), np.float32), "cls": number % 7}
        for number in range(SAMPLES)
    ]


@pytest.fixture(scope="module")
def prepared(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tar files that a pipeline of Ray Data wrote, indexed."""
    folder = tmp_path_factory.mktemp("prepared")
    made = data.from_items(rows(), override_num_blocks=3).map(lambda row: {**row, "npy": row["npy"] * 2})
    made.write_webdataset(str(folder))
    command("index", folder)
    return folder


def test_what_ray_data_wrote(prepared: Path) -> None:
    assert len(list(prepared.glob("*.tar"))) > 1
    dataset = penstock.Shards(prepared)
    assert len(dataset) == SAMPLES
    found = {dataset.name(place): dataset[place] for place in range(SAMPLES)}
    for row in rows():
        array, label = found[row["__key__"]]
        assert_same(np.asarray(array), row["npy"] * 2)
        assert label == row["cls"]
    loader: Any = penstock.DataLoader(dataset, 8, num_workers=1)
    assert "plan     1 native thread" in loader.explain()
    assert sum(len(labels) for _, labels in loader) == SAMPLES


def test_a_loader_in_workers_of_ray_train(prepared: Path, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    config = {"shards": str(prepared), "folder": str(tmp_path)}
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    run = RunConfig(storage_path=str(tmp_path / "results"))
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [one["ranks"] for one in found] == [[0, 2], [1, 2]]
    whole: Any = penstock.DataLoader(penstock.Shards(prepared), 8, shuffle=True, seed=3, num_workers=1)
    batches = [labels.tolist() for _, labels in whole]
    assert [a + b for a, b in zip(*(one["labels"] for one in found), strict=True)][:-1] == batches[:-1]
    assert sum(len(batch) for one in found for batch in one["labels"]) == SAMPLES
    assert "rank 0 of 2" in found[0]["explained"]

"""What a worker of Ray Train runs, in a module that the nodes of a cluster can import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock


def train(config: dict[str, Any]) -> None:
    """Go through an epoch of packed shards, and write which labels this worker got: FOLDER/rank-N.json."""
    from ray import train as ray_train  # noqa: PLC0415

    context, dataset = ray_train.get_context(), penstock.Shards(config["shards"])
    loader: Any = penstock.DataLoader(dataset, 4, shuffle=True, seed=3, shard="auto", num_workers=1)
    found = {
        "ranks": [context.get_world_rank(), context.get_world_size()],
        "explained": loader.explain(),
        "labels": [labels.tolist() for _, labels in loader],
    }
    Path(config["folder"], f"rank-{context.get_world_rank()}.json").write_text(json.dumps(found))

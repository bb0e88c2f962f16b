"""Training processes that read shards from a real S3 server: they share a cache, and may be killed at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.python_processes import Program
from tests.s3_server import S3, serve
from tests.same import assert_same

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

#: A training process: prints the labels that each batch has, a line each.
TRAIN = """
import json, sys, time
import penstock
url, cache, rank, world, limit, pause = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), float(sys.argv[6])
data = penstock.Shards(url, window=3, cache_folder=cache, cache_limit=limit)
shard = None if world == 1 else (rank, world)
for _, labels in penstock.DataLoader(data, batch_size=8, shuffle=True, seed=1, num_workers=1, shard=shard):
    print(json.dumps(labels.tolist()), flush=True)
    time.sleep(pause)  # a step of training
"""


@pytest.fixture(scope="module")
def served(packed: Path) -> Iterator[S3]:
    with serve() as server:
        for path in packed.iterdir():
            if path.is_file():
                server.put(f"data/{path.name}", path.read_bytes())
        yield server


@pytest.fixture
def bucket(served: S3) -> S3:
    served.requests.clear()
    return served


def fetched(bucket: S3) -> dict[str, int]:
    """Return how often each shard was fetched."""
    return {
        name: count for (method, name), count in bucket.requests.items() if method == "GET" and name.endswith(".tar")
    }


def start(bucket: S3, cache: Path, *, rank: int = 0, world: int = 1, limit: int = 1 << 30, pause: float = 0) -> Any:
    return Program(TRAIN, f"{bucket.url}/data", cache, rank, world, limit, pause)


def labels_of(process: Any) -> list[list[int]]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def expected(packed: Path, **options: Any) -> list[list[int]]:
    local = penstock.Shards(packed, window=3)
    return [
        labels.tolist()
        for _, labels in penstock.DataLoader(local, batch_size=8, shuffle=True, seed=1, num_workers=0, **options)
    ]


def test_an_epoch_over_s3_is_that_of_the_folder(bucket: S3, packed: Path, tmp_path: Path) -> None:
    over = penstock.DataLoader(
        penstock.Shards(f"{bucket.url}/data", window=3, cache_folder=tmp_path / "cache"),
        batch_size=8,
        shuffle=True,
        seed=1,
    )
    local = penstock.DataLoader(penstock.Shards(packed, window=3), batch_size=8, shuffle=True, seed=1)
    for ours, theirs in zip(over, local, strict=True):
        assert_same(ours, theirs)
    assert set(fetched(bucket).values()) == {1}


def test_the_ranks_of_a_node_share_a_cache(bucket: S3, packed: Path, tmp_path: Path) -> None:
    ranks = [start(bucket, tmp_path / "cache", rank=rank, world=2) for rank in range(2)]
    for rank, process in enumerate(ranks):
        assert labels_of(process) == expected(packed, shard=(rank, 2))
    shards = fetched(bucket)
    assert set(shards.values()) == {1} and len(shards) == len(list(packed.glob("*.tar")))


@pytest.mark.slow
def test_killed_at_any_moment_the_next_start_works(bucket: S3, packed: Path, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in packed.iterdir()]
    limit = 6 * max(sizes)
    for attempt in range(3):
        process = start(bucket, tmp_path / "cache", limit=limit, pause=0.02)
        if attempt:
            process.stdout.readline()
        else:
            deadline = time.monotonic() + 60  # in the middle of the first downloads
            while not list((tmp_path / "cache").glob("*.tar-*")) and time.monotonic() < deadline:
                time.sleep(0.001)  # what another process writes gives no event
        time.sleep(0.05 * attempt)  # another moment of the pass
        process.kill()
    assert labels_of(start(bucket, tmp_path / "cache", limit=limit)) == expected(packed)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= limit + 4096

"""Training processes that read shards from a real S3 server: they share a cache, and may be killed at any moment."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from tests.python_processes import Program
from tests.same import assert_same

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

SAMPLES = 320

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
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("tensors")
    labels = {f"id-{number:04d}": number for number in range(SAMPLES)}
    for name, label in labels.items():
        torch.save(torch.full((32, 32), float(label)), source / f"{name}.pt")
    out = tmp_path_factory.mktemp("packed")
    penstock.pack(penstock.TensorFolder(source, sorted(labels), labels), out, shard_size=150_000)
    return out


class Bucket:
    """A bucket of moto's server, and the requests that it got."""

    def __init__(self, endpoint: str, requests: Counter[str]) -> None:
        self.url = "s3://training/data"
        self.requests = requests
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }


@pytest.fixture(scope="module")
def served(packed: Path) -> Iterator[Bucket]:
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3", reason="boto3, which moto brings, is not installed")
    application = pytest.importorskip("moto.moto_server.werkzeug_app").DomainDispatcherApplication
    requests: Counter[str] = Counter()
    answer = application.__call__

    def counted(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET":
            requests[environ["PATH_INFO"].rpartition("/")[2]] += 1
        return answer(self, environ, start_response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "__call__", counted)
        server: Any = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        bucket = Bucket(f"http://{host}:{port}", requests)
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=bucket.environment["AWS_ENDPOINT_URL"], region_name="us-east-1")
        client.create_bucket(Bucket="training")
        for path in packed.iterdir():
            if path.is_file():
                client.put_object(Bucket="training", Key=f"data/{path.name}", Body=path.read_bytes())
        yield bucket
        server.stop()


@pytest.fixture
def bucket(served: Bucket) -> Bucket:
    served.requests.clear()
    return served


def start(bucket: Bucket, cache: Path, *, rank: int = 0, world: int = 1, limit: int = 1 << 30, pause: float = 0) -> Any:
    return Program(TRAIN, bucket.url, cache, rank, world, limit, pause, environment=bucket.environment)


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


def test_an_epoch_over_s3_is_that_of_the_folder(bucket: Bucket, packed: Path, tmp_path: Path) -> None:
    over = penstock.DataLoader(
        penstock.Shards(bucket.url, window=3, cache_folder=tmp_path / "cache"), batch_size=8, shuffle=True, seed=1
    )
    local = penstock.DataLoader(penstock.Shards(packed, window=3), batch_size=8, shuffle=True, seed=1)
    for ours, theirs in zip(over, local, strict=True):
        assert_same(ours, theirs)
    assert {count for name, count in bucket.requests.items() if name.endswith(".tar")} == {1}


def test_the_ranks_of_a_node_share_a_cache(bucket: Bucket, packed: Path, tmp_path: Path) -> None:
    ranks = [start(bucket, tmp_path / "cache", rank=rank, world=2) for rank in range(2)]
    for rank, process in enumerate(ranks):
        assert labels_of(process) == expected(packed, shard=(rank, 2))
    shards = {name: count for name, count in bucket.requests.items() if name.endswith(".tar")}
    assert set(shards.values()) == {1} and len(shards) == len(list(packed.glob("*.tar")))


@pytest.mark.slow
def test_killed_at_any_moment_the_next_start_works(bucket: Bucket, packed: Path, tmp_path: Path) -> None:
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

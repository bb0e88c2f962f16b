"""Objects of a real S3 server, local files and HTTP, with errors that name them; and training that reads from S3.

Training processes share a cache, and may be killed at any moment.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from tests.packing.packed import contents
from tests.python_processes import Program
from tests.s3_server import S3, serve

obstore = pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

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
def served() -> Iterator[S3]:
    with serve() as server:
        yield server


@pytest.fixture
def shards(served: S3, packed: Path) -> S3:
    for name, data in contents(packed).items():
        served.put(f"data/{name}", data)
    served.requests.clear()
    return served


def test_what_is_not_there(served: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, kind, words in (
        (f"{served.url}/folder", errors.MissingObject, "s3://packed/folder/dataset.json: the object does not exist"),
        ("s3://no-such-bucket/x", errors.MissingBucket, "no-such-bucket/x/dataset.json: the bucket does not exist"),
    ):
        with pytest.raises(kind, match=words):
            penstock.Shards(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    url = f"{served.url}/folder/dataset.json"
    with pytest.raises(errors.StoreUnreachable, match=f"{url}: the store does not answer") as raised:
        penstock.Shards(f"{served.url}/folder")
    assert issubclass(raised.type, ConnectionError)
    assert raised.value.url == pickle.loads(pickle.dumps(raised.value)).url == url


@pytest.mark.parametrize(
    "said",
    [
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1 s - connection refused",
        "Generic GCS error: Error performing GET http://metadata.google.internal/compute in 1 s, after 2 retries",
        "Generic MicrosoftAzure error: Account must be specified",
    ],
)
def test_credentials_that_are_missing(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_async(*_: Any) -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr(obstore, "get_async", get_async)
    words = r"file:///.*/dataset.json: no credentials were found; set those of the store"
    with pytest.raises(errors.MissingCredentials, match=words):
        penstock.Shards(tmp_path.as_uri())


def test_the_client_is_refused_in_a_forked_child(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = penstock.Shards(packed.as_uri())
    monkeypatch.setattr("penstock.storage.objects._FIRST", [1])
    with pytest.raises(errors.StorageError, match="does not work in a process forked after its first use"):
        dataset[0]
    with pytest.raises(errors.StorageError, match="multiprocessing_context='spawn'"):
        penstock.Shards(packed.as_uri())


def fetched(shards: S3) -> dict[str, int]:
    """Return how often each shard was fetched."""
    gets = ((name, count) for (method, name), count in shards.requests.items() if method == "GET")
    return {name: count for name, count in gets if name.endswith(".tar")}


def start(shards: S3, cache: Path, *, rank: int = 0, world: int = 1, limit: int = 1 << 30, pause: float = 0) -> Any:
    return Program(TRAIN, f"{shards.url}/data", cache, rank, world, limit, pause)


def labels_of(process: Any) -> list[list[int]]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def expected(packed: Path, **options: Any) -> list[list[int]]:
    local = penstock.Shards(packed, window=3)
    loader = penstock.DataLoader(local, batch_size=8, shuffle=True, seed=1, num_workers=0, **options)
    return [labels.tolist() for _, labels in loader]


def test_the_ranks_of_a_node_share_a_cache(shards: S3, packed: Path, tmp_path: Path) -> None:
    ranks = [start(shards, tmp_path / "cache", rank=rank, world=2) for rank in range(2)]
    for rank, process in enumerate(ranks):
        assert labels_of(process) == expected(packed, shard=(rank, 2))
    assert fetched(shards) == dict.fromkeys((path.name for path in packed.glob("*.tar")), 1)

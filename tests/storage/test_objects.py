"""What is said where an object store, its bucket or its credentials are missing, or its client cannot work."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.s3_server import S3, serve

obstore = pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")


@pytest.fixture(scope="module")
def served() -> Iterator[S3]:
    with serve() as server:
        yield server


def test_what_is_not_there(served: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, kind, words in (
        (f"{served.url}/folder", penstock.MissingObject, "s3://packed/folder/dataset.json: the object does not exist"),
        ("s3://no-such-bucket/x", penstock.MissingBucket, "no-such-bucket/x/dataset.json: the bucket does not exist"),
    ):
        with pytest.raises(kind, match=words):
            penstock.Shards(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    url = f"{served.url}/folder/dataset.json"
    with pytest.raises(penstock.StoreUnreachable, match=f"{url}: the store does not answer") as raised:
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
    with pytest.raises(penstock.MissingCredentials, match=words):
        penstock.Shards(tmp_path.as_uri())


def test_the_client_is_refused_in_a_forked_child(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = penstock.Shards(packed.as_uri())
    monkeypatch.setattr("penstock.storage.objects._FIRST", [1])
    with pytest.raises(penstock.StorageError, match="does not work in a process forked after its first use"):
        dataset[0]
    with pytest.raises(penstock.StorageError, match="multiprocessing_context='spawn'"):
        penstock.Shards(packed.as_uri())

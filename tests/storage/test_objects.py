"""Objects of a real S3 server, local files and HTTP: what is wrong is said when it is opened, with the URL."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import (
    AccessRefused,
    MissingBucket,
    MissingCredentials,
    MissingObject,
    StorageError,
    StoreUnreachable,
)
from penstock.storage.objects import ObjectStore, run_alone
from tests.object_server import ObjectServer
from tests.s3_server import serve

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a folder in a bucket, with one object, 'x.bin'."""
    with serve() as served:
        served.put("folder/x.bin", b"0123456789")
        yield f"{served.url}/folder"


def test_objects_and_ranges_of_s3(bucket: str) -> None:
    store = ObjectStore(bucket + "/")
    assert store.read("x.bin") == b"0123456789"
    assert run_alone(store.read_part("x.bin", 3, 7, 10)) == b"3456"
    assert pickle.loads(pickle.dumps(store)).read("x.bin") == b"0123456789"
    with pytest.raises(StorageError, match=r"s3://packed/folder/x.bin: the object has 10 bytes"):
        run_alone(store.read_part("x.bin", 8, 12, 12))


def test_what_s3_lacks(bucket: str) -> None:
    with pytest.raises(MissingObject, match=r"s3://packed/folder/y.bin: there is no such object"):
        ObjectStore(bucket).read("y.bin")
    with pytest.raises(MissingBucket, match=r"s3://no-such-bucket/folder/y.bin: the bucket does not exist"):
        ObjectStore("s3://no-such-bucket/folder").read("y.bin")


def test_a_store_that_does_not_answer(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    with pytest.raises(StoreUnreachable, match=r"s3://packed/folder/x.bin: the store does not answer") as raised:
        ObjectStore(bucket).read("x.bin")
    assert issubclass(raised.type, ConnectionError)
    assert raised.value.url == "s3://packed/folder/x.bin"
    assert pickle.loads(pickle.dumps(raised.value)).url == raised.value.url


@pytest.mark.parametrize("status", ["401", "403"])
def test_a_store_that_refuses(status: str) -> None:
    with ObjectServer({"x": b"1"}, lambda *_: status) as server:
        with pytest.raises(AccessRefused, match=r"http://127.0.0.1:\d+/data/x: the store refuses access") as raised:
            ObjectStore(server.url).read("x")
        assert issubclass(raised.type, PermissionError)


@pytest.mark.parametrize(
    "said",
    [
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1 s - connection refused",
        "Generic GCS error: Error performing GET http://metadata.google.internal/compute in 1 s, after 2 retries",
        "Generic MicrosoftAzure error: Account must be specified",
    ],
)
def test_credentials_that_are_missing(said: str, tmp_path: Path) -> None:
    with pytest.raises(MissingCredentials, match=r"file:///.*/x: no credentials were found; set those of the store"):
        ObjectStore(tmp_path.as_uri())._raise(RuntimeError(said), "x")


def test_local_files(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"0123456789")
    store = ObjectStore(tmp_path.as_uri())
    assert store.read("x.bin") == b"0123456789" and run_alone(store.read_part("x.bin", 2, 4, 10)) == b"23"
    with pytest.raises(MissingObject):
        store.read("y.bin")


def test_urls_that_the_client_refuses() -> None:
    with pytest.raises(StorageError, match="ftp://host"):
        ObjectStore("ftp://host/x")


def test_the_client_is_refused_in_a_forked_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(tmp_path.as_uri())
    monkeypatch.setattr("penstock.storage.objects._FIRST", [1])
    with pytest.raises(StorageError, match="does not work in a process forked after its first use"):
        store.read("x")
    with pytest.raises(StorageError, match="multiprocessing_context='spawn'"):
        ObjectStore(tmp_path.as_uri())

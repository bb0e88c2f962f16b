"""Objects of a real S3 server, local files and HTTP: what is wrong is said when it is opened, with the URL."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    AccessRefused,
    MissingBucket,
    MissingCredentials,
    MissingObject,
    StorageError,
    StoreUnreachable,
)
from penstock.storage.objects import ObjectStore
from tests.object_server import ObjectServer

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server_of = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server: Any = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket with one object, 'x.bin'."""
    boto3 = pytest.importorskip("boto3", reason="boto3, which moto brings, is not installed")
    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="pictures")
    client.put_object(Bucket="pictures", Key="folder/x.bin", Body=b"0123456789")
    return "s3://pictures/folder"


def test_objects_and_ranges_of_s3(bucket: str) -> None:
    store = ObjectStore(bucket + "/")
    assert store.read("x.bin") == b"0123456789"
    assert store.read_range("x.bin", 3, 7) == b"3456" and store.read_range("x.bin", 3, 3) == b""
    assert store.info("x.bin").size == 10 and store.info("x.bin").etag
    assert pickle.loads(pickle.dumps(store)).read("x.bin") == b"0123456789"
    with pytest.raises(StorageError, match=r"s3://pictures/folder/x.bin.* the object ends 2 bytes early"):
        store.read_range("x.bin", 8, 12)


def test_what_s3_lacks(bucket: str) -> None:
    for ask in (ObjectStore(bucket).read, ObjectStore(bucket).info):
        with pytest.raises(MissingObject, match=r"s3://pictures/folder/y.bin: there is no such object"):
            ask("y.bin")
    for ask in (ObjectStore("s3://no-such-bucket/folder").read, ObjectStore("s3://no-such-bucket/folder").info):
        with pytest.raises(MissingBucket, match=r"s3://no-such-bucket/folder/y.bin: the bucket does not exist"):
            ask("y.bin")


def test_a_store_that_does_not_answer(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    with pytest.raises(StoreUnreachable, match=r"s3://pictures/folder/x.bin: the store does not answer") as raised:
        ObjectStore(bucket).read("x.bin")
    assert issubclass(raised.type, ConnectionError)
    assert raised.value.url == "s3://pictures/folder/x.bin"
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
    assert store.read("x.bin") == b"0123456789" and store.read_range("x.bin", 2, 4) == b"23"
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

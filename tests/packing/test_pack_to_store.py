"""Packing to an object store: the same bytes as to a folder, in objects that are whole or not there."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import main
from tests.data import write_photos
from tests.packing.packed import contents
from tests.python_processes import Program
from tests.s3_server import S3, serve


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with serve() as served:
        yield served


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    server.requests.clear()
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    yield server
    server.refuse = lambda method, path: None


@pytest.fixture
def photos(tmp_path: Path) -> penstock.ImageFolder:
    return penstock.ImageFolder(write_photos(tmp_path / "photos"))


_KILLED = """
import os, sys, penstock

def stop(now):
    if now.samples == 20:
        print("here", flush=True)
        sys.stdin.read()

penstock.pack(penstock.ImageFolder(sys.argv[1]), sys.argv[2], shard_size=6000, workers=1, on_progress=stop)
"""


def test_killed_in_the_middle(s3: S3, photos: Any, tmp_path: Path) -> None:
    with Program(_KILLED, tmp_path / "photos", f"{s3.url}/killed") as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    penstock.pack(photos, tmp_path / "out", shard_size=6000)
    reference, held = contents(tmp_path / "out"), s3.objects("killed")
    assert all(reference[name] == data for name, data in held.items() if ".packing" not in name)
    made = penstock.pack(photos, f"{s3.url}/killed", shard_size=6000)
    assert made.kept > 0
    assert s3.objects("killed") == reference


def test_another_process_that_begins_at_the_same_time(s3: S3, photos: Any) -> None:
    def race(method: str, path: str) -> None:
        if method == "PUT" and not came:  # the other one's plan comes just before
            came.append(path)
            s3.put(path.removeprefix("/packed/"), b"{}")

    came: list[str] = []
    s3.refuse = race
    with pytest.raises(penstock.InvalidOption, match="another process packs into s3://packed/race"):
        penstock.pack(photos, f"{s3.url}/race")


@pytest.mark.parametrize(
    ("status", "code", "error", "said"),
    [
        ("507 Insufficient Storage", "XMinioStorageFull", penstock.StoreFull, "the store has no space, or no quota"),
        ("403 Forbidden", "QuotaExceeded", penstock.OutOfSpace, "the store has no space, or no quota"),
        ("403 Forbidden", "AccessDenied", penstock.AccessRefused, "the store refuses access with these credentials"),
        ("503 Slow Down", "SlowDown", penstock.StoreUnreachable, "the store does not answer"),
    ],
)
def test_a_store_that_refuses(
    s3: S3, photos: Any, tmp_path: Path, status: str, code: str, error: type[Exception], said: str
) -> None:
    name = f"refused-{status[:3]}-{error.__name__}"
    sent: set[str] = set()

    def refuse(method: str, path: str) -> tuple[str, str] | None:
        if method != "PUT" or not path.endswith(".tar"):
            return None
        sent.add(path)
        return (status, code) if len(sent) > 2 else None

    s3.refuse = refuse
    with pytest.raises(error, match=rf"s3://packed/{name}/data-000002.tar: {said}"):
        penstock.pack(photos, f"{s3.url}/{name}", shard_size=6000, workers=1)
    s3.refuse = lambda method, path: None
    assert "dataset.json" not in s3.objects(name)
    assert penstock.pack(photos, f"{s3.url}/{name}", shard_size=6000).kept == 2


def test_an_upload_that_is_interrupted(s3: S3, photos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.packing.places._PART", 1000)
    told: list[int] = []

    def stop(now: Any) -> None:
        told.append(now.samples)
        if told[-2:] == [now.samples] * 2:  # nothing was added: a shard is being sent
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.pack(photos, f"{s3.url}/sending", shard_size=6000, workers=1, on_progress=stop)
    assert not [name for name in s3.objects("sending") if name.endswith(".tar")], "nothing half-sent has its name"
    assert penstock.pack(photos, f"{s3.url}/sending", shard_size=6000).kept == 0


def test_what_is_refused_before_anything_is_sent(s3: S3, photos: Any) -> None:
    elsewhere = "shards are written to a local folder or to a URL with"
    wrong: list[tuple[str, dict[str, Any], Any, str]] = [
        (f"{s3.url}/states", {"states": True}, penstock.InvalidOption, "states=True needs shards in a local folder"),
        ("https://host/folder", {}, penstock.InvalidOption, elsewhere),
        ("file:///folder", {}, penstock.InvalidOption, elsewhere),
        ("s3://nowhere/out", {}, penstock.MissingBucket, "the bucket does not exist"),
    ]
    for url, options, error, words in wrong:
        with pytest.raises(error, match=words):
            penstock.pack(photos, url, **options)
    assert not [name for method, name in s3.requests if method == "PUT" and name != "nowhere"]


def test_no_space_for_temporary_files(s3: S3, photos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(penstock.OutOfSpace, match=f"the disk of {tempfile.gettempdir()} is full"):
        penstock.pack(photos, f"{s3.url}/full", workers=1)


def test_the_command(s3: S3, photos: Any, tmp_path: Path) -> None:
    assert main(["pack", str(tmp_path / "photos"), f"{s3.url}/command"]) == 0
    assert len(penstock.Shards(f"{s3.url}/command", cache_folder=tmp_path / "cache")) == 26

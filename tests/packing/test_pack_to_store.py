"""Packing to an object store: the same bytes as to a folder, in objects that are whole or not there."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import penstock
from penstock.cli import main
from tests.data import write_photos
from tests.packing.packed import contents, interrupt_packing, plain
from tests.python_processes import Program
from tests.s3_server import S3, serve
from tests.same import assert_same


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


def assert_packed(s3: S3, name: str, dataset: Any, out: Path, **options: Any) -> Any:
    """Pack to a store, assert that it holds what packing to a folder gives, and return what is told."""
    made = penstock.pack(dataset, f"{s3.url}/{name}", **options)
    penstock.pack(dataset, out, **options)
    assert s3.objects(name.rstrip("/")) == contents(out)
    return made


@pytest.fixture
def photos(tmp_path: Path) -> penstock.ImageFolder:
    return penstock.ImageFolder(write_photos(tmp_path / "photos"))


@pytest.mark.parametrize("options", [{}, {"max_side": 40}, {"decoded": True}])
def test_the_bytes_are_those_of_a_folder(
    s3: S3, photos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("penstock.packing.places._PART", 5000)  # shards are sent in parts
    name = f"same{len(options)}{'decoded' in options}"
    made = assert_packed(s3, f"{name}/", photos, tmp_path / "out", shard_size=9000, **options)
    assert (made.out, made.kept, made.shards > 2) == (f"{s3.url}/{name}", 0, True)
    again = penstock.pack(photos, f"{s3.url}/{name}", shard_size=9000, **options)
    assert again.kept == again.shards
    over = penstock.Shards(f"{s3.url}/{name}", cache_folder=tmp_path / "cache")
    ours, theirs = (list(penstock.DataLoader(one, None)) for one in (over, penstock.Shards(tmp_path / "out")))
    assert len(over) == len(ours)
    assert_same([plain(one) for one in ours], [plain(one) for one in theirs])


def test_stopped_and_run_again_on_another_machine(s3: S3, photos: Any, tmp_path: Path) -> None:
    url = f"{s3.url}/again"
    interrupt_packing(photos, url)
    held = s3.objects("again")
    finished = [name for name in held if name.endswith(".tar")]
    assert finished and "dataset.json" not in held
    with pytest.raises(penstock.InvalidOption, match=r"s3://packed/again holds an unfinished packing .*shard_size"):
        penstock.pack(photos, url, shard_size=7000)
    s3.requests.clear()
    made = assert_packed(s3, "again", photos, tmp_path / "out", shard_size=6000, workers=2)
    assert made.kept == len(finished)
    assert not [name for method, name in s3.requests if method in ("PUT", "POST") and name in finished]


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


def test_a_source_that_changed_and_a_new_beginning(s3: S3, photos: Any, tmp_path: Path) -> None:
    interrupt_packing(photos, f"{s3.url}/changed")
    os.utime(tmp_path / "photos" / "dog" / "1.jpg", (1, 1))
    with pytest.raises(penstock.DatasetChanged, match="names, labels, sizes or times"):
        penstock.pack(photos, f"{s3.url}/changed", shard_size=6000)
    assert_packed(s3, "changed", photos, tmp_path / "out", shard_size=7000, restart=True)


def test_several_splits_and_objects_of_others(s3: S3, photos: Any) -> None:
    url = f"{s3.url}/splits"
    penstock.pack(photos, url, split="train")
    penstock.pack(Subset(photos, [1, 2]), url, split="val")
    with pytest.raises(penstock.InvalidOption, match="holds the split 'val' already"):
        penstock.pack(photos, url, split="val")
    with pytest.raises(penstock.InvalidOption, match=r"s3://packed holds .* which Penstock did not write"):
        penstock.pack(photos, s3.url, restart=True)


def test_another_process_that_begins_at_the_same_time(s3: S3, photos: Any) -> None:
    def race(method: str, path: str) -> None:
        if method == "PUT" and not came:  # the other one's plan comes just before
            came.append(path)
            s3.put(path.removeprefix("/packed/"), b"{}")

    came: list[str] = []
    s3.refuse = race
    with pytest.raises(penstock.InvalidOption, match="another process packs into s3://packed/race"):
        penstock.pack(photos, f"{s3.url}/race")


def test_a_shard_that_is_gone(s3: S3, photos: Any) -> None:
    url = f"{s3.url}/gone"
    assert penstock.pack(photos, url, shard_size=6000).shards > 2
    s3.client().delete_object(Bucket="packed", Key="gone/data-000001.tar")
    with pytest.raises(penstock.CorruptShards, match=r"s3://packed/gone/data-000001.tar is missing"):
        penstock.pack(photos, url, shard_size=6000)


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
    assert assert_packed(s3, name, photos, tmp_path / "out", shard_size=6000).kept == 2


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


def test_rows_in_memory(s3: S3, tmp_path: Path) -> None:
    rows = TensorDataset(torch.arange(60.0).reshape(10, 6), torch.arange(10))
    assert_packed(s3, "rows-in-memory", rows, tmp_path / "out", shard_size=2000)

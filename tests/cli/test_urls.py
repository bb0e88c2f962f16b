"""Shards of an S3 server on the command line, paths that are nearly URLs, and quarantined samples of shards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import penstock
from penstock.errors import ChecksumMismatch, InvalidOption
from tests.commands import BadSample, ran
from tests.data import write_photos
from tests.packing.packed import contents, flip_bit
from tests.s3_server import S3, serve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shards of 26 photos in the current folder."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    penstock.pack(penstock.ImageFolder(write_photos(tmp_path / "photos")), out, shard_size="8KiB")
    return out


@pytest.fixture(scope="module")
def served() -> Iterator[S3]:
    with serve() as server:
        yield server


def said(*arguments: object, code: int = 0) -> str:
    """Run a command, which must end with this code, and return what it prints."""
    return "".join(ran(*arguments, code=code))


def put(served: S3, folder: Path) -> str:
    for name, data in contents(folder).items():
        served.put(f"{folder.parent.name}/{name}", data)
    return f"{served.url}/{folder.parent.name}"


def test_shards_of_a_store(served: S3, folder: Path) -> None:
    url = put(served, folder)
    assert said("info", url) == said("info", folder)
    assert said("verify", url, "--decode") == "26 samples decoded and compared: no fault\n"
    said("view", url, "--batch-size", 4, "-o", "sheet.png")
    assert "have 2 numbers: the batch has no picture" in said("view", "photos", "--mean", "1,2", code=2)
    assert list(penstock.DataLoader(penstock.Shards(url, transform=lambda image: image.size[0]), 26))  # all cached
    flip_bit(folder / "data-000001.tar", 600)
    put(served, folder)
    *faults, total = said("verify", url, code=1).splitlines()
    assert total == f"26 samples compared: {len(faults)} fault{'s' * (len(faults) > 1)}" and len(faults) in (1, 2)
    assert all(f"{url}/data-000001.tar" in fault for fault in faults)


NEAR = {"gs:/x": "gs://x", "s3:/x/y": "s3://x/y", "gcs://x": "gs://x", "S3:/x": "s3://x"}


@pytest.mark.parametrize("near", NEAR)
def test_what_is_nearly_a_url(near: str, folder: Path) -> None:
    before = sorted(os.listdir())
    for words in (("info",), ("verify",), ("view",), ("doctor",), ("pack", "photos"), ("unpack", "out"), ("index",)):
        assert f"write {NEAR[near]}\n" in said(*words, near, code=2), words
    photos = penstock.ImageFolder("photos", lambda image: torch.zeros(1))
    for make in (
        lambda: penstock.Shards(near),
        lambda: penstock.DataLoader(near),  # type: ignore[arg-type]
        lambda: penstock.pack(photos, near),
        lambda: penstock.DataLoader(photos, cache=near),
        lambda: penstock.Shards("memory://x", cache_folder=near),
    ):
        with pytest.raises(InvalidOption, match=f"write {NEAR[near]}$"):
            make()
    with pytest.raises(InvalidOption, match="is a URL: penstock"):
        penstock.DataLoader("s3://x/y")  # type: ignore[arg-type]
    assert "is a URL, and a folder of this machine is needed" in said("unpack", "out", "s3://x", code=2)
    assert sorted(os.listdir()) == before
    os.mkdir("gs:")
    os.mkdir("gs:/x")  # a folder that exists is one
    assert "is not a folder of packed shards" in said("info", "gs:/x", code=2)


@pytest.mark.parametrize("remote", [False, True])
def test_retry_of_samples_of_shards(remote: bool, served: S3, folder: Path) -> None:
    url = put(served, folder) if remote else str(folder)
    flip_bit(folder / "data-000001.tar", 600)
    if remote:
        put(served, folder)
    (name,) = [name for name in ("cat/1.jpg", "cat/2.jpg", "cat/3.jpg") if faulty(folder, name)]
    manifest = Path("bad.jsonl")
    bad = [BadSample(one, f"{url}/data-000001.tar", "ValueError: once", None) for one in (name, "cat/no.jpg")]
    manifest.write_bytes(b"".join(one.line() for one in bad))
    told = said("quarantine", "retry", "bad.jsonl", code=1)
    assert "0 good again (0 taken out), 1 still bad, 1 left" in told and "no index beside" in told
    flip_bit(folder / "data-000001.tar", 600)
    if remote:
        put(served, folder)
    assert "1 good again (1 taken out), 0 still bad, 1 left" in said("quarantine", "retry", "bad.jsonl")
    for path in ("photos/some.tar", "hf://datasets/x.png"):
        manifest.write_bytes(manifest.read_bytes() + BadSample(path, path, "ValueError: once", None).line())
    told = said("quarantine", "retry", "bad.jsonl")
    assert "it has no dataset.json" in told and "'hf://datasets' is not a URL" in told and "3 left" in told


def faulty(folder: Path, name: str) -> bool:
    shards = penstock.Shards(folder)
    position = next(position for position in range(len(shards)) if shards.name(position) == name)
    try:
        shards.read(position)
    except ChecksumMismatch:
        return True
    return False

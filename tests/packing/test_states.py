"""penstock pack --states: decoder states beside the index of shards, with the samples of shards that have none."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from torchvision import transforms

import penstock
from penstock import DataLoader, ImageFolder, Shards
from penstock.cli import main
from penstock.errors import InvalidOption
from tests.commands import command
from tests.data import write_photos, write_tensors
from tests.indexed_photos import FORMS, LOW, MIDDLE, PHOTOS, counts_of, pictures, torchs
from tests.packing.packed import contents
from tests.same import assert_passes, assert_same

pytestmark = pytest.mark.native

#: Photos of which a state is known: all but a PNG and the progressive ones.
KNOWN = PHOTOS + 1 - PHOTOS // len(FORMS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture
def out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return shards with states; the user's cache folder is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    penstock.pack(ImageFolder(folder), tmp_path / "out", shard_size="100KiB", states=True)
    return tmp_path / "out"


def batches(dataset: Any) -> list[Any]:
    return list(DataLoader(dataset, batch_size=4, num_workers=2))


@pytest.mark.parametrize("recipe", [MIDDLE, LOW])
def test_the_first_epoch_goes_by_them(recipe: Any, out: Path, tmp_path: Path) -> None:
    shards = Shards(out, transform=recipe)
    loader = DataLoader(shards, batch_size=4, num_workers=2)
    assert_same(list(loader), torchs(shards))
    assert counts_of(loader).photos == counts_of(loader).hits == KNOWN
    said = f"of {PHOTOS + 2} photos the decoder's states of {KNOWN} are known, which saves rows above a crop (packed"
    assert f"{said} with" in loader.explain()
    assert not (tmp_path / "home" / "penstock" / "jpeg-index").exists()
    assert_same(batches(pickle.loads(pickle.dumps(shards))), torchs(shards))


def test_a_transform_that_python_calls(out: Path) -> None:
    twice = transforms.Lambda(lambda image: transforms.functional.pil_to_tensor(image) * 2)
    shards = Shards(out, transform=transforms.Compose([transforms.CenterCrop(60), twice]))
    loader = DataLoader(shards, batch_size=4, num_workers=2, worker_method="thread", share_dataset=True)
    assert_same(list(loader), torchs(shards))


def test_the_same_photos_give_the_same_bytes(folder: Path, out: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        other = tmp_path / f"by {workers}"
        penstock.pack(ImageFolder(folder), other, shard_size="100KiB", states=True, workers=workers)
        assert contents(other) == contents(out)
        penstock.pack(ImageFolder(folder), other, shard_size="100KiB", states=True)  # finished before
    size = sum(path.stat().st_size for path in out.glob("*.tar"))
    assert (out / "data.states").stat().st_blocks * 512 - 4096 < 0.005 * size + 4096
    with pytest.raises(InvalidOption, match="other options"):
        penstock.pack(ImageFolder(folder), out, shard_size="100KiB")


def test_shards_without_states_are_as_ever(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("penstock.storage.jpeg_index._LEFT", 0.0)
    penstock.pack(ImageFolder(folder), tmp_path / "plain", shard_size="100KiB")
    held = json.loads((tmp_path / "plain" / "dataset.json").read_text())
    assert "states" not in held["splits"]["data"] and not (tmp_path / "plain" / "data.states").exists()
    shards = Shards(tmp_path / "plain", transform=MIDDLE)
    loader = DataLoader(shards, batch_size=4, num_workers=2)
    assert_passes(loader, torchs(shards))
    assert counts_of(loader).hits == KNOWN
    assert "kept in the user's cache folder" in loader.explain()


@pytest.mark.parametrize("damage", ["missing", "cut off", "another", "in the middle"])
def test_damaged_states_are_as_good_as_none(damage: str, out: Path, tmp_path: Path) -> None:
    path = out / "data.states"
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        middle = data[:5000] + bytes(200) + data[5200:]
        path.write_bytes({"cut off": data[:-1], "another": os.urandom(len(data)), "in the middle": middle}[damage])
    shards = Shards(out, transform=MIDDLE)
    for _ in range(2):
        assert_same(batches(shards), torchs(shards))
    fault, total = command("verify", out, code=1).splitlines()
    assert fault.startswith("CorruptShards: ") and "data.states" in fault and total.endswith(": 1 fault")


def test_options_that_make_no_sense(folder: Path, tmp_path: Path) -> None:
    tensors = penstock.TensorFolder(write_tensors(tmp_path / "data"))
    for dataset, decoded in ((tensors, False), (ImageFolder(folder), True)):
        with pytest.raises(InvalidOption, match="states"):
            penstock.pack(dataset, tmp_path / "out", states=True, decoded=decoded)
    assert not (tmp_path / "out").exists()


def test_photos_too_small_for_states(tmp_path: Path) -> None:
    made = penstock.pack(ImageFolder(write_photos(tmp_path / "photos")), tmp_path / "out", states=True)
    assert made.samples == 26 and not (tmp_path / "out" / "data.states").exists()
    shards = Shards(tmp_path / "out", transform=MIDDLE)
    assert_same(batches(shards), torchs(shards))


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    for words in (["pack", str(folder), out, "--states"], ["verify", out], ["info", out]):
        assert main(words) == 0
    assert "states True" in capsys.readouterr().out and (tmp_path / "out" / "data.states").exists()

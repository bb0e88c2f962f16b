"""Names and URLs in errors, notes, warnings, explain() and repr(): nothing for a terminal to act upon, no secrets."""

from __future__ import annotations

import copy
import os
import pickle
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as T
from torch.utils.data import TensorDataset

import penstock
from tests.data import Made
from tests.object_server import ObjectServer
from tests.packing.packed import contents
from tests.same import assert_same

NAME = "a\x1b]0;taken\x07\n\x9b31m\u202e"
SECRET = "hidden"


def clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and SECRET not in text


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)) + repr(error)


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "gone"])
@pytest.mark.parametrize("kind", ["tensor", "image", "array"])
def test_errors_of_a_file_with_a_name_of_escapes(tmp_path: Path, kind: str, content: bytes | None) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    path = folder / f"{NAME}{'.pt' if kind == 'tensor' else '.jpg'}"
    path.write_bytes(content or b"")
    with pytest.raises(penstock.SampleError) as caught:  # noqa: PT012
        if kind == "array":
            if content is None:
                path.unlink()
            penstock.Arrays(path)
        dataset: Any = penstock.TensorFolder(folder) if kind == "tensor" else penstock.Images([path])
        if content is None:
            path.unlink()
        loader: Any = penstock.DataLoader(dataset)
        assert clean(loader.explain())
        next(iter(loader))
    error = caught.value
    assert clean(text_of(error)) and "\n" not in str(error)
    assert error.path is not None and NAME in error.path, "programs get the name itself"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path) == (str(error), error.path)


def test_a_folder_with_a_name_of_escapes(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    for make in (penstock.TensorFolder, penstock.ImageFolder, penstock.Shards):
        with pytest.raises((OSError, penstock.PenstockError)) as caught:
            make(folder)
        assert clean(text_of(caught.value))
    (folder / "0.pt").touch()
    assert clean(repr(penstock.TensorFolder(folder)))


def test_notes_and_warnings(tmp_path: Path) -> None:
    path = f"{tmp_path}/{NAME}/https://me:{SECRET}@host/x.jpg"
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(b"garbage")
    with pytest.raises(penstock.SampleError) as raised:
        list(penstock.DataLoader(penstock.Images([path], transform=T.ToTensor()), num_workers=2))
    (note,) = raised.value.__notes__
    assert "taken" in note and clean(note)
    manifest = tmp_path / f"{NAME}.jsonl"
    manifest.write_text('{"id": "a", "path": null, "error": "", "size": 1, "time": ""}\n?\n')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(penstock.DataLoader(TensorDataset(torch.arange(3)), on_error=penstock.Replace(1, manifest))))
    assert "damaged lines" in str(caught[0].message) and clean(str(caught[0].message))


def test_a_note_is_made_once() -> None:
    error = ValueError("of the user's")

    def fail(_: int) -> Any:
        raise error

    for _ in range(2):
        with pytest.raises(ValueError, match="of the user's"):
            next(iter(penstock.DataLoader(Made(fail, 2), num_workers=0)))
    assert error.__notes__ == ["in __getitem__ of sample 0"]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("s3://bucket/folder/x.tar", "s3://bucket/folder/x.tar"),
        ("https://me:hidden@host:80/a@b/c", "https://host:80/a@b/c"),
        ("https://hidden@host", "https://host"),
        ("https://me:hid@den@host/a", "https://host/a"),
        ("https://host/a?sig=hidden&b=c", "https://host/a"),
        ("https://host?sig=https://hidden@x", "https://host"),
        ("HTTPS://me:hidden@host/a?b: it is not there", "HTTPS://host/a: it is not there"),
        ("('az://h@a/b?c', \"gs://h@d/e?f\")", "('az://a/b', \"gs://d/e\")"),
        ("a @ b ? c :// d", "a @ b ? c :// d"),
    ],
)
def test_urls_without_secrets(text: str, bare: str) -> None:
    assert str(penstock.InvalidOption(text)) == str(penstock.InvalidOption(bare)) == bare


def test_the_secrets_of_a_url_open_the_store_and_are_seen_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")
    penstock.pack(TensorDataset(torch.arange(3)), tmp_path / "packed")
    objects = {f"{name}?sig={SECRET}": data for name, data in contents(tmp_path / "packed").items()}
    with ObjectServer(objects) as server:
        url = f"{server.url.replace('://', f'://me:{SECRET}@')}?sig={SECRET}"
        shards = penstock.Shards(url, cache_folder=tmp_path / "cache")
        for each in (shards, pickle.loads(pickle.dumps(shards)), copy.copy(shards)):
            loader = penstock.DataLoader(each, batch_size=3)
            assert_same(list(loader), [[torch.arange(3)]])
            assert clean(repr(each)) and clean(loader.explain())
        for number, fault in enumerate(("403", "404")):
            server.faults = lambda *_, fault=fault: fault
            with pytest.raises(penstock.StorageError) as caught:
                penstock.Shards(url, cache_folder=tmp_path / str(number))
            assert caught.value.url == f"{server.url}/dataset.json"
            assert clean("".join(traceback.format_exception(caught.value, limit=0)) + repr(caught.value))
    with pytest.raises(penstock.InvalidOption, match="shards are written to a local folder") as refused:
        penstock.pack(TensorDataset(torch.zeros(3)), url)
    assert clean(text_of(refused.value))

"""Names and URLs in errors, notes, warnings, explain() and repr(): nothing for a terminal to act upon, no secrets."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.sample_notes import add_note
from penstock.showing import shown, shown_lines, without_secrets
from penstock.system.warn_user import warn_user
from tests.object_server import ObjectServer

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


def test_notes_and_warnings() -> None:
    error = ValueError("of the user's")
    for _ in range(2):
        add_note(error, f"in {NAME} of https://me:{SECRET}@host/x")
    assert len(error.__notes__) == 1 and clean(error.__notes__[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user(f"{NAME}: s3://{SECRET}:key@bucket/x")
    assert clean(str(caught[0].message))


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
    assert without_secrets(text) == shown(text) == shown_lines(text) == bare
    assert str(penstock.InvalidOption(text)) == bare
    assert without_secrets(bare) == bare


def test_the_secrets_of_a_url_open_the_store_and_are_seen_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")
    from penstock.storage.objects import ObjectStore  # noqa: PLC0415

    query, contents = f"?sig={SECRET}", {f"x.bin?sig={SECRET}": b"content"}
    with ObjectServer(contents, lambda method, name, number: "403" if name.startswith("refused") else "") as server:
        url = f"{server.url.replace('://', f'://me:{SECRET}@')}{query}"
        store = ObjectStore(url)
        for each in (store, pickle.loads(pickle.dumps(store)), copy.copy(store)):
            assert each.read("x.bin") == b"content"
            assert clean(repr(each)) and clean(each.url_of("x.bin"))
        for name in ("refused", "missing"):
            with pytest.raises(penstock.StorageError) as caught:
                store.read(name)
            assert caught.value.url == f"{server.url}/{name}"
            assert clean("".join(traceback.format_exception(caught.value, limit=0)) + repr(caught.value))
        with pytest.raises(penstock.StorageError) as caught:
            penstock.Shards(url, cache_folder=tmp_path)
        assert clean("".join(traceback.format_exception(caught.value, limit=0)))
    with pytest.raises(penstock.InvalidOption, match="shards are written to a local folder") as refused:
        penstock.pack(TensorDataset(torch.zeros(3)), url)
    assert clean(text_of(refused.value))

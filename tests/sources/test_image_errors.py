"""Errors of image files name the sample's ID and its file, on every route."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset
from torchvision.transforms import ToTensor

import penstock
from tests.data import photo_files


def through(**options: Any) -> Callable[[Any, int], object]:
    return lambda images, number: list(penstock.DataLoader(Subset(images, [number]), **options))


ROUTES: dict[str, Callable[[Any, int], object]] = {
    "native": through(),
    "native threads": through(num_workers=2),
    "threads": through(num_workers=2, worker_method="thread", collate_fn=list),
    "the caller's thread": through(collate_fn=list),
    "itself": operator.getitem,
}


@pytest.mark.parametrize("route", ROUTES)
def test_errors_name_the_id_and_the_file_once(tmp_path: Path, route: str) -> None:
    files = sorted(photo_files(tmp_path, 3).rglob("*.jpg"))
    names = [os.path.relpath(path, tmp_path) for path in files]
    files[1].write_bytes(b"no image")
    files[2].unlink()
    folder = files[0].parent.parent
    for number, words in ((1, "is not an image"), (2, "cannot be read: No such file")):
        for given, root in ((names, folder), (list(map(str, files)), None)):
            images = penstock.Images(given, transform=ToTensor(), root=root)
            with pytest.raises(penstock.SampleError, match=words) as caught:
                ROUTES[route](images, number)
            error, path = caught.value, str(files[number])
            said = str(error).split(words, maxsplit=1)[0]
            assert said.count(path) == 1 and (root is None or f"{names[number]!r} ({path})" in said)
            assert all(note.count(path) <= 1 for note in getattr(error, "__notes__", ()))
            assert (error.sample_id, error.path) == (given[number], path)


def test_a_missing_file_of_an_image_folder_is_named_once(tmp_path: Path) -> None:
    images = penstock.ImageFolder(photo_files(tmp_path, 3), ToTensor())
    path = images.path(1)
    Path(path).unlink()
    with pytest.raises(penstock.MissingSample) as caught:
        list(penstock.DataLoader(images))
    assert str(caught.value).startswith(f"sample {os.path.relpath(path, tmp_path)!r} ({path}) cannot be read: ")

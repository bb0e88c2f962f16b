"""The caches that rows 20 and 22 damage, all below one folder, the home: a call reads by each, and fills it first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torchvision

import penstock
from penstock import loop_times
from penstock.insight import publishing
from tests.data import photo_files, rows, tensor_files
from tests.sources.test_image_folder import age
from tests.storage.test_tiers import RECIPE, pictures, torchs

#: Of the shards in an object store: room for four of six, and their index.
LIMIT = 60_000


class Cache(NamedTuple):
    """A cache of samples, of what speeds up reading them, or of what watches a loader."""

    folder: str
    """In the home."""
    source: list[Any]
    """What comes of a pass without the cache."""
    open: Callable[[Path], Iterable[Any]]
    """Makes a new loader, or a new dataset, which keeps its files in a home."""

    @property
    def given(self) -> bool:
        """Whether the user names the folder: where it is unsafe, that is an error."""
        return self.folder == "given"

    @property
    def wanted(self) -> list[Any]:
        """What `read` must return."""
        return [digest(one) for one in self.source]

    def read(self, home: Path) -> list[Any]:
        """Return what comes of a pass, as `digest` says it."""
        os.environ["XDG_CACHE_HOME"] = str(home)
        return [digest(one) for one in self.open(home)]


def digest(value: Any) -> Any:
    """Return what two batches are compared by: no operation of torch's waits for threads, which forks have not."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]
    return tuple(map(digest, value)) if isinstance(value, (list, tuple)) else value


class LocalStore:
    """An object store that is a folder: its client works in forked processes too."""

    def __init__(self, url: str) -> None:
        self.url = url

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        return Path(self.url.removeprefix("file://"), name).read_bytes()

    async def read_part(self, name: str, begin: int, end: int, _: int) -> bytes:
        return self.read(name)[begin:end]


def _files(root: Path, _: pytest.MonkeyPatch) -> Cache:
    dataset = penstock.TensorFolder(tensor_files(root, 12, (64,)))
    return Cache("given", torchs(dataset), lambda home: penstock.DataLoader(dataset, 4, cache=home / "given"))


def _pixels(root: Path, _: pytest.MonkeyPatch) -> Cache:
    dataset = penstock.ImageFolder(pictures(root, 12), RECIPE)
    options: dict[str, Any] = {"batch_size": 4, "cache_decoded": True}
    return Cache("given", torchs(dataset), lambda home: penstock.DataLoader(dataset, cache=home / "given", **options))


def _shards(root: Path, patch: pytest.MonkeyPatch) -> Cache:
    penstock.pack(penstock.TensorFolder(tensor_files(root / "tensors", 36)), root / "packed", shard_size=12_000)
    patch.setattr("penstock.sources.shards.ObjectStore", LocalStore)
    url, options = (root / "packed").as_uri(), dict[str, Any](window=2, cache_limit=LIMIT)

    def opened(home: Path) -> Iterable[Any]:
        return penstock.DataLoader(penstock.Shards(url, cache_folder=home / "given", **options), batch_size=4)

    return Cache("given", list(penstock.DataLoader(penstock.Shards(root / "packed"), batch_size=4)), opened)


def _states(root: Path, _: pytest.MonkeyPatch) -> Cache:
    from tests import indexed_photos  # noqa: PLC0415  skips the test where JPEG is libjpeg's

    dataset = penstock.ImageFolder(indexed_photos.pictures(root, 6), indexed_photos.MIDDLE)
    return Cache("penstock/jpeg-index", torchs(dataset), lambda home: penstock.DataLoader(dataset, batch_size=4))


def _names(root: Path, _: pytest.MonkeyPatch) -> Cache:
    """The names in an image folder, which are kept of a tree that is older than a few seconds."""
    age(photo_files(root, 9))
    return Cache("penstock/scans", torchvision.datasets.ImageFolder(root).samples, lambda home: found(root))


def found(root: Path) -> list[tuple[str, int]]:
    """Return the files of an image folder, with their labels."""
    return list(penstock.ImageFolder(root).samples)


def _recordings(_: Path, patch: pytest.MonkeyPatch) -> Cache:
    for name in ("FIRST_AFTER", "EVERY", "_SHARE"):
        patch.setattr(publishing, name, 0.0)
    patch.setattr(loop_times, "SHORT_PASS", 0.0)

    def opened(_: Path) -> Iterable[Any]:
        penstock.insight.publish()
        return penstock.DataLoader(rows(), batch_size=10)

    return Cache("penstock/live", torchs(rows(), 10), opened)


_MAKERS = {"files": _files, "pixels": _pixels, "shards": _shards, "states": _states, "names": _names}
#: Of which damage could make wrong data.
KINDS = list(_MAKERS)


@contextmanager
def made(kind: str, root: Path, patch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """Give a cache of a kind, or of "recordings"; root: of what it is read from."""
    for module in ("tiers", "jpeg_index"):  # a disk that is nearly full does not decide what is seen
        patch.setattr(f"penstock.storage.{module}._LEFT", 0.0)
    patch.setenv("XDG_CACHE_HOME", str(root.parent / "unused"))
    penstock.insight.publish(False)
    yield {**_MAKERS, "recordings": _recordings}[kind](root, patch)
    penstock.insight.publish(False)
    patch.undo()
    penstock.insight.publish()

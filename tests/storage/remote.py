"""Packed shards behind an HTTP server on the loopback interface, and what tests ask of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock import CorruptDownload
from tests.object_server import ObjectServer
from tests.same import assert_same

SAMPLES = 240
WINDOW = 3


def objects_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def limit_for(folder: Path, shards: int) -> int:
    sizes = [path.stat().st_size for path in folder.glob("*.tar")]
    index = sum(path.stat().st_size for path in folder.glob("*.npy"))
    return shards * (max(sizes) + 1024) + index + 4096


def remote(server: ObjectServer, cache: Path, **options: Any) -> penstock.Shards:
    return penstock.Shards(server.url, window=WINDOW, cache_folder=cache, **options)


def loader(dataset: Any, **options: Any) -> penstock.DataLoader[Any]:
    return penstock.DataLoader(dataset, **{"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 2, **options})


def downloads(server: ObjectServer) -> dict[str, int]:
    return {name: count for name, count in server.gets.items() if name.endswith(".tar")}


def damage_a_shard(server: ObjectServer, packed: Path) -> str:
    """Change the last byte of the fifth shard on the server, and return its name."""
    name = sorted(path.name for path in packed.glob("*.tar"))[4]
    good = server.objects[name]
    server.objects[name] = good[:-1] + bytes([good[-1] ^ 1])
    return name


def assert_equal_passes(ours: Any, theirs: Any) -> None:
    """Assert that two loaders give the same batches, which are compared one by one."""
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def assert_all_but_a_damaged_shard(over: Any, name: str) -> None:
    """Assert that a pass in batches of 8 gives all samples, but for batches that raise an error with a shard's name."""
    batches, errors, rows = iter(over), 0, 0
    while True:
        try:
            rows += len(next(batches)[1])
        except StopIteration:
            break
        except CorruptDownload as error:
            assert name in str(error)
            errors += 1
    assert errors
    assert rows + 8 * errors == SAMPLES


def bounded(cache: Any, limit: int) -> Any:
    """Return the cache's own method that makes space, with a look at what the folder takes afterwards."""
    begin = cache.begin

    def looked(*arguments: Any, **options: Any) -> Any:
        found = begin(*arguments, **options)
        assert cache.held_bytes() <= limit
        return found

    return looked

"""worker_method="ray" and engine="ray" on a cluster of two nodes, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.packing.engines import Packing
from tests.cluster.cluster_samples import Signals, Slow, as_is, ending_at_5
from tests.cluster.conftest import Nodes, wait_until
from tests.photos import smooth_photos
from tests.same import assert_same
from tests.sample_datasets import Made, tensor_files
from tests.values import listed, loaded, taken

pytest.importorskip("ray", reason="ray is not installed: pip install 'penstock[ray]'")
pytestmark = pytest.mark.timeout(300)  # actors start slowly on a machine that is shared

#: One filler on each node.
SPREAD = penstock.Ray(cpus=2, resources={"filler": 5})


@pytest.fixture(autouse=True)
def _nodes(nodes: Nodes) -> None:
    nodes.add("one", "two")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for path, image in smooth_photos(root, 60, (40, 60)):
        image.save(path.with_suffix(".jpg"))
    return root


def fillers(batches: Any) -> list[Any]:
    return [one.facts for one in batches.filler._crew.at_work]


def test_native_batches_when_a_node_is_killed(nodes: Nodes, photos: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    steps = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    options: dict[str, Any] = {"batch_size": 1, "shuffle": True, "seed": 5, "num_workers": 2}
    dataset = penstock.ImageFolder(photos, transforms.Compose(steps))
    ours: Any = penstock.DataLoader(dataset, worker_method=SPREAD, **options)
    theirs: Any = penstock.DataLoader(dataset, **options)
    batches = iter(ours)
    found = taken(batches, 10)
    assert "2 fillers at work: 1 on node" in ours.explain()
    places = fillers(batches)
    assert len({facts.node for facts in places}) == 2
    state = ours.state_dict()
    nodes.kill("two")
    assert wait_until(lambda: sum(Path(f"/proc/{facts.pid}").exists() for facts in places) == 1)
    found += list(batches)
    assert_same(found, list(theirs))
    explained, stats = ours.explain(), ours.stats()
    assert "plan     2 fillers of a Ray cluster fill batches of 1" in explained and "1 filler lost; " in explained
    assert (stats.batches, stats.samples) == (60, 60) and stats.stages["decode"].samples >= 60
    assert wait_until(lambda: not any(Path(f"/proc/{facts.pid}").exists() for facts in places))
    assert_same(found[10:], list(loaded(penstock.DataLoader(dataset, **options), state)))


def test_a_dataset_of_the_users_own() -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2, "persistent_workers": True}
    dataset = Signals(23, bad=(9,))
    ours: Any = penstock.DataLoader(dataset, num_workers=2, worker_method=SPREAD, **options)
    theirs: Any = penstock.DataLoader(dataset, num_workers=2, **options)  # worker processes
    for _ in range(2):
        wanted, found = outcomes(theirs), outcomes(ours)
        assert_same([batch for batch in found if isinstance(batch, dict)], [b for b in wanted if isinstance(b, dict)])
        error = next(one for one in found if isinstance(one, Exception))
        assert type(error) is KeyError and error.args == ("signal 9 is off",)
        said = "\n".join(error.__notes__)
        assert "sample 9" in said and "in filler " in said
        assert "in __getitem__" in str(error.__cause__), "the user's own line"
    kept = ours._iterator
    assert len(fillers(kept)) == 2, "the fillers are those of both passes"
    assert ours.stats().stages["getitem"].samples >= 40
    pids = [facts.pid for facts in fillers(kept)]
    del kept
    ours._iterator._shutdown_workers()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def outcomes(loader: Any) -> list[Any]:
    batches, found = iter(loader), list[Any]()
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


def test_bad_samples_are_replaced_by_the_same_ones(tmp_path: Path) -> None:
    folder = tensor_files(tmp_path / "data", 24)
    (folder / "07.pt").write_bytes(b"no tensor")
    dataset = penstock.TensorFolder(folder, ids=[f"{i:02}" for i in range(24)])
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "shuffle": True, "num_workers": 1}
    careful = penstock.Replace(max_share=0.5)
    ours: Any = penstock.DataLoader(dataset, worker_method=SPREAD, on_error=careful, in_order=False, **options)
    theirs: Any = penstock.DataLoader(dataset, on_error=careful, **options)
    assert sorted(map(str, ours)) == sorted(map(str, theirs)) and "1 bad sample" in ours.explain()


def test_what_stats_says_of_fillers(photos: Path, tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    dataset = penstock.ImageFolder(photos, transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]))
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "cache": ["20KiB", str(tmp_path / "tier")]}
    loader: Any = penstock.DataLoader(dataset, 4, worker_method=SPREAD, **options)
    for _ in range(3):
        assert len(list(loader)) == 15
    stats = loader.stats()
    assert stats.fillers is not None
    assert (stats.fillers.batches, stats.fillers.lost, stats.fillers.again) == (45, 0, 0)
    assert sum(stats.fillers.nodes.values()) == 2 and stats.fillers.bytes > 3 * 60 * 3 * 16 * 16 * 4
    assert stats.fillers.arriving_seconds > 0
    assert not stats.cache, "the tiers are those of the nodes"
    assert stats.stages["decode"].samples >= 180
    assert stats.metrics()["penstock/fillers/bytes"] == stats.fillers.bytes
    loader._iterator._shutdown_workers()
    assert not loader.stats().fillers.nodes


def test_a_sample_that_ends_its_filler() -> None:
    loader: Any = penstock.DataLoader(Made(ending_at_5, 8), 2, num_workers=2, worker_method=SPREAD)
    batches = iter(loader)
    assert listed(taken(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(penstock.WorkerDied, match=r"3 fillers ended .* the same batch, of samples \[4, 5\]"):
        next(batches)
    assert next(batches).tolist() == [6, 7]


def test_a_cluster_without_space() -> None:
    cluster = penstock.Ray(resources={"tpu": 1}, start_timeout=1)
    with pytest.raises(penstock.ClusterError, match="no filler could start in 1 s: each needs CPU 1, tpu 1, and the"):
        iter(penstock.DataLoader(Signals(4), num_workers=1, worker_method=cluster))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Return a file that lets packers go on; it is there in the end."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def test_packing_when_a_packer_is_killed(tmp_path: Path, gate: Path) -> None:
    told: list[Packing] = []

    def follow(now: Any) -> None:
        told.append(now)
        waits = tmp_path / "waits"
        if waits.exists() and not gate.exists():
            os.kill(int(waits.read_text()), signal.SIGKILL)
            gate.touch()

    options: dict[str, Any] = {"to_bytes": as_is, "shard_size": 4000}
    made = penstock.pack(Slow(gate), tmp_path / "ray", engine=SPREAD, workers=2, on_progress=follow, **options)
    penstock.pack(Slow(gate), tmp_path / "threads", **options)
    assert gate.exists() and made.shards > 4
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")
    assert (told[-1].samples, told[-1].of) == (40, 40)


def test_packing_photos_stopped_and_run_again(nodes: Nodes, tmp_path: Path, photos: Path) -> None:
    dataset = penstock.ImageFolder(photos)

    def stop(now: Any) -> None:
        if now.samples > 20:
            raise KeyboardInterrupt

    def pack(folder: str, **options: Any) -> Any:
        return penstock.pack(dataset, tmp_path / folder, shard_size=10_000, max_side=32, **options)

    with pytest.raises(KeyboardInterrupt):
        pack("ray", engine=SPREAD, workers=2, on_progress=stop)
    nodes.kill("two")
    made = pack("ray", engine=SPREAD, workers=2)
    assert 0 < made.kept < made.shards
    pack("threads")
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")

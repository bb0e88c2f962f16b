"""worker_method="ray" and engine="ray" on a cluster of two nodes, one of which is killed in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cluster.cluster_samples import Signals
from tests.cluster.conftest import Nodes, wait_until
from tests.data import smooth_photos, tensor_files
from tests.same import assert_same

pytest.importorskip("ray", reason='ray is not installed: pip install "penstock-loader[ray]"')
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
    return [one.facts for one in batches.carrier._crew.at_work]


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


def test_a_cluster_without_space() -> None:
    cluster = penstock.Ray(resources={"tpu": 1}, start_timeout=1)
    with pytest.raises(penstock.ClusterError, match="no filler could start in 1 s: each needs CPU 1, tpu 1, and the"):
        iter(penstock.DataLoader(Signals(4), num_workers=1, worker_method=cluster))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


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

"""torch.distributed.checkpoint and torch.save hold a loader's state, and give it back whole."""

from __future__ import annotations

import itertools
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import TensorDataset

import penstock
from tests.data import Drawing, Placed
from tests.frameworks import run_checkpoint
from tests.frameworks.launching import found_in, launched
from tests.made_once import made_once
from tests.same import assert_same
from tests.values import flat, taken

dcp: Any = torch.distributed.checkpoint  # which does not say what it exports

SIZE = 50
NATIVE = TensorDataset(torch.arange(SIZE), torch.arange(3.0 * SIZE).view(SIZE, 3))

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),  # by torch 2.10's own checkpoints
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what datasets were in a folder of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def loader(folder: Path, dataset: Any = NATIVE, **options: Any) -> Any:
    ledger = folder / "ledger" if options.pop("ledger", False) else None
    return penstock.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, "ledger": ledger, **options})


KINDS: dict[str, dict[str, Any]] = {
    "native": {"num_workers": 2},
    "python": {"dataset": Drawing(SIZE)},
    "without a seed": {"seed": None},
    "with a ledger": {"ledger": True},
    "sampler": {"sampler": list(range(0, SIZE, 3)), "shuffle": None, "seed": None},
    "weighted": {"sampler": penstock.Weighted([1.0] * SIZE, 40), "shuffle": None},
    "ranks": {"shard": (1, 2)},
}
EVERY = pytest.mark.parametrize("options", list(KINDS.values()), ids=list(KINDS))


def stopped(made: Any, steps: int, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the state behind some steps of a pass, at which the loader is saved, and what comes after them."""
    batches = iter(made)
    taken(batches, steps)
    dcp.save({"loader": made, "model": {"weight": torch.ones(2)}}, checkpoint_id=folder / "saved", no_dist=True)
    return made.state_dict(), list(batches)


def restored(again: Any, state: dict[str, Any], folder: Path) -> None:
    """The loader itself is loaded, beside a model."""
    assert isinstance(again, Stateful)
    model = {"weight": torch.zeros(2)}
    dcp.load({"loader": again, "model": model}, checkpoint_id=folder / "saved", no_dist=True)
    assert model["weight"].tolist() == [1, 1]


def by_checkpoint(again: Any, state: dict[str, Any], folder: Path) -> None:
    dcp.save({"loader": state}, checkpoint_id=folder / "own", no_dist=True)
    read = {"loader": again.state_dict()}
    dcp.load(read, checkpoint_id=folder / "own", no_dist=True)
    again.load_state_dict(read["loader"])


def read_whole(again: Any, state: dict[str, Any], folder: Path) -> None:
    dcp_to_torch_save(folder / "saved", folder / "whole.pt")
    again.load_state_dict(torch.load(folder / "whole.pt", weights_only=True)["loader"])


def by_torch_save(again: Any, state: dict[str, Any], folder: Path) -> None:
    torch.save(state, folder / "saved.pt")
    again.load_state_dict(torch.load(folder / "saved.pt", weights_only=True))


@EVERY
@pytest.mark.parametrize("way", [restored, by_checkpoint, read_whole, by_torch_save])
def test_a_state_is_saved_and_restored(options: dict[str, Any], way: Any, tmp_path: Path) -> None:
    state, rest = stopped(loader(tmp_path, **options), 3, tmp_path)
    again = loader(tmp_path, **options)
    way(again, state, tmp_path)
    assert again.state_dict() == state
    assert_same(list(again), rest)


@EVERY
def test_no_key_of_a_state_comes_or_goes(options: dict[str, Any], tmp_path: Path) -> None:
    """dcp.load fills in the keys of the new loader's state: one that came later would be lost without a word."""

    def keys(state: dict[str, Any], path: str = "") -> set[str]:
        nested = [keys(value, f"{path}{key}.") for key, value in state.items() if isinstance(value, dict)]
        assert all(nested), f"an empty dictionary in {path or 'the state'} is not saved"
        return {path + key for key in state}.union(*nested)

    made = loader(tmp_path, **options)
    wanted = keys(made.state_dict())
    batches = iter(made)
    for _ in itertools.chain([None], batches, [None]):
        assert keys(made.state_dict()) == wanted


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("options", [{}, {"seed": None}])
def test_a_loader_in_the_middle_of_another_pass_goes_back(steps: int, options: Any, tmp_path: Path) -> None:
    """The state that is asked for its keys is the one of a pass that has begun; the saved one may be of none."""
    made, other = (loader(tmp_path, **options) for _ in range(2))
    dcp.save({"loader": made}, checkpoint_id=tmp_path / "saved", no_dist=True)
    state = made.state_dict()
    list(islice(other, steps))
    dcp.load({"loader": other}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert other.state_dict() == state and sorted(flat(other)) == list(range(SIZE))


def test_an_iterable_dataset_with_a_state_of_its_own(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": Placed(SIZE), "shuffle": None, "seed": None}
    state, rest = stopped(loader(tmp_path, **options), 3, tmp_path)
    again = loader(tmp_path, **{**options, "dataset": Placed(SIZE)})
    restored(again, state, tmp_path)
    assert state["dataset"] is not None and again.state_dict()["dataset"] == state["dataset"]
    assert_same(list(again), rest)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save with two ranks, go on with two; return the folder."""
    return made_once(tmp_path_factory, "checkpoint", lambda folder: launched("run_checkpoint", folder, save=2, load=2))


def handed(folder: Path, what: str, name: str) -> list[tuple[int, str]]:
    return [(int(number), str(content)) for share in found_in(folder, what) for number, content in share[name]]


@pytest.mark.timeout(600)  # see launching.run
@pytest.mark.parametrize("name", ["native", "python"])
@pytest.mark.parametrize("ranks", [2, 1])
def test_two_ranks_are_gone_on_with_by_two_and_by_one(two_ranks: Path, name: str, ranks: int) -> None:
    before = handed(two_ranks, "save", name)
    assert len(before) == 2 * run_checkpoint.STOP * run_checkpoint.BATCH
    if ranks == 2:
        after = handed(two_ranks, "load", name)
    else:
        again = run_checkpoint.loaders(None)
        dcp.load({**again}, checkpoint_id=two_ranks / "checkpoint", no_dist=True)
        after = list(run_checkpoint.handed(again[name], again[name]))
    assert sorted(number for number, _ in before + after) == list(range(run_checkpoint.SIZE))
    undisturbed = run_checkpoint.loaders(None)[name]
    assert dict(before + after) == dict(run_checkpoint.handed(undisturbed, undisturbed))

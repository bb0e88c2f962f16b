"""The seams of the design: a carrier, an observer and a source of the tests' own are used as Penstock's are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torch.utils.data import ConcatDataset, Subset

import penstock
import penstock._native as _native
from penstock.carriers import choice as selection
from penstock.observe import Delivery, Observer
from penstock.recipe.steps import Refusal, Step
from penstock.sources import tree
from penstock.sources.naming import catalogue
from penstock.sources.native_source import Field, NativeSource
from penstock.sources.source import Source
from tests import subprocess_carrier
from tests.data import Made, Numbers, Told
from tests.same import assert_same, outcomes
from tests.values import flat, listed, resumed

# --- a carrier --------------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (lambda job: isinstance(job.settings.dataset, Told), subprocess_carrier.opens)
    monkeypatch.setattr(selection, "CARRIERS", (row, *selection.CARRIERS))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_carrier_of_other_programs_is_a_file_and_a_row(programs: None, persistent: bool) -> None:
    makes: tuple[Any, ...] = penstock.DataLoader, tud.DataLoader
    options = {"shuffle": True, "num_workers": 2, "persistent_workers": persistent}
    ours, theirs = (make(Told(), 4, generator=torch.Generator().manual_seed(3), **options) for make in makes)
    passes = 1 + persistent  # programs take seconds to start
    for _ in range(passes):
        assert_same(list(ours), list(theirs))
    assert (ours.stats().batches, ours.stats().samples) == (6 * passes, 23 * passes)
    assert "Told" in ours.explain()


def test_its_passes_are_cut_among_ranks_and_go_on_from_states(programs: None) -> None:
    def made(rank: int, world: int = 2, **options: Any) -> penstock.DataLoader[Any]:
        return penstock.DataLoader(Told(), 4, shuffle=True, seed=7, shard=(rank, world), **options)

    first, rest = resumed(made(0, num_workers=1), made(0, num_workers=1), 1)
    one = listed(batch[:, 0] for batch in itertools.chain(first, rest))
    assert [list(map(str, batch)) for batch in one] == [made(0).ids(0, step) for step in range(3)]
    assert made(0).ids(0, 1) == made(0, 1).ids(0, 2)


def test_its_errors_are_those_of_their_batches(programs: None) -> None:
    batches = iter(penstock.DataLoader(Told(), batch_sampler=[[0, 1], [2, -1], [3, 4]], num_workers=1))
    assert next(batches)[:, 0].tolist() == [0, 1]
    with pytest.raises(KeyError, match="below 0") as caught:
        next(batches)
    assert "of sample -1" in "".join(getattr(caught.value, "__notes__", []))
    assert next(batches)[:, 0].tolist() == [3, 4]
    batches.carrier._programs[0].kill()
    batches.close()


class Watching(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def delivered(self, delivery: Delivery) -> None:
        assert delivery.waited >= 0
        self.seen.append(delivery.samples)

    def failed(self, error: Exception) -> None:
        self.seen.append(type(error))

    def ended(self) -> None:
        self.seen.append("end")


BAD, NATIVE = Numbers({9}, error=KeyError), tud.TensorDataset(torch.arange(10))
WAYS: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "inline": (BAD, {"num_workers": 0}, [4, 4, KeyError, 4, 4, 3]),
    "processes": (BAD, {"num_workers": 2}, [4, 4, KeyError, 4, 4, 3]),
    "threads": (BAD, {"num_workers": 2, "worker_method": "thread"}, [4, 4, KeyError, 4, 4, 3]),
    "seeded": (BAD, {"num_workers": 0, "seed": 1}, [4, 4, KeyError, 4, 4, 3]),
    "device": (BAD, {"num_workers": 0, "device": "cpu"}, [4, 4, KeyError, 4, 4, 3]),
    "native": (NATIVE, {"num_workers": 2}, [4, 4, 2]),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_observer_knows_of_every_batch_error_and_end(way: str) -> None:
    dataset, options, wanted = WAYS[way]
    loader, watching = penstock.DataLoader(dataset, 4, **options), Watching()
    loader._pass_factory.observers += (watching,)
    given = [one for one in wanted if one is not KeyError]
    assert [isinstance(one, tuple) for one in outcomes(loader)] == [one is KeyError for one in wanted]
    assert watching.seen == [*wanted, "end"]
    assert (loader.stats().batches, loader.stats().samples) == (len(given), sum(given))


class Records(Made):
    """Records of three float32 in one file."""

    def __init__(self, path: Path) -> None:
        self.records = np.memmap(path, np.float32, "c").reshape(-1, 3)
        super().__init__(lambda index: (torch.from_numpy(self.records[index].copy()),), len(self.records))


class RecordsSource(Source):
    classes = (Records,)

    def name(self, index: int) -> tuple[str, str | None]:
        return f"record-{index}", None

    def ids(self) -> bytes:
        return b"".join(b"record-%d\0" % index for index in range(len(self.dataset)))

    def native(self, raw: bool) -> NativeSource | Refusal:
        records, spec = self.dataset.records, _native.Spec("float32", [3])
        return NativeSource(
            fields=(Field(_native.GatherFiller(records.view(np.uint8), spec), spec),),
            steps=(Step(f"gather  {len(records)} records", "native"),),
            read_in_python=lambda position: torch.from_numpy(records[position]),
        )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    np.arange(72, dtype=np.float32).tofile(tmp_path / "records")
    monkeypatch.setattr(tree, "SOURCES", (*tree.SOURCES, (__name__, __name__, "RecordsSource")))
    return Records(tmp_path / "records")


def firsts(batches: Any) -> Any:
    return flat(batch[:, 0] for (batch,) in batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(3, 21)), lambda d: ConcatDataset([d, d])])
def test_a_source_of_ones_own_is_read_natively_as_torch_reads_it(records: Records, workers: int, wrap: Any) -> None:
    dataset = wrap(records)
    loader = penstock.DataLoader(dataset, batch_size=5, num_workers=workers)
    assert "native   gather  24 records" in loader.explain()
    assert_same(list(loader), list(tud.DataLoader(dataset, batch_size=5)))


def test_a_source_of_ones_own_goes_on_from_a_state(records: Records) -> None:
    whole, begun, again = (penstock.DataLoader(records, batch_size=4, seed=7, shuffle=True) for _ in range(3))
    first, rest = resumed(begun, again, 2)
    assert firsts(first) + firsts(rest) == firsts(whole)


def test_a_source_of_ones_own_is_split_among_ranks(records: Records) -> None:
    ranks = [penstock.DataLoader(records, batch_size=4, seed=7, shuffle=True, shard=(rank, 3)) for rank in range(3)]
    assert sorted(value for rank in ranks for value in firsts(rank)) == [3.0 * number for number in range(24)]


def test_ids_are_the_sources_own(records: Records) -> None:
    chosen = penstock.DataLoader(Subset(records, [5, 2]), batch_size=2, seed=7)
    assert chosen.ids(0, 0) == ["record-5", "record-2"]
    assert catalogue(ConcatDataset([records, records])).texts()[24] == b"1/record-0"
    state = penstock.DataLoader(records, batch_size=4, seed=7).state_dict()
    fewer = penstock.DataLoader(Subset(records, range(23)), batch_size=4, seed=7)
    told = r"it had 24 samples and has 23 \(-1\); its IDs, or their order, have changed"
    with pytest.raises(penstock.DatasetChanged, match=told):
        fewer.load_state_dict(state)

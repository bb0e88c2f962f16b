"""A source of the test's own: with an adapter in the tuple of all, its dataset is read natively, and what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import penstock
import penstock._native as _native
from penstock.recipe.steps import Refusal, Step
from penstock.sources import tree
from penstock.sources.naming import catalogue
from penstock.sources.native_source import Field, NativeSource
from penstock.sources.source import Source
from tests.values import resumed


class Records(Dataset[tuple[torch.Tensor]]):
    """Records of three float32 in one file."""

    def __init__(self, path: Path) -> None:
        self.records = np.memmap(path, np.float32, "c").reshape(-1, 3)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.from_numpy(self.records[index].copy()),)


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
            rescue=lambda position: torch.from_numpy(records[position]),
        )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    np.arange(72, dtype=np.float32).tofile(tmp_path / "records")
    monkeypatch.setattr(tree, "SOURCES", (*tree.SOURCES, (__name__, __name__, "RecordsSource")))
    return Records(tmp_path / "records")


def firsts(batches: Any) -> list[float]:
    return [value for (batch,) in batches for value in batch[:, 0].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(3, 21)), lambda d: ConcatDataset([d, d])])
def test_a_source_of_ones_own_is_read_natively_as_torch_reads_it(records: Records, workers: int, wrap: Any) -> None:
    dataset = wrap(records)
    loader = penstock.DataLoader(dataset, batch_size=5, num_workers=workers)
    assert "native   gather  24 records" in loader.explain()
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=5))
    for (got,), (want,) in zip(loader, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


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
    with pytest.raises(
        penstock.DatasetChanged, match=r"it had 24 samples and has 23 \(-1\); its IDs, or their order, are others"
    ):
        fewer.load_state_dict(state)

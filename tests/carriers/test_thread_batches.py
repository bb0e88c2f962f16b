"""Batches from threads: laid out as torch.stack lays them out, and as many as torch would warn of."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.carriers import thread_batch as loading
from penstock.carriers.thread_batch import FetchedBatch, SampleRows
from penstock.memory.buffers import Buffers
from penstock.workers import collating
from penstock.workers.collating import Build, layout_of
from tests.data import Stream
from tests.values import taken

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def tensor(shape: tuple[int, ...], form: str, start: int = 0) -> torch.Tensor:
    value = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) + start
    if form == "last":
        return value.contiguous(memory_format=FORMATS[len(shape)])
    if form == "turned":
        return value.transpose(0, 1).contiguous().transpose(0, 1)
    return value.movedim(0, -1).contiguous().movedim(-1, 0) if form == "moved" else value


@pytest.mark.parametrize(
    "shape",
    [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 4, 5), (2, 3, 1, 1), (2, 3, 4, 5, 6), (0, 3, 4, 5), (3, 4, 5), (4, 5)],
    ids=str,
)
@pytest.mark.parametrize("by_torch", [False, True])
def test_a_build_is_a_contiguous_stack(shape: tuple[int, ...], by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_torch:  # as with torch before 2.10
        monkeypatch.setattr(collating, "_STACKER", None)
    forms = ["plain", "turned", "moved", *(["last"] if len(shape) in FORMATS else [])]
    for count in (1, 2, 3):
        for given in itertools.product(forms, repeat=count):
            for first in forms:  # the layout is that of the batch before
                samples = [tensor(shape, form, i) for i, form in enumerate(given)]
                wanted = torch.stack(samples)
                build = Build(layout_of(tensor(shape, first)), count, Buffers(pinned=False, keep=0))
                build.take(samples[1:], 1)
                build.take(samples[:1], 0)
                got = build.finish(list(range(count)))
                assert torch.equal(got, wanted) and got.is_contiguous(), (given, first)


def test_a_batch_of_other_samples_ends_while_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, other = SampleRows(Buffers(pinned=False, keep=0)), FetchedBatch(indices=[0, 1])
    rows.build_for(other, torch.ones(2)).take([torch.ones(2), torch.ones(2).double()], 0)

    def building(*arguments: Any) -> Build:
        # Another thread finishes the other batch meanwhile.
        assert torch.equal(rows.finish(other, other.build), torch.ones(2, 2).double())  # type: ignore[arg-type]
        return Build(*arguments)

    rows.finish(other, other.build)  # type: ignore[arg-type]
    monkeypatch.setattr(loading, "Build", building)
    build = rows.build_for(FetchedBatch(indices=[2]), torch.ones(2))
    build.take([torch.ones(2)], 0)
    assert torch.equal(build.finish([2]), torch.ones(1, 2))


class Longer(Stream):
    def __len__(self) -> int:
        return 5


def test_a_wrong_length_is_warned_of_as_torch_does() -> None:
    loader: Any = penstock.DataLoader(Longer(7), None, num_workers=0)
    assert len(list(loader)) == 7  # no warning: nobody has asked for the length
    assert len(loader) == 5
    batches = iter(loader)
    taken(batches, 5)
    with pytest.warns(UserWarning, match=r"Length of IterableDataset .*5.*but 6 samples have been fetched") as seen:
        next(batches)
    assert seen[0].filename == __file__


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("nested", [(0, 1), (1,)], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("options", [{"num_workers": 1, "worker_method": "thread"}, {"seed": 1}], ids=str)
def test_nested_tensors_are_torchs_error(layout: Any, nested: tuple[int, ...], options: dict[str, Any]) -> None:
    piece = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    dataset: Any = [piece if index in nested else torch.ones(2) for index in range(2)]
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        list(tud.DataLoader(dataset, 2))
    with pytest.raises(theirs.type, match=re.escape(str(theirs.value).splitlines()[0])):
        list(penstock.DataLoader(dataset, 2, **options))

"""penstock.install() and penstock.data: Penstock's loader for code that names torch's."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader as ImportedBefore, TensorDataset

import penstock
import penstock.data
from tests.values import listed
from tests.waiting import run_in_threads

ROWS = TensorDataset(torch.arange(12))
INIT = torch.utils.data.DataLoader.__init__


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "make",
    [
        lambda: ImportedBefore(ROWS, 4),
        lambda: torch.utils.data.DataLoader(ROWS, batch_size=4),
        lambda: torch.utils.data.dataloader.DataLoader(dataset=ROWS, batch_size=4),
        lambda: ImportedBefore[Any](ROWS, 4),
    ],
)
def test_every_name_of_torchs_class_makes_ours(make: Any) -> None:
    loader = make()
    assert type(loader) is penstock.DataLoader and isinstance(loader, torch.utils.data.DataLoader)
    assert "native" in loader.explain() and listed(loader) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9, 10, 11]]]
    assert type(pickle.loads(pickle.dumps(loader))) is type(copy.copy(loader)) is penstock.DataLoader


def test_loaders_of_before_and_of_meanwhile_stay_what_they_are() -> None:
    before = ImportedBefore(ROWS, 4)
    with penstock.install():
        assert type(before) is ImportedBefore and len(list(before)) == 3
        meanwhile = ImportedBefore(ROWS, 4)
        ours = penstock.DataLoader(ROWS, 4, seed=1)
        assert ours.seed == 1 and len(list(ours)) == 3
    assert type(meanwhile) is penstock.DataLoader and len(list(meanwhile)) == 3
    assert type(ImportedBefore(ROWS, 4)) is ImportedBefore


def test_installs_are_nested() -> None:
    penstock.install()
    with penstock.install():
        pass
    assert type(ImportedBefore(ROWS)) is penstock.DataLoader
    penstock.uninstall()
    assert type(ImportedBefore(ROWS)) is ImportedBefore
    with pytest.raises(RuntimeError, match="without an install"):
        penstock.uninstall()


@pytest.mark.parametrize("name", ["__init__", "_get_iterator"])
def test_somebody_elses_exchange_is_not_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = vars(torch.utils.data.DataLoader)[name]
    penstock.install()
    ours = vars(torch.utils.data.DataLoader)[name]
    with monkeypatch.context() as patch:
        patch.setattr(torch.utils.data.DataLoader, name, lambda *arguments, **named: ours(*arguments, **named))
        with pytest.raises(RuntimeError, match=f"{name} was replaced by other code"):
            penstock.uninstall()
        assert type(ImportedBefore(ROWS)) is penstock.DataLoader
    penstock.uninstall()
    assert vars(torch.utils.data.DataLoader)[name] is theirs


@pytest.mark.usefixtures("installed")
def test_signatures_and_errors_are_torchs() -> None:
    assert inspect.signature(ImportedBefore.__init__) == inspect.signature(INIT)
    assert "seed" not in inspect.signature(ImportedBefore).parameters
    with pytest.raises(ValueError, match="mutually exclusive"):
        ImportedBefore(ROWS, shuffle=True, sampler=[1])
    with pytest.raises(TypeError, match="unexpected keyword"):
        ImportedBefore(ROWS, batchsize=4)  # type: ignore[call-arg]


@pytest.mark.usefixtures("installed")
def test_threads_may_make_loaders_at_once() -> None:
    made: list[Any] = []
    run_in_threads(8, lambda thread: made.append(ImportedBefore(ROWS)))
    assert [isinstance(loader, penstock.DataLoader) for loader in made] == [True] * 8


def test_the_module_has_what_torchs_has() -> None:
    ours, torchs = penstock.data, torch.utils.data
    assert ours.DataLoader is penstock.DataLoader and set(torchs.__all__) == set(ours.__all__)
    for name in {*torchs.__all__, "distributed", "dataloader", "get_worker_info"} - {"DataLoader"}:
        assert getattr(ours, name) is getattr(torchs, name)
    assert set(dir(torchs)) <= set(dir(ours))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ours.nothing
    everything: dict[str, Any] = {}
    exec("from penstock.data import *", everything)
    assert everything["DataLoader"] is penstock.DataLoader

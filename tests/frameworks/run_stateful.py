"""torchdata's StatefulDataLoader under penstock.install(), in a process of its own: a module, and early or late."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

import penstock
from penstock.errors import InvalidOption
from tests.data import Drawing, rows
from tests.differential.values import seeded
from tests.same import assert_same
from tests.values import listed

MODULE = "torchdata.stateful_dataloader.stateful_dataloader"


def passes(kind: Any, dataset: Any, **options: Any) -> Any:
    seeded()
    loader = kind(dataset, 4, shuffle=True, **options)
    return [list(loader) for _ in range(2)]


def check_states(kind: Any, options: dict[str, Any]) -> None:
    """Check that a new loader goes on behind each batch, whatever was drawn meanwhile."""
    for stop in range(1, 4):
        torch.manual_seed(7)
        loader = kind(rows(11), 4, shuffle=True, **options)
        list(loader)
        batches = iter(loader)
        list(islice(batches, stop))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        wanted = list(batches)
        torch.manual_seed(7)  # of the sampler's generator, which torchdata's states hold
        other = kind(rows(11), 4, shuffle=True, **options)
        other.load_state_dict(state)
        torch.rand(5)
        assert_same(list(other), wanted)


def main(module: str, when: str) -> None:
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # which torchdata calls
    installed = penstock.install() if when == "late" else None
    importlib.import_module(module)
    theirs: Any = sys.modules[MODULE].StatefulDataLoader
    if when == "early":
        cases: list[tuple[Any, dict[str, Any]]] = [(rows(11), {}), (Drawing(11), {})]
        if module == MODULE:
            cases.append((Drawing(11), {"num_workers": 2}))
        wanted = [passes(theirs, dataset, **options) for dataset, options in cases]
        written = theirs(rows(11), 4)
        next(iter(written))
        state = written.state_dict()
        installed = penstock.install()
        for want, (dataset, options) in zip(wanted, cases, strict=True):
            assert_same(passes(theirs, dataset, **options), want)
        try:
            theirs(rows(11), 4).load_state_dict(state)
        except InvalidOption as error:
            assert "this state was written by torchdata's StatefulDataLoader" in str(error)
        else:
            raise AssertionError("torchdata's state was taken")
        assert list(written), "a loader of before goes on"
    assert installed is not None
    made: Any = theirs(rows(11), 4, snapshot_every_n_steps=5)
    assert all(isinstance(made, kind) for kind in (penstock.DataLoader, theirs, DataLoader))
    assert made.snapshot_every_n_steps == 5 and "native" in made.explain()
    state = made.state_dict()
    made.load_state_dict({})
    assert made.state_dict() == state and state["format"] == 1
    other = pickle.loads(pickle.dumps(made))
    assert type(other) is type(made) and listed(other) == listed(made)
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        check_states(theirs, options)

    class Derived(theirs):
        pass

    derived = Derived(rows(11), 4)
    assert not isinstance(derived, penstock.DataLoader) and len(list(derived)) == 3
    said = installed.explain().splitlines()
    assert "penstock.frameworks.stateful.StatefulDataLoader: each is a penstock.DataLoader" in said[0], said
    assert said[1].endswith("Derived: its own code makes the iterators: _get_iterator() of StatefulDataLoader"), said
    penstock.uninstall()
    assert type(theirs(rows(11), 4)) is theirs and len(list(derived)) == 3


if __name__ == "__main__":
    main(*sys.argv[1:])

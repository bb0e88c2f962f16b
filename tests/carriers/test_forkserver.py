"""The start method `forkserver`, Python's default from 3.14 on: workers get a pickled copy of the dataset."""

from __future__ import annotations

import multiprocessing.reduction
import subprocess
import sys
from pickle import PicklingError
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.data import Numbers
from tests.pages import ROOT

#: Tests of the carriers that the plugin tests/forkserver.py runs, one of each kind.
FILES = (
    "carriers/test_processes",
    "carriers/test_seeding",
    "carriers/test_shared_memory",
    "carriers/test_changed_datasets",
)
CHOSEN = (
    "errors_are_raised or messages_larger or map_datapipes or iterable_datasets_stay or persistent_workers_after or "
    "killed_while_idle or persistent_worker_killed_between or several_dead or dropped_with or sample_draws_the_same or "
    "without_a_seed or memory_is_used_again or out_of_order or dies_takes_no or (batches_are_torchs and large) or "
    "((small_changes_reach or larger_change or goes_on_behind_an_error or error_says_where) and process)"
)


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_worker_processes_of_a_fork_server() -> None:
    files = [f"tests/{name}.py" for name in (*FILES, "conformance/test_errors")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.forkserver", "-p", "no:cacheprovider", *files]
    done = subprocess.run([*command, "-k", CHOSEN], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["own class", "recognised"])
def test_threads_pickle_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Numbers):
        """A local class that holds a lambda: pickle refuses both."""

    dataset: Any = Local() if kind == "own class" else TensorDataset(torch.arange(23))
    dataset.transform = lambda value: value
    monkeypatch.setattr(
        multiprocessing.reduction.ForkingPickler, "dumps", mock.Mock(side_effect=AssertionError("pickled"))
    )
    given: Any = {"worker_method": "thread"} if kind == "own class" else {}
    loader = penstock.DataLoader(dataset, 4, num_workers=2, multiprocessing_context="forkserver", **given)
    assert len(list(loader)) == 6


def test_what_cannot_be_pickled_is_named_with_the_way_out() -> None:
    class Local(Numbers):
        """A local class."""

    loader = penstock.DataLoader(Local(), 4, num_workers=1, multiprocessing_context="forkserver")
    with pytest.warns(UserWarning, match="forkserver"), pytest.raises((AttributeError, PicklingError)) as caught:
        next(iter(loader))
    note = caught.value.__notes__[-1]  # Python 3.14 has notes of its own before it
    assert note.startswith("dataset (of the local class test_") and "at the top level of a module" in note
    assert "multiprocessing_context='fork'" in note and "worker_method='thread'" in note

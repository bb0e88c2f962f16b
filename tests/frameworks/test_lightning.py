"""Lightning makes our loaders anew, with a DistributedSampler in two gloo ranks; tests/faults has how it resumes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import penstock
from tests.frameworks.launching import found_in, run
from tests.made_once import made_once

pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")

from tests.frameworks import run_lightning
from tests.frameworks.run_lightning import BATCH, OWN, SAMPLES

EPOCHS = 2  # as there
THREADS = "native thread"
#: Of each case num_workers and persistent_workers, where they were given, and what makes the batches.
CASES: dict[str, tuple[list[Any] | None, str]] = {
    "workers None": (None, THREADS),
    "workers 0": ([0, False], "the caller's thread fills"),
    "workers 2": ([2, False], THREADS),
    "persistent": ([2, True], THREADS),
    "hooks": (None, THREADS),
    "seeded workers": (None, THREADS),
    "Python": ([1, False], "Python reads"),
}

pytestmark = pytest.mark.timeout(600)  # see launching.run


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not torch.distributed.is_gloo_available():
        pytest.skip("this torch was built without gloo")
    fit = partial(run, run_lightning.__file__, ".")
    return found_in(made_once(tmp_path_factory, "lightning", lambda folder: fit(cwd=folder)))


def expected(rank: int, epoch: int, shuffle: bool, seed: int = 0) -> list[list[int]]:
    """Return the batches of the sampler that Lightning documents."""
    dataset = TensorDataset(torch.arange(SAMPLES))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, 2, rank, shuffle=shuffle, seed=seed)
    sampler.set_epoch(epoch)
    numbers = list(sampler)
    return [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]


@pytest.mark.parametrize("case", CASES)
def test_a_loader_made_anew_is_ours_with_its_options_and_its_samplers_batches(ranks: Any, case: str) -> None:
    made: Any = penstock.DataLoader(TensorDataset(torch.arange(2)), **OWN)
    own = {name: repr(getattr(made, name)) for name in OWN}
    workers, who = CASES[case]
    seed = 3 if case == "seeded workers" else 0  # seed_everything(3)
    for number, rank in enumerate(ranks):
        seen, loaders = rank[case]["seen"], rank[case]["loaders"]
        for loader in (loaders["train"], loaders["val"]):
            assert (loader["kept"], loader["sampler"], loader["own"]) == (True, "DistributedSampler", own)
            assert who in loader["plan"] and workers in (None, loader["workers"])
        assert seen["train"] == [expected(number, epoch, True, seed) for epoch in range(EPOCHS)]
        assert seen["train"][0] != seen["train"][1]
        assert seen["val"] == [expected(number, epoch, False) for epoch in range(EPOCHS)]


def test_predictions_are_of_the_samples_that_lightning_names(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        case = rank["predict"]
        loader = case["loaders"]["predict"]
        assert loader["kept"] and "native thread" in loader["plan"]
        assert case["indices"] == case["seen"]["predict"][0] == expected(number, 0, False)

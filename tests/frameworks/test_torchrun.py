"""examples/ddp.py as torchrun starts it: two gloo processes on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.frameworks.launching import TORCHRUN, needs_gloo, run

SCRIPT = Path(__file__).parents[2] / "examples" / "ddp.py"
SAMPLES = 26

pytestmark = [
    pytest.mark.timeout(600),  # see launching.run
    needs_gloo,
]


@pytest.fixture(scope="module")
def output() -> str:
    return run(*TORCHRUN, str(SCRIPT), "--samples", str(SAMPLES))


def seen(output: str, epoch: int, rank: int) -> list[int]:
    found = re.findall(rf"epoch {epoch} rank {rank} saw ([\d ]+)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return [int(number) for number in found[0].split()]


def test_native_threads_read(output: str) -> None:
    assert "plan     2 native threads fill batches of 4 in place, in order" in output
    assert "order    by DistributedSampler" in output
    assert re.search(r"^device   (cpu|cuda:0): ", output, re.MULTILINE)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_sees_what_its_sampler_says(output: str, epoch: int, rank: int) -> None:
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(TensorDataset(torch.arange(SAMPLES)), 2, rank)
    sampler.set_epoch(epoch)
    assert seen(output, epoch, rank) == list(sampler)

"""examples/ddp.py as torchrun starts it: two gloo processes on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.frameworks.launching import TORCHRUN, needs_gloo, run
from tests.made_once import made_once
from tests.test_examples import RECIPE, bright_and_dark

SCRIPT = Path(__file__).parents[2] / "examples" / "ddp.py"
SAMPLES = 26

pytestmark = [
    pytest.mark.timeout(600),  # see launching.run
    needs_gloo,
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    def make(folder: Path) -> None:
        (folder / "said").write_text(run(*TORCHRUN, str(SCRIPT), "--samples", str(SAMPLES)))

    return (made_once(tmp_path_factory, "torchrun", make) / "said").read_text()


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


@pytest.mark.slow
def test_imagenet_trains_on_two_ranks_and_continues_from_its_checkpoint(tmp_path: Path) -> None:
    bright_and_dark(tmp_path)
    script, checkpoint = str(SCRIPT.with_name("imagenet.py")), str(tmp_path / "run.pt")
    given = [str(tmp_path), "--device", "cpu", *RECIPE.split(), "--checkpoint", checkpoint]
    first, second = (run(*TORCHRUN, script, *given) for _ in range(2))
    assert re.findall(r"^epoch (\d): mean loss", first, re.MULTILINE) == ["1", "2"]
    assert "rank 0 of 2 gets its part of each global batch" in first
    assert "so far   32 samples in 4 batches" in first  # half of 32 photos, twice
    assert second.count("continues in epoch 3 behind 0 of 2 steps\n") == 2

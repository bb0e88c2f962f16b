"""100,000 batches of loaders of all kinds, in loops of all kinds, each compared on the device with its indices."""

from __future__ import annotations

import os

import pytest
import torch

from tests.device.load import wrong_batches
from tests.gpu.on_device import DEVICE

#: Batches of all cases; PENSTOCK_GPU_BATCHES=100000 is the whole run, which takes some minutes.
BATCHES = int(os.environ.get("PENSTOCK_GPU_BATCHES", "4000"))
CASES = 8


@pytest.mark.parametrize("seed", range(CASES))
def test_batches_of_all_kinds(seed: int) -> None:
    streams = [torch.cuda.current_stream(DEVICE), torch.cuda.Stream(DEVICE), torch.cuda.Stream(DEVICE)]

    def on_a_stream(number: int) -> torch.cuda.StreamContext:
        """Go on behind what the current stream has been given: a batch is taken there, and checked on another."""
        streams[number].wait_stream(torch.cuda.current_stream(DEVICE))
        return torch.cuda.stream(streams[number])

    assert list(wrong_batches(seed, BATCHES // CASES, DEVICE, on_a_stream)) == []
    torch.cuda.synchronize()

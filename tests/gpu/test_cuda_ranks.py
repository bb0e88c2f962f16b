"""Two processes on one GPU, as ranks of one order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
import torch.distributed as dist
import penstock
from tests.gpu.on_device import DEVICE, numbered

dist.init_process_group("gloo")
loader = penstock.DataLoader(numbered(64), 4, shuffle=True, seed=3, num_workers=2, shard="auto", device=DEVICE)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(96, 8).to(DEVICE))
for epoch in range(3):
    seen = []
    for x, y in loader:
        assert torch.equal(x, numbered(64).tensors[0].to(DEVICE)[y])
        torch.nn.functional.cross_entropy(model(x.flatten(1) / 1000), y % 8).backward()
        seen.append(y)
    mine = torch.cat(seen).cpu()
    shares = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(shares, mine)
    assert sorted(torch.cat(shares).tolist()) == list(range(64)), shares
dist.destroy_process_group()
print("right")
"""


def test_two_ranks_share_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right") == 2

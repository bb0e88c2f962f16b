"""Programs that a test interrupts as Ctrl-C does: arguments are the cluster's address, what is done, and a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import penstock
from tests.cluster.cluster_samples import ENDLESS, Waiting, as_is
from tests.cluster.conftest import wait_until


def load(cluster: penstock.Ray, told: Path) -> None:
    loader: Any = penstock.DataLoader(ENDLESS, 4, num_workers=2, worker_method=cluster)
    for number, _ in enumerate(loader):
        if number == 5:
            told.touch()


def catch(cluster: penstock.Ray, told: Path) -> None:
    """The same, by a program that goes on after the interrupt, and leaves only when its fillers are gone."""
    batches: Any = iter(penstock.DataLoader(ENDLESS, 4, num_workers=2, worker_method=cluster))
    pids = [one.facts.pid for one in batches.carrier._crew.at_work]
    try:
        for number, _ in enumerate(batches):
            if number == 5:
                told.touch()
    except KeyboardInterrupt:
        pass  # whose traceback holds the iterator until here
    del batches
    assert len(pids) == 2 and wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    sys.exit(7)


def pack(cluster: penstock.Ray, told: Path) -> None:
    penstock.pack(Waiting(told), told.parent / "out", to_bytes=as_is, shard_size=4000, engine=cluster, workers=2)


if __name__ == "__main__":
    address, what, folder = sys.argv[1:]
    os.chdir(folder)
    resources = {"nowhere": 1} if what == "start" else {"filler": 4}
    program = {"start": load, "load": load, "catch": catch, "pack": pack}[what]
    program(penstock.Ray(address, resources=resources), Path(folder, "told"))

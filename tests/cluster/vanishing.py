"""A trainer one of whose two fillers is on a machine that vanishes: arguments are the cluster's address and a folder.

It touches FOLDER/begun when both fillers are at work, and writes FOLDER/found.json: the first sample of each batch, the
machines of the fillers, the longest wait for a batch after that, in seconds, and what explain() says in the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.cluster import crew
from penstock.cluster.connection import connected
from tests.cluster.cluster_samples import ROWS
from tests.cluster.conftest import wait_until

BATCHES = 400


def main(address: str, folder: Path) -> None:
    cluster = penstock.Ray(address, resources={"filler": 1})
    ray = connected(cluster)
    assert wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, 100)
    crew._OTHERS = 60.0
    loader: Any = penstock.DataLoader(ROWS, 8, num_workers=2, worker_method=cluster)
    batches, firsts, longest = iter(loader), list[float](), 0.0
    hosts, last = {one.facts.host for one in batches.carrier._crew.at_work}, time.monotonic()
    while len(firsts) < BATCHES:
        firsts.append(float(next(batches)[0, 0]))
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
        if len(firsts) == 20:
            (folder / "begun").touch()
            longest = 0.0
        if len(firsts) == 30:  # what was asked for before is on its way, or was made, when the machine vanishes
            while not (folder / "vanished").exists():
                time.sleep(0.01)  # what the other machine writes gives no event
            last = time.monotonic()
    found = {"firsts": firsts, "hosts": sorted(hosts), "longest": longest, "explained": loader.explain()}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

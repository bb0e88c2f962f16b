"""Shards in an object store: moto's S3 server on the loopback interface, a local cache of a quarter of the data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data

from benchmarks.contestants import over, penstock_loader
from benchmarks.process import ROOT
from benchmarks.question import SPEED, Contestant, Options, Question, Role, Running, Setup, Table, Target, lower, made
from benchmarks.remote_server import ACCESS, BUCKET

SHAPE = (3, 64, 64)
SAMPLE_BYTES = 4 * SHAPE[0] * SHAPE[1] * SHAPE[2]
SHARD_BYTES = 4 << 20
WAIT = lower("longest_wait_ms", "ms")


def prepare(options: Options) -> Setup:
    """The same samples as Penstock's shards, MosaicML's and LitData's, each of 4 MiB, in one bucket."""
    samples = 1_000 if options.quick else 4_000
    folder = made(options.cache / f"remote-{samples}", partial(write, samples=samples, peers=options.peers_python))
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.remote_server", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    facts = {
        "shape": SHAPE,
        "dtype": "float32",
        "mb": round(samples * SAMPLE_BYTES / 1e6),
        "cache_mb": round(samples * SAMPLE_BYTES / 4e6),
        "endpoint": server.stdout.readline().strip(),
    }
    return Setup(str(folder), samples, facts=facts)


def write(folder: Path, samples: int, peers: str) -> None:
    """penstock/, mosaic/ and litdata/: the peers' in their environment, and left out where it lacks them."""
    import penstock

    rows = np.random.default_rng(0).standard_normal((samples, *SHAPE), np.float32)
    np.save(folder / "rows.npy", rows)
    loose = folder / "loose"
    loose.mkdir()
    for number, row in enumerate(rows):
        np.save(loose / f"{number:06d}.npy", row)
    ids = [f"{number:06d}" for number in range(samples)]
    dataset = penstock.TensorFolder(loose, ids, {name: int(name) % 10 for name in ids}, suffix=".npy")
    penstock.pack(dataset, folder / "penstock", shard_size=SHARD_BYTES)
    shutil.rmtree(loose)
    for peer in ("mosaic", "litdata"):
        done = subprocess.run([peers, "-m", "benchmarks.remote_peers", peer, str(folder)], cwd=ROOT, check=False)
        if done.returncode:
            shutil.rmtree(folder / peer, ignore_errors=True)
    (folder / "rows.npy").unlink()


def configured(setup: Setup) -> str:
    """The server's URL, with what the clients need in the environment."""
    endpoint = str(setup.facts["endpoint"])
    region = {"AWS_DEFAULT_REGION": ACCESS["AWS_REGION"], "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    of_peers = {"S3_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    os.environ.update({**ACCESS, **region, **of_peers, "AWS_ENDPOINT_URL": endpoint})
    return endpoint


def cache_bytes(setup: Setup) -> int:
    return setup.samples * SAMPLE_BYTES // 4


def cache_folder(name: str) -> str:
    """An empty folder, which the system's temporary folder keeps until it is cleaned."""
    return tempfile.mkdtemp(prefix=f"penstock-bench-{name}-")


def waiting(loader: Any) -> Running:
    """Epochs of a loader, with the longest wait for a batch behind the first one."""
    waits: list[float] = []

    def batches() -> Iterator[Any]:
        waits.clear()
        before = time.perf_counter()
        for batch in loader:
            waits.append(time.perf_counter() - before)
            yield batch
            before = time.perf_counter()

    running = over(batches)

    def epoch() -> dict[str, float]:
        began = time.perf_counter()
        samples = running.epoch()
        assert isinstance(samples, int)
        return {SPEED.key: samples / (time.perf_counter() - began), WAIT.key: 1000 * max(waits[1:])}

    return Running(epoch, getattr(loader, "explain", None))


def one_shard_at_a_time(setup: Setup) -> Running:
    """obstore reads the shards one after the other; the longest wait is that for one shard."""
    import obstore

    store = obstore.store.from_url(
        f"s3://{BUCKET}/penstock", endpoint=configured(setup), client_options={"allow_http": True}
    )
    shards = sorted(path.name for path in setup.path("penstock").glob("*.tar"))

    def epoch() -> dict[str, float]:
        waits = []
        for name in shards:
            began = time.perf_counter()
            obstore.get(store, name).bytes()
            waits.append(time.perf_counter() - began)
        return {SPEED.key: setup.samples / sum(waits), WAIT.key: 1000 * max(waits)}

    return Running(epoch)


def penstock_remote(setup: Setup, **options: Any) -> Running:
    """penstock.DataLoader over penstock.Shards with its defaults but for the limit: a window of 8 shards, 2 threads."""
    import penstock

    configured(setup)
    limit = max(cache_bytes(setup), 10 * (SHARD_BYTES + (1 << 20)))
    dataset = penstock.Shards(f"s3://{BUCKET}/penstock", cache_folder=cache_folder("own"), cache_limit=limit, **options)
    return waiting(penstock_loader(setup, dataset, seed=0))


def mosaic(setup: Setup) -> Running:
    """MosaicML's StreamingDataset, shuffled in blocks of 8 shards, as Penstock's window is (its default block is larger
    than the cache, and each shard would be fetched many times), in torch's DataLoader with 2 persistent workers."""
    from streaming import StreamingDataset

    configured(setup)
    dataset = StreamingDataset(
        remote=f"s3://{BUCKET}/mosaic",
        local=cache_folder("mosaic"),
        shuffle=True,
        batch_size=setup.batch,
        cache_limit=max(cache_bytes(setup), 10 * (SHARD_BYTES + (1 << 20))),
        num_canonical_nodes=1,
        shuffle_block_size=8 * SHARD_BYTES // SAMPLE_BYTES,
    )
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=setup.batch, num_workers=setup.workers, persistent_workers=True
    )
    return waiting(loader)


def litdata(setup: Setup) -> Running:
    """LitData's StreamingDataset, shuffled with its defaults, in its StreamingDataLoader with 2 persistent workers."""
    import litdata as ld
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server on loopback has no certificate
    endpoint = configured(setup)
    dataset = ld.StreamingDataset(
        f"s3://{BUCKET}/litdata",
        cache_dir=cache_folder("litdata"),
        shuffle=True,
        max_cache_size=max(cache_bytes(setup), 10 * (SHARD_BYTES + (1 << 20))),
        storage_options={"endpoint_url": endpoint},
    )
    return waiting(
        ld.StreamingDataLoader(dataset, batch_size=setup.batch, num_workers=setup.workers, persistent_workers=True)
    )


CONTESTANTS = (
    Contestant("penstock", Role.PENSTOCK, penstock_remote),
    Contestant("penstock, no checksums", Role.ASIDE, partial(penstock_remote, verify=False), "The same, verify=False."),
    Contestant("MosaicML Streaming", Role.PEER, mosaic, peers=("mosaicml-streaming",)),
    Contestant("LitData", Role.PEER, litdata, peers=("litdata",)),
    Contestant("one shard at a time", Role.ASIDE, one_shard_at_a_time),
)
TARGETS = (
    Target("penstock", 1, "MosaicML Streaming"),
    Target("penstock", 1, "LitData"),
    Target("penstock", 1, "one shard at a time", WAIT),
)
TITLE = "3x64x64 float32, 4 MiB shards from S3 on loopback, a quarter cached, batch 64, shuffled, 2 workers or threads"
QUESTION = Question(
    "remote", "Shards in an object store", (Table("s3", TITLE, CONTESTANTS, TARGETS, (SPEED, WAIT)),), prepare
)

"""Row 23: an object store that delays, resets, cuts, flips bytes, refuses, fails, redirects, or is away for a minute.

The same batches after retries, or one error with bucket, key and cause, and without credentials; never wrong data. A
wait ends within a documented bound, and the error of `timeout=` names the missing shards.
"""

from __future__ import annotations

import random
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

import penstock
from penstock.storage import objects, remote_shards
from tests.data import tensor_files
from tests.faults.conftest import Count
from tests.object_server import SIGNATURE, ObjectServer
from tests.packing.packed import contents
from tests.same import assert_same

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

SAMPLES, BATCH = 48, 4
SECRETS = {
    "AWS_ACCESS_KEY_ID": "hidden-key",
    "AWS_SECRET_ACCESS_KEY": "hidden-secret",
    "AWS_SESSION_TOKEN": "hidden-token",
}
#: Seconds of a request, and of the failures of one part, where the test does not take those of the package.
REQUEST, PATIENCE = 0.8, 0.2
PASSING = ["500", "503", "429", "cut", "reset", "drop", "hang", "stall", "slow", "moved", "wrong", ""]
LASTING = [*PASSING, "403", "404", "301", "echo"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of a few shards."""
    names = [f"{number:02}" for number in range(SAMPLES)]
    source = penstock.TensorFolder(tensor_files(tmp_path / "source", SAMPLES, (10, 16)), names)
    penstock.pack(source, tmp_path / "packed", shard_size=30_000)
    return tmp_path / "packed"


@pytest.fixture
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ObjectServer]:
    """Return what starts a server of the bucket "data", which the variables of the environment speak of."""
    for name, value in {**SECRETS, "AWS_REGION": "us-east-1", "NO_PROXY": "*"}.items():
        monkeypatch.setenv(name, value)

    def start(under: str = "", **options: Any) -> ObjectServer:
        server = ObjectServer({under + name: data for name, data in contents(folder).items()}, **options)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.removesuffix("/data"))
        return server

    return start


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waits; a shard comes in several parts."""
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2.0}
    retries = {"max_retries": 2, "backoff": backoff, "retry_timeout": timedelta(seconds=REQUEST)}
    monkeypatch.setattr(objects, "_RETRIES", retries)
    monkeypatch.setattr(objects, "_TIMEOUTS", {"timeout": f"{REQUEST}s", "connect_timeout": f"{REQUEST}s"})
    monkeypatch.setattr(remote_shards, "PART_BYTES", 8 << 10)
    monkeypatch.setattr(remote_shards, "PATIENCE", PATIENCE)
    monkeypatch.setattr(remote_shards, "_FIRST_PAUSE", 0.001)


def loader(dataset: Any, few: list[int] | None, **options: Any) -> Any:
    given = dataset if few is None else Subset(dataset, few)
    return penstock.DataLoader(given, BATCH, shuffle=few is None, seed=3, **options)


def outcomes(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield each batch of a pass, or the error in its place."""
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except (penstock.PenstockError, OSError) as error:
            yield error


def cause(error: BaseException, under: str = "") -> str:
    """Return what an error says; assert that it names an object by its bucket and key, and has no credentials."""
    text = "".join(traceback.format_exception(error))
    assert not any(secret in text for secret in (*SECRETS.values(), SIGNATURE)), text
    assert re.search(rf"s3://data/{under}(dataset\.json|data[-.]\S+)", str(error)), error
    return str(error)


READERS: list[dict[str, Any]] = [
    {"num_workers": 2},
    {"num_workers": 0},
    {"num_workers": 2, "worker_method": "thread", "share_dataset": True},
]


@pytest.mark.timeout(900)
def test_faults_at_random_requests(
    serve: Callable[..., ObjectServer], folder: Path, tmp_path: Path, impatient: None, full: bool, tries: Count
) -> None:
    near, chance, ended = penstock.Shards(folder, window=3), random.Random(23), Counter[str]()
    for number in range(tries(15, 200)):
        few = sorted(chance.sample(range(SAMPLES), 7)) if number % 3 == 0 else None
        share, which = chance.choice([0.1, 0.3, 1.0]), chance.choice(["", "data-", "data-", "data-000001", "data"])
        faults = chance.sample(LASTING, 2)

        def fault(method: str, name: str, count: int, which: str = which, share: float = share) -> str:
            return chance.choice(faults) if which in name and chance.random() < share else ""  # noqa: B023

        begun = time.monotonic()
        with serve(faults=fault):
            try:
                far = penstock.Shards("s3://data", window=3, cache_folder=tmp_path / f"cache-{number}")
            except (penstock.PenstockError, OSError) as error:
                cause(error)
                ended[type(error).__name__] += 1
                continue
            reader = chance.choice(READERS)
            pairs = zip(outcomes(iter(loader(far, few, **reader))), loader(near, few, num_workers=0), strict=True)
            for found, wanted in pairs:
                if isinstance(found, Exception):
                    cause(found)
                    ended[type(found).__name__] += 1
                else:
                    assert_same(found, wanted)
                    ended["batch"] += 1
        assert time.monotonic() - begun < 60
    assert len(ended) > (5 if full else 2), ended


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_retried(
    fault: str, serve: Callable[..., ObjectServer], folder: Path, tmp_path: Path, impatient: None
) -> None:
    """Each object has the fault once, at its first request."""
    near = penstock.Shards(folder, window=3)
    with serve(faults=lambda method, name, count: fault if count == 1 and name != "dataset.json" else "") as server:
        far = penstock.Shards("s3://data", window=3, cache_folder=tmp_path / "cache")
        assert_same(list(loader(far, None, num_workers=2)), list(loader(near, None, num_workers=2)))
        shards = [name for name in server.objects if name.endswith(".tar")]
        assert len(shards) > 3 and all(server.gets[name] > 1 for name in shards)


WORDS: dict[str, tuple[type[Exception], str]] = {
    "401": (penstock.AccessRefused, "the store refuses access with these credentials"),
    "403": (penstock.AccessRefused, "the store refuses access with these credentials"),
    "echo": (penstock.AccessRefused, r"x-amz-security-token: \*\*\* "),
    "404": (penstock.MissingObject, "the object does not exist"),
    "301": (penstock.StoreUnreachable, "an incorrectly configured region"),
    "500": (penstock.StoreUnreachable, "500 Internal Server Error"),
    "503": (penstock.StoreUnreachable, r"requests in a row for its bytes from .* brought none for 0 s; .* 503 Service"),
    "cut": (penstock.StoreUnreachable, "body error"),
    "reset": (penstock.StoreUnreachable, "the store does not answer; check the endpoint and the network"),
    "hang": (penstock.StoreUnreachable, "the store does not answer; check the endpoint and the network"),
    "stall": (penstock.StoreUnreachable, "the store does not answer; check the endpoint and the network"),
    "wrong": (penstock.CorruptDownload, "do not have the checksum [0-9a-f]{8} that dataset.json names"),
}


@pytest.mark.parametrize("fault", WORDS)
@pytest.mark.parametrize("under", ["", "AccessDenied/", "NoSuchBucket/404 Not Found/"])
def test_what_lasts_is_the_error_of_its_batches(
    fault: str, under: str, serve: Callable[..., ObjectServer], tmp_path: Path, impatient: None, only_full: Any
) -> None:
    """A folder may be called as a cause is."""
    only_full(under and fault not in ("404", "503"))
    kind, words = WORDS[fault]
    with serve(under, faults=lambda method, name, count: fault if name.endswith("data-000003.tar") else "") as server:
        far = penstock.Shards(f"s3://data/{under}", window=3, cache_folder=tmp_path / "cache")
        begun = time.monotonic()
        reader = READERS[list(WORDS).index(fault) % 3]
        found = list(outcomes(iter(penstock.DataLoader(far, BATCH, **reader))))
        assert time.monotonic() - begun < 10 * (PATIENCE + 4 * REQUEST)
        errors = [one for one in found if isinstance(one, Exception)]
        assert 0 < len(errors) <= 3 and len(found) == SAMPLES // BATCH
        for error in errors:
            assert type(error) is kind and re.search(words, cause(error, under)), error
            assert f"s3://data/{under}data-000003.tar" in str(error)
        server.faults = lambda *_: ""
        assert len(list(penstock.DataLoader(far, BATCH, num_workers=2))) == len(found), "the next pass has them"


@pytest.mark.timeout(300)
def test_a_store_that_is_gone_for_a_minute(
    serve: Callable[..., ObjectServer], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """The same batches, once it is back; in the short form all waits are a hundredth."""
    if not full:
        retries = {**objects._RETRIES, "max_retries": 0}
        monkeypatch.setattr(objects, "_RETRIES", retries)
        monkeypatch.setattr(remote_shards, "_FIRST_PAUSE", remote_shards._FIRST_PAUSE / 100)
        monkeypatch.setattr(remote_shards, "_LONGEST_PAUSE", remote_shards._LONGEST_PAUSE / 100)
    near, server = penstock.Shards(folder, window=2), serve()
    far = penstock.Shards("s3://data", window=2, cache_folder=tmp_path / "cache", cache_limit=120_000)
    batches = iter(loader(far, None, num_workers=1))
    found = [next(batches)]
    server.close()
    back: list[ObjectServer] = []
    port = int(server.url.split(":")[2].partition("/")[0])
    timer = threading.Timer(60 if full else 0.6, lambda: back.append(ObjectServer(server.objects, port=port)))
    timer.start()
    found += batches
    timer.join()
    assert back[0].gets, "it was waited for"
    back[0].close()
    assert_same(found, list(loader(near, None, num_workers=1)))


@pytest.mark.parametrize("options", [READERS[0], READERS[2]], ids=["native", "threads"])
def test_a_stall_is_said(options: dict[str, Any], serve: Callable[..., ObjectServer], tmp_path: Path) -> None:
    """`timeout=` names the shards that are missing, with the waits of the package; the pass can be closed."""
    with serve(faults=lambda method, name, count: "hang" if name.endswith(".tar") else ""):
        far = penstock.Shards("s3://data", window=3, cache_folder=tmp_path / "cache")
        batches = iter(loader(far, None, timeout=0.5, **options))
        begun = time.monotonic()
        words = r"still on their way from the object store: s3://data/data-\d+\.tar"
        with pytest.raises(penstock.WorkerStuck, match=words):
            next(batches)
        batches.close()
        assert time.monotonic() - begun < 10

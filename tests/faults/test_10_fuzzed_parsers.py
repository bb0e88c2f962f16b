"""Row 10: fuzzed files: `.pt`, `.npy`, JPEG, index and states of shards, caches, descriptions, manifests and ledgers.

From a corpus of 222 files, changed in their structure with correct checksums, under AddressSanitizer and
UndefinedBehaviorSanitizer: no crash, no input over 2 s of processor time, no allocation over 16 MB and twice the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.storage import description
from tests import python_processes
from tests.faults import parsers, sanitized

#: Of the full form; the sanitized core takes two to three minutes to build.
SECONDS = 200


@pytest.mark.timeout(1800)
def test_parsers(full: bool, cases: Callable[[int], None]) -> None:
    if full:
        limit = "max_allocation_size_mb=16:allocator_may_return_null=0"
        out = sanitized.run("address", "-m", "tests.faults.fuzzing", f"--seconds={SECONDS}", "--jobs=2", options=limit)
    else:
        done = python_processes.run_main("tests.faults.fuzzing", "--count=60")
        assert done.returncode == 0, done.stdout + done.stderr
        out = done.stdout
    counts = json.loads(out.splitlines()[-1])
    cases(sum(inputs for inputs, _, _ in counts.values()))
    assert sum(files for _, _, files in counts.values()) == 222
    for name, (inputs, results, _) in counts.items():
        assert 0 < results < inputs, (name, "of the inputs some have a result, and some have none", inputs, results)


def test_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that once ended in errors of other libraries."""
    monkeypatch.chdir(tmp_path)
    assert not parsers.read_description(b"[" * 100_000)
    for run in (b"[" * 100_000, b"[1]"):
        assert not parsers.read_ledger(b"penstock-ledger 2 " + run + b"\n")
    photos, tensors = parsers.shards()
    made = json.loads(tensors["dataset.json"].replace(b'"label": "text"', b'"label": []'))
    made["crc32c"] = description._crc32c(made["splits"])
    assert not parsers.read_description(json.dumps(made).encode())
    name = next(name for name in photos if name.endswith(".index.npy"))
    index = photos[name]  # its last bytes say which suffix the last sample's file has
    for damaged in (index.replace(b"{'descr'", b"{{{descr"), index[:-4] + b"\xff\xff\xff\xff"):
        for file, data in parsers.with_checksums({**photos, name: damaged}).items():
            (tmp_path / file).write_bytes(data)
        with pytest.raises(penstock.CorruptShards):
            penstock.Shards(tmp_path)[-1]

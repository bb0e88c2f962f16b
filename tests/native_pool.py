"""Batches of a native pool that tests fill by themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import penstock._native as _native

SECONDS = 60  # no test takes this long


def submit(
    pool: _native.Pool, samples: Any, spec: _native.Spec, names: bytes | None = None, fields: int = 1
) -> tuple[int, list[np.ndarray]]:
    """Return the number of a batch of these samples, and the memory of its fields."""
    local = np.asarray(samples, dtype=np.int64)
    memory = [np.empty(len(local) * spec.nbytes, np.uint8) for _ in range(fields)]
    prepared = pool.prepare(0, 0, local, local, np.arange(len(local)), None, names)
    return pool.submit(prepared, [(one, one.ctypes.data, one.nbytes, spec) for one in memory]), memory


def pool_of(*fillers: Any, threads: int = 0, **options: Any) -> _native.Pool:
    return _native.Pool(_native.Program([list(fillers)]), threads, **options)


def table_of(folder: Path, *names: str) -> _native.PathTable:
    """Return the table of tensor files in a folder."""
    return _native.PathTable(os.fsencode(folder), b"".join(name.encode() + b"\0" for name in names), b".pt", True)

"""A /dev/shm that is too small for the batches of worker processes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from penstock.executors.workers.shm_space import note_space


def test_torchs_error_gets_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=3 << 8, f_frsize=4096))
    error = RuntimeError("unable to allocate shared memory(shm) for file </torch_1_0>: No space left on device (28)")
    note_space(error)
    (note,) = error.__notes__
    assert note.startswith("/dev/shm has 3.0 MiB free. Give /dev/shm more space (docker run --shm-size=...")
    for other in (RuntimeError("another"), ValueError(str(error))):
        note_space(other)
        assert not hasattr(other, "__notes__")

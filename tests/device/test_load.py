"""Loops of all kinds over loaders of all kinds, with a device whose copies are done as late as they may be."""

from __future__ import annotations

import pytest

from tests.accelerator import replaced_by_late_streams
from tests.device.load import one_stream, wrong_batches


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_all_kinds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_late_streams(monkeypatch)
    assert list(wrong_batches(seed, 400, "cuda", one_stream)) == []

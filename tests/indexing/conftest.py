"""What the tests of classes that index share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a class read behind its first batch: the datasets of these tests are small."""
    monkeypatch.setattr("penstock.workers.indexed.LEARNING", 1)

"""Tiers without a limit take what the disk has free: a disk that is nearly full must not decide what tests see."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.tiers._LEFT", 0.0)

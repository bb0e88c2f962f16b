"""Each test's first Compose is read at once, however many were made before it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.recipe.compose_hook.Debt.images", 0)

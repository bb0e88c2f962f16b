"""Each test's first Compose is read at once, however many were made before it."""

from __future__ import annotations

import pytest

from penstock.recipe.compose_hook import Debt


@pytest.fixture(autouse=True)
def _no_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Debt, "images", 0)

"""What images of earlier tests have shown does not decide how those of the next test are decoded."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.recipe.encoded_image._Repeated.images", 0)
    monkeypatch.setattr("penstock.recipe.compose_hook.Debt.images", 0)

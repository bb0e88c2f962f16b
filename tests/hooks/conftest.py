"""What images of earlier tests have shown does not decide how those of the next test are decoded."""

from __future__ import annotations

import pytest

from penstock.recipe import encoded_image
from penstock.recipe.compose_hook import Debt


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_image._Repeated, "images", 0)
    monkeypatch.setattr(Debt, "images", 0)

"""What tests of penstock.install() share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data

import penstock

METHODS = ("__init__", "_get_iterator", "__init_subclass__")


@pytest.fixture
def installed() -> Iterator[Any]:
    """Return what install() returns, within it; torch's class is as it was behind it."""
    torchs = vars(torch.utils.data.DataLoader)
    before = [torchs.get(name) for name in METHODS]
    with penstock.install() as installed:
        yield installed
    assert [torchs.get(name) for name in METHODS] == before

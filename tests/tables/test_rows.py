"""Rows of Hugging Face datasets of any schema: our batches are torch's, to the type."""

from __future__ import annotations

import pytest

pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

from tests.tables.columns import FEATURES, LEAVES
from tests.tables.schemas import verdict

TOGETHER = 25


@pytest.mark.parametrize("first", range(0, 150, TOGETHER))
def test_batches_of_random_schemas(first: int) -> None:
    failures = [found for seed in range(first, first + TOGETHER) if (found := verdict(seed)) is not None]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("seed", range(10_000, 10_006))
def test_batches_of_two_workers(seed: int) -> None:
    assert verdict(seed, processes=True) is None


def test_the_kinds_of_columns() -> None:
    assert len(set(LEAVES)) + len(FEATURES) > 50

"""What all tests share: nothing is written into the user's own folders."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Keep what was made before a module's tests out of their gc.collect(), which takes seconds otherwise."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let Python free at its end what `_small_heap` has kept."""
    gc.unfreeze()

"""What tests of live recordings share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.insight import publish, publishing
from penstock.insight.live_files import live_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of recordings, of this test alone, in a process that writes its own at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(publishing, "FIRST_AFTER", 0.0)
    monkeypatch.setattr(publishing, "EVERY", 0.0)
    monkeypatch.setattr(publishing, "_SHARE", 0.0)
    for name in ("LOOK_SECONDS", "SHORT_PASS"):  # at each batch
        monkeypatch.setattr(f"penstock.loop_times.{name}", 0.0)
    publish()
    found = live_folder()
    assert found is not None
    yield found
    publish(False)
    monkeypatch.undo()
    publish()

"""What tests of live recordings share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.insight import publish


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of recordings, of this test alone, in a process that writes its own at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("FIRST_AFTER", "EVERY", "_SHARE"):
        monkeypatch.setattr(f"penstock.insight.publishing.{name}", 0.0)
    for name in ("LOOK_SECONDS", "SHORT_PASS"):  # at each batch
        monkeypatch.setattr(f"penstock.loop_times.{name}", 0.0)
    publish()
    yield tmp_path / "cache" / "penstock" / "live"
    publish(False)
    monkeypatch.undo()
    publish()


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Return what writes a module of a user's into the working folder, by its name; all is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    names = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        return name

    yield write
    for name in names:
        opened = vars(sys.modules.pop(name, sys)).get("opened")
        if opened is not None:
            opened.file.close()

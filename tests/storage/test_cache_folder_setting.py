"""Where the cache folder lies, and how a program or a variable moves it or switches it off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.insight import publishing
from penstock.insight.live_files import FORMAT
from penstock.storage.cache_folder import CacheFolder
from penstock.system import cache_folder as place
from penstock.system.cache_folder import folder_of, why_nowhere


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that is used where nothing else is said, which does not exist yet."""
    for name in ("PENSTOCK_NO_CACHE", "PENSTOCK_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(place._Chosen, "path", place._UNSET)
    return tmp_path / "home" / "penstock"


def test_each_way_precedes_the_next(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_of("live") == home / "live"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "named"))
    assert folder_of("live") == tmp_path / "named" / "live"
    monkeypatch.setenv("PENSTOCK_NO_CACHE", "1")
    assert folder_of("live") is None and why_nowhere() == "PENSTOCK_NO_CACHE has switched the cache folder off"
    penstock.cache_folder(tmp_path / "called")
    assert folder_of("live") == tmp_path / "called" / "live"
    penstock.cache_folder(None)
    assert folder_of("live") is None and "penstock.cache_folder(None)" in why_nowhere()


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_values_of_the_variable_that_switch_nothing_off(
    value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NO_CACHE", value)
    assert folder_of("scans") == home / "scans"


def test_a_relative_path_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    penstock.cache_folder("near")
    monkeypatch.chdir(tmp_path.parent)
    assert folder_of("scans") == tmp_path / "near" / "scans"
    penstock.cache_folder("~/kept")
    assert folder_of("scans") == tmp_path / "me" / "kept" / "scans"


@pytest.mark.parametrize("wrong", [3, True, "s3://bucket/cache"])
def test_what_is_no_path(wrong: Any, home: Path) -> None:
    with pytest.raises(penstock.InvalidOption, match="folder"):
        penstock.cache_folder(wrong)
    assert folder_of("scans") == home / "scans"


def test_what_needs_a_folder_says_how_to_give_one() -> None:
    penstock.cache_folder(None)
    with pytest.raises(penstock.InvalidOption, match=r"cache_folder\(None\) has switched .* off: give cache_folder="):
        CacheFolder()


def test_the_live_file_follows(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = publishing.Publisher()
    publisher._publish(0.0)
    (file,) = (home / "live").glob("*.json")
    assert json.loads(file.read_text())["format"] == FORMAT
    penstock.cache_folder(tmp_path / "other")
    publisher._publish(0.0)
    assert not file.exists() and len(list((tmp_path / "other" / "live").glob("*.json"))) == 1
    penstock.cache_folder(None)
    publisher._publish(0.0)
    assert list((tmp_path / "other" / "live").iterdir()) == []

"""The distribution's name and version, and another distribution that writes into the same folder."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from tests.pages import ROOT, text_of
from tests.resources import run_script

#: Imports the copy of the package in the folder that is given, whatever else is installed.
BEGIN = """
import sys, warnings
warnings.simplefilter("default")
sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable")]
sys.path.insert(0, sys.argv[1])
"""
WORDS = "pip uninstall penstock penstock-loader, then pip install penstock-loader"


def test_the_versions_are_one() -> None:
    project = text_of(ROOT / "pyproject.toml")
    assert f'\nname = "penstock-loader"\nversion = "{penstock.__version__}"\n' in project
    assert metadata.version("penstock-loader") == penstock.__version__
    found = re.search(r"^## (\S+)", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert found is not None and found[1] == penstock.__version__


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with a copy of the installed package, and the record of another distribution."""
    shutil.copytree(ROOT / "src" / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    native = find_spec("penstock._native")
    assert native is not None and native.origin is not None
    shutil.copy(native.origin, tmp_path / "penstock")
    (tmp_path / "penstock_loader-0.2.0.dist-info").mkdir()
    (tmp_path / "penstock_loader-0.2.0.dist-info" / "RECORD").write_text("penstock/loader.py,,\n")
    (tmp_path / "penstock-0.1.0.dist-info").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("record", "warned"), [("penstock/__init__.py,,\n", 1), ("penstock_tools/a.py,,\n", 0), (None, 0)]
)
def test_the_import_says_that_another_distribution_shares_the_folder(
    site: Path, record: str | None, warned: int
) -> None:
    if record is not None:
        (site / "penstock-0.1.0.dist-info" / "RECORD").write_text(record)
    done = run_script(f"{BEGIN}import penstock\nprint(penstock.__file__, penstock.DataLoader.__name__)", str(site))
    assert done.stdout.split() == [str(site / "penstock" / "__init__.py"), "DataLoader"]
    assert done.stderr.count(WORDS) == warned and done.stderr.count("RuntimeWarning") == warned


def test_a_command_says_that_the_other_distribution_came_last(site: Path) -> None:
    (site / "penstock" / "__init__.py").write_text("")
    done = run_script(f"{BEGIN}from penstock.cli import main\nsys.exit(main(['doctor']))", str(site))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and WORDS in done.stderr

"""What `import penstock` loads, and what is imported when it is first used."""

from __future__ import annotations

import pytest

import penstock
from tests.resources import run_script

LOADED = """
import sys
import penstock
penstock.DataLoader
print(*sorted(name.removeprefix("penstock.") for name in sys.modules if name.partition(".")[0] == "penstock"))
"""
LATER = ("cli", "data", "insight", "packing", "testing", "explain", "device.target", "hooks", "frameworks.accelerate")


def test_the_import_loads_a_core() -> None:
    done = run_script(LOADED)
    assert done.stderr == ""
    loaded = done.stdout.split()
    assert not set(LATER) & set(loaded)
    assert len(loaded) <= 120, loaded


@pytest.mark.parametrize(
    "script",
    [
        *(f"import penstock; assert penstock.{name} and '{name}' in dir(penstock)" for name in penstock.__all__),
        "from penstock import *; ImageFolder, prefetch, pack",
        "import penstock; penstock.data.DataLoader, penstock.data.TensorDataset, penstock.insight.record",
        "import penstock; penstock.frameworks.keep_loaders, penstock.sources.Arrays",
        "import penstock.insight; penstock.insight.publish(False)",
        "import penstock; assert penstock.Arrays is penstock.sources.Arrays",
    ],
)
def test_names_are_imported_when_they_are_used(script: str) -> None:
    exec(script, {})


@pytest.mark.parametrize("module", ["penstock", "penstock.sources", "penstock.insight", "penstock.frameworks"])
def test_other_names_are_errors_as_in_any_module(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        exec(f"import {module}; {module}.Nothing", {})
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {module} import Nothing", {})

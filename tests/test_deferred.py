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
    loaded = done.stdout.split()
    assert done.stderr == "" and not set(LATER) & set(loaded) and len(loaded) <= 120, loaded


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


FORKED = """
import os
import torch, torch.utils.data
import penstock

torch.arange(9)
child = os.fork()
if not child:
    made, original = [], torch.set_num_threads
    torch.set_num_threads = lambda number: made.append(number) or original(number)
    dataset = torch.utils.data.TensorDataset(torch.arange(9))
    for _ in range(2):
        list(penstock.DataLoader(dataset, num_workers=2, worker_method="thread", collate_fn=list))
    os._exit(made != [torch.get_num_threads()])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_before_the_first_pass_is_seen() -> None:
    """In the child torch's thread pool is made anew before several threads ask for it: "Invalid thread pool!"."""
    done = run_script(FORKED)
    assert (done.stdout, done.stderr) == ("0\n", "")

"""Transformers' Trainer, TRL's SFTTrainer and Accelerate under penstock.install(): the losses are torch's."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.launching import found_in, launched
from tests.made_once import made_once

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("trl is not installed: pip install trl", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # see launching.run

#: Their first batch behind the checkpoint is made before Trainer restores the generators, or is the epoch's first.
OTHERWISE = {"resumed, masked", "resumed, not skipped"}


def run_both(folder: Path) -> None:
    """Run the cases of one process, then those of two ranks, which continue from a checkpoint of the one, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        launched("run_transformers", folder, one=1, found=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "transformers", run_both)


def check(cases: dict[str, dict[str, Any]], names: int) -> None:
    assert len(cases) == names
    for name, case in cases.items():
        theirs, ours = case["theirs"], case["ours"]
        gathered = ", gathered" * name.startswith(("padded", "masked", "by length", "Accelerate"))
        assert theirs.pop("loader") == "torch" and ours.pop("loader").startswith(f"penstock{gathered}"), name
        assert theirs["seen"], "an empty comparison proves nothing"
        assert ours == theirs, name
        if "whole" in ours and name not in OTHERWISE:
            behind = len(ours["seen"])
            assert 0 < behind < len(ours["whole"]), name
            assert (ours["seen"], ours["end"]) == (ours["whole"][-behind:], ours["whole end"]), name


def test_one_process(folder: Path) -> None:
    check(json.loads((folder / "one.json").read_text()), 25)


def test_two_ranks(folder: Path) -> None:
    for rank in found_in(folder):
        check(rank, 11)

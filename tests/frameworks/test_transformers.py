"""Transformers' Trainer, TRL's SFTTrainer and Accelerate under penstock.install(): the losses are torch's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.launching import launched, run

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("trl is not installed: pip install trl", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # see launching.run

SCRIPT = Path(__file__).with_name("run_transformers.py")
#: Their first batch behind the checkpoint is made before Trainer restores the generators, or is the epoch's first.
OTHERWISE = {"resumed, masked", "resumed, not skipped"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def one(folder: Path) -> Any:
    """What one process has found."""
    run(str(SCRIPT), "one", str(folder))
    return json.loads((folder / "one.json").read_text())


@pytest.fixture(scope="module")
def ranks(folder: Path, one: Any) -> list[Any]:
    """What each of two ranks has found, which continue from a checkpoint of the one process too."""
    return launched(SCRIPT, folder)


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


def test_one_process(one: Any) -> None:
    check(one, 25)


def test_two_ranks(ranks: list[Any]) -> None:
    for rank in ranks:
        check(rank, 11)

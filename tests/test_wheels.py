"""The wheel without a native core: what pip installs on macOS, Windows, and Linux systems that no other wheel fits."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.resources import run_script

#: The folder of the wheel's files is the only place where the package is found.
TRY = """
import sys, warnings
sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable")]
sys.path.insert(0, sys.argv[1])
import torch
from torch.utils.data import TensorDataset
import penstock
warnings.simplefilter("ignore")
loader = penstock.DataLoader(TensorDataset(torch.arange(5)), batch_size=2)
print(penstock.__file__, [batch.tolist() for batch, in loader], loader.explain().partition(",")[0])
"""


def test_the_wheel_for_other_systems(tmp_path: Path) -> None:
    for name in ("build", "scikit_build_core"):
        pytest.importorskip(name, reason=f"{name} is not installed: make setup installs it")
    options = ["--no-isolation", "-C", "wheel.cmake=false", "-C", "wheel.py-api=py3", "--outdir", str(tmp_path)]
    command = [sys.executable, "-m", "build", "--wheel", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("penstock_loader-") and wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
        archive.extractall(tmp_path / "site")
    out = run_script(TRY, str(tmp_path / "site")).stdout
    assert out == f"{tmp_path}/site/penstock/__init__.py [[0, 1], [2, 3], [4]] torch's loader\n"

"""What the package gives where its native core is not built, as on macOS and Windows."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.resources import run_script

BEGIN = """
import sys
sys.modules.update({name: None for name in ("penstock._native", "fcntl")})  # their imports fail
import torch
from torch.utils.data import TensorDataset
"""
SILENT = "import warnings; warnings.simplefilter('ignore')\nimport penstock\n"


def output_of(program: str) -> tuple[str, str]:
    done = run_script(BEGIN + textwrap.dedent(program))
    return done.stdout, done.stderr


def test_the_first_pass_says_in_one_sentence_whose_loader_it_is() -> None:
    program = """
    import warnings
    import penstock
    loader = penstock.DataLoader(TensorDataset(torch.arange(5)))
    warnings.simplefilter("always")
    print(len(list(loader)), len(list(loader)))
    """
    out, err = output_of(program)
    assert out == "5 5\n" and err.count("RuntimeWarning") == 1 and "<string>" in err
    assert "DataLoader is torch's own loader without the native core of Penstock, which runs on Linux and is not" in err


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_has_the_loader_and_each_command_says_what_it_needs(system: str) -> None:
    """sys.platform is set, and what Linux alone has is taken away."""
    program = f"""
    import os, warnings
    sys.platform = {system!r}
    sys.modules.update(dict.fromkeys(("resource", "pwd", "grp", "termios")))
    for name in ("fork", "sched_getaffinity", "memfd_create", "posix_fadvise", "getuid", "register_at_fork", "statvfs"):
        delattr(os, name)
    warnings.simplefilter("ignore")
    import penstock, penstock.cli, penstock.cli.terminal
    loader = penstock.DataLoader(TensorDataset(torch.arange(5)), batch_size=2, device="cpu")
    print([batch.tolist() for batch, in loader])
    print({{penstock.cli.main([verb]) for verb in penstock.cli.terminal.VERBS}})
    """
    out, err = output_of(program)
    assert out == "[[0, 1], [2, 3], [4]]\n{2}\n"
    assert set(re.findall(r"penstock: \S+ (.*)", err)) == {
        f"needs the native core of Penstock, which runs on Linux and is not installed here ({system})"
    }


def test_the_loader_is_torchs_and_takes_what_changes_no_batch() -> None:
    program = """
    options = dict(cache="8GiB", cache_decoded=True, worker_method="process", device="cpu", seed=None, num_workers=None)
    loader = penstock.DataLoader(TensorDataset(torch.arange(5)), batch_size=2, snapshot_every_n_steps=7, **options)
    assert isinstance(loader, torch.utils.data.DataLoader) and loader.num_workers == 0
    print([batch.tolist() for batch, in loader], "torch's loader" in loader.explain())
    """
    assert output_of(SILENT + textwrap.dedent(program)) == ("[[0, 1], [2, 3], [4]] True\n", "")


@pytest.mark.parametrize(
    "option", ["seed=3", "worker_method='thread'", "on_error='replace'", "shard=(0, 2)", "device='cuda'"]
)
def test_options_that_need_the_native_core_are_refused(option: str) -> None:
    program = f"""
    try:
        penstock.DataLoader(TensorDataset(torch.arange(5)), {option})
    except penstock.InvalidOption as error:
        print(error)
    """
    out, _ = output_of(SILENT + textwrap.dedent(program))
    assert out.startswith(f"{option} needs the native core") and "run this program on Linux" in out


def test_other_names_say_what_they_lack() -> None:
    program = """
    try:
        from penstock import ImageFolder
    except ImportError as error:
        print(error)
    """
    assert output_of(SILENT + textwrap.dedent(program))[0].startswith("penstock.ImageFolder needs the native core")

"""Triton kernels: by Triton's interpreter, on the CPU, they make what torch's operations do; they compile for a GPU."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import torch

from penstock.device import arithmetic
from tests.resources import run_script

triton = pytest.importorskip("triton", reason="Triton is not installed")

CONVERT = """
import itertools
import torch
from penstock.device import kernels
from penstock.device.arithmetic import Arithmetic

torch.manual_seed(0)
layouts = torch.contiguous_format, torch.channels_last
sizes = (2, 5, 7), (3, 33, 40), (1, 1, 1), (0, 4, 4)
dtypes = torch.float32, torch.bfloat16, torch.float64
for channels, size, dtype, given, made in itertools.product((1, 3), sizes, dtypes, layouts, layouts):
    table = torch.randn(channels, 256)
    shape = size[0], channels, *size[1:]
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8).contiguous(memory_format=given)
    out = torch.empty(shape, dtype=dtype, memory_format=made)
    kernels.convert(pixels, table.to(dtype), out)
    wanted = Arithmetic(table)(pixels, dtype, made is torch.channels_last)
    assert torch.equal(out, wanted) and out.stride() == wanted.stride(), (shape, dtype, given, made)
"""

RESIDENT = """
import itertools
import pytest
import torch
from torchvision import transforms as v1
import penstock
from penstock.device import arithmetic
from tests.accelerator import replaced_by_the_cpu
from tests.data import in_memory

made = []
run_kernel = arithmetic.run_kernel
with pytest.MonkeyPatch.context() as patch:
    replaced_by_the_cpu(patch)
    patch.setattr(arithmetic, "_runs_kernels", lambda device: True)
    patch.setattr("penstock.device.resident.run_kernel", lambda *given: made.append(run_kernel(*given)) or made[-1])
    flips = [v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(0.3)]
    pads = [v1.Pad((3, 0, 1, 5), fill=200), v1.RandomCrop(44, padding=(6, 4), fill=(1, 2, 3))]
    colours = [v1.ToTensor(), v1.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))]
    cases = (
        ("CIFAR10", [v1.RandomCrop(32, padding=4), *flips, *colours], {}),
        ("CIFAR10", [*pads, *colours], {"dtype": torch.bfloat16, "channels_last": True}),
        ("CIFAR10", [v1.CenterCrop((20, 7)), v1.PILToTensor()], {"channels_last": True}),
        ("MNIST", [v1.RandomCrop(28, padding=2), v1.ToTensor()], {"dtype": torch.float16}),
    )
    for name, steps, options in cases:
        data = in_memory(name, v1.Compose(steps), 20, planar=True)
        feeds = [penstock.Feed("cuda", cache=place, **options) for place in ("device", None)]
        loaders = [penstock.DataLoader(data, 6, shuffle=True, seed=3, num_workers=1, device=feed) for feed in feeds]
        for (ours, labels), (host, wanted) in zip(*loaders, strict=True):
            assert ours.dtype == host.dtype and torch.equal(ours, host) and torch.equal(labels, wanted), steps
            assert ours.stride() == host.stride(), steps
assert made == [True] * 16 and not arithmetic._unusable
"""


@pytest.mark.parametrize("script", [CONVERT, RESIDENT], ids=["convert", "resident"])
def test_kernels_make_what_torch_does(script: str) -> None:
    done = run_script(script, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr


def test_kernels_compile_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter allows, the compiler may not."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler = pytest.importorskip("triton.backends.compiler")
    kernels = importlib.import_module("penstock.device.kernels")
    pointers = {"pixels": "*u8", "table": "*i16", "out": "*i16", "store": "*u8", "fills": "*u8"}
    pointers |= {"index": "*i64", "maps": "*i32"}
    constants = {"channels": 3, "block": kernels.BLOCK}
    for kernel in (kernels._convert, kernels._gather):
        flags = [name for name in kernel.arg_names if name.startswith(("from_", "to_", "has_"))]
        fixed = {name: value for name, value in constants.items() if name in kernel.arg_names} | dict.fromkeys(
            flags, True
        )
        types = {name: pointers.get(name, "constexpr" if name in fixed else "i32") for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, types, constexprs=fixed)
        assert triton.compile(source, target=compiler.GPUTarget("cuda", 90, 32)).asm["cubin"]


def test_without_a_compiler_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def convert(*given: object) -> None:
            given[2].fill_(0)  # type: ignore[attr-defined]
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(arithmetic, "_runs_kernels", lambda device: True)
    monkeypatch.setattr(arithmetic, "_kernels", lambda: Broken)
    asked: list[Exception] = []
    monkeypatch.setattr(arithmetic, "_unusable", asked)
    table, pixels = torch.randn(3, 256), torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    wanted = torch.stack([table[channel][pixels[:, channel].long()] for channel in range(3)], 1)
    for _ in range(2):
        assert torch.equal(arithmetic.Arithmetic(table)(pixels), wanted)
    assert [str(error) for error in asked] == ["Failed to find C compiler"]

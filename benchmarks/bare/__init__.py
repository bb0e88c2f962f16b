"""The bare native limits: small C++ loops without Python, compiled when first asked for, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.question import Running, Setup

HERE = Path(__file__).resolve().parent
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread")


def library(source: str, folder: Path, *libraries: str) -> ctypes.CDLL:
    """`source` (a .cc file beside this one) compiled into `folder`; raises RuntimeError with what the compiler said."""
    code = b"".join(path.read_bytes() for path in (HERE / source, *sorted(HERE.glob("*.h"))))
    target = folder / f"{Path(source).stem}-{hashlib.sha256(code).hexdigest()[:12]}.so"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        command = ["g++", *FLAGS, str(HERE / source), "-o", str(unfinished), *(f"-l{name}" for name in libraries)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"g++ could not compile {source}: {done.stderr.strip()[:200]}")
        unfinished.rename(target)
    return ctypes.CDLL(str(target))


def names(texts: list[str]) -> tuple[bytes, int]:
    """The texts as C strings of one stride, and that stride in bytes."""
    raw = [text.encode() for text in texts]
    stride = max(map(len, raw)) + 1
    return b"".join(text.ljust(stride, b"\0") for text in raw), stride


def loop(setup: Setup, source: str, function: str, *arguments: Any, libraries: tuple[str, ...] = ()) -> Running:
    """Epochs of a function of `source`.

    The function takes a shuffled order, which is new for each epoch, the samples, the samples of a batch, the threads,
    and then the arguments: integers as C long, bytes, and NumPy arrays as pointers. It returns the samples it filled.
    """
    called = getattr(library(source, setup.path().parent, *libraries), function)
    called.restype = ctypes.c_long

    def epoch() -> int:
        order = np.random.permutation(setup.samples)
        given = [in_c(one) for one in (order, setup.samples, setup.batch, setup.workers, *arguments)]
        done = int(called(*given))
        if done <= 0:
            raise RuntimeError(f"the bare loop gave {done}")
        return done

    return Running(epoch)


def in_c(value: Any) -> Any:
    """A value as a C function takes it; the caller keeps the memory of arrays."""
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_long(value) if isinstance(value, int) else value

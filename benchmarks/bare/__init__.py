"""The bare native limits: small C++ loops without Python, compiled when first asked for, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread")


def library(source: str, folder: Path, *libraries: str) -> ctypes.CDLL:
    """`source` (a .cc file beside this one) compiled into `folder`; raises RuntimeError with what the compiler said."""
    code = (HERE / source).read_bytes() + (HERE / "gather.h").read_bytes()
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


def pointer(array: Any) -> ctypes.c_void_p:
    """A numpy array's memory; the caller keeps the array."""
    return ctypes.c_void_p(array.ctypes.data)


def call(function: Any, *arguments: Any) -> int:
    """Calls a bare loop: integers as C long; returns the samples it filled, raises RuntimeError when it filled none."""
    function.restype = ctypes.c_long
    done = int(function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if done <= 0:
        raise RuntimeError(f"the bare loop gave {done}")
    return done

"""soundfile.read, SoundFile.read and torchaudio.load of WAV files, answered by the native core: only the range is read.

An answer has the type, dtype, shape, order and values of the library's. A range from torchaudio.load is contiguous
memory; torchaudio decodes the whole file and returns a view of it. Before a kind of values is answered for
the first time in a process, it is compared with the library's on a small file; where they differ, or the library cannot
read it (torchaudio without FFmpeg), such files are the library's. So is everything but plain and "extensible" WAV files
of integers of 8, 16, 24 and 32 bits and floats of 32: native/tensor/wav_file.h says which chunks they may have.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any

import numpy as np
import torch

from penstock import _native
from penstock.hooks.arrays import path_of
from penstock.hooks.loads import Refused, unusual

_DTYPES = ("float64", "float32", "int32", "int16")
_TENSOR = len(_DTYPES)
_END = 1 << 62
_loader = _native.WavLoader(
    np.empty, [np.dtype(name) for name in _DTYPES], partial(torch.empty, dtype=torch.float32, device="cpu"), Refused
)
_tensor = partial(_loader.tensor, plain=True)
_alike: dict[tuple[int, int], bool] = {}
"""By kind of values asked for and in the file: whether the library's are the same."""


def read_sound(
    file: Any,
    frames: Any = -1,
    start: Any = 0,
    stop: Any = None,
    dtype: Any = "float64",
    always_2d: Any = False,
    **named: Any,
) -> Any:
    """Return what soundfile.read returns for the same arguments, or Refused."""
    in_memory = type(file) is io.BytesIO and not file.closed and file.tell() == 0
    source = file.getvalue() if in_memory else path_of(file)
    if source is None or (type(source) is str and source.lower().endswith(".raw")):
        return Refused("it reads from no path and no io.BytesIO at its start, or raw samples")
    if named or dtype not in _DTYPES or (frames >= 0 and stop is not None):
        return Refused("it has other arguments")
    kind, stop = _DTYPES.index(dtype), _END if stop is None else index(stop)
    found = _answer(kind, partial(_loader.array, source, index(start), stop, index(frames), kind, bool(always_2d)))
    if type(found) is Refused:
        return found
    if in_memory:
        file.seek(found[2])
    return found[:2]


def read_from(file: Any, frames: Any = -1, dtype: Any = "float64", always_2d: Any = False, **named: Any) -> Any:
    """Return what SoundFile.read returns for the same arguments, or Refused; the position moves as it would."""
    path = file.name
    if named or dtype not in _DTYPES:
        return Refused("it has other arguments")
    if type(path) is not str or file.mode != "r" or file.closed or file.format not in ("WAV", "WAVEX"):
        return Refused("it is not a WAV file of a path, open for reading")
    about = _loader.describe(path)
    if type(about) is Refused:
        return about
    if about[:3] != (file.frames, file.channels, file.samplerate):
        return Refused("the file is another one by now")
    at, kind = file.tell(), _DTYPES.index(dtype)
    found = _answer(kind, partial(_loader.array, path, at, _END, index(frames), kind, bool(always_2d)))
    if type(found) is Refused:
        return found
    file.seek(at + len(found[0]))
    return found[0]


def load_torchaudio(
    uri: Any,
    frame_offset: Any = 0,
    num_frames: Any = -1,
    normalize: Any = True,
    channels_first: Any = True,
    **named: Any,
) -> Any:
    """Return what torchaudio.load returns for the same arguments, or Refused."""
    path = path_of(uri)
    if path is None or named or normalize is not True:
        return Refused("it reads from no path, or has other arguments")
    if not hasattr(sys.modules["torchaudio"], "load_with_torchcodec"):
        return Refused("torchaudio before 2.9")
    if (why := unusual()) is not None:
        return Refused(why)
    found = _answer(_TENSOR, partial(_tensor, path, index(frame_offset), index(num_frames)))
    return found if type(found) is Refused or channels_first else (found[0].transpose(0, 1), found[1])


def _answer(kind: int, ask: Callable[[int], Any]) -> Any:
    """Return what the native core finds, where the library's values are the same."""
    found = ask(sum(1 << code for (asked, code), alike in _alike.items() if alike and asked == kind))
    if type(found) is not int:
        return found
    if (kind, found) not in _alike:
        _alike[kind, found] = _compare(kind, found)
    return ask(1 << found) if _alike[kind, found] else Refused("the library's values are others than the native core's")


def _compare(kind: int, code: int) -> bool:
    """Return whether the library reads a small file of such values as the native core does."""
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"
    try:
        os.write(descriptor, _small_file(code))
        if kind == _TENSOR:
            ours, _ = _tensor(path, 0, -1, 1 << code)
            theirs, _ = sys.modules["torchaudio"].load_with_torchcodec(path)
            return bool(ours.shape == theirs.shape and ours.numpy().tobytes() == theirs.numpy().tobytes())
        ours = _loader.array(path, 0, _END, -1, kind, True, 1 << code)
        if type(ours) is Refused:  # floats as integers
            return False
        with sys.modules["soundfile"].SoundFile(path) as file:
            return bool(ours[0].tobytes() == bytes(file.buffer_read(-1, _DTYPES[kind])))
    except Exception:  # FFmpeg is not there, or a library that is not known
        return False
    finally:
        os.close(descriptor)


def _small_file(code: int) -> bytes:
    """Return a WAV file of two channels with values of all sizes."""
    width, is_float = (1, 2, 3, 4, 4)[code], code == 4
    if is_float:
        data = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, *np.linspace(-1.5, 1.5, 506)], np.float32).tobytes()
    else:
        extremes = b"".join(
            (b"\0" * width, b"\xff" * width, b"\0" * (width - 1) + b"\x80", b"\xff" * (width - 1) + b"\x7f")
        )
        data = extremes + (np.arange(508 * width) * 37 % 251).astype(np.uint8).tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3 if is_float else 1, 2, 8000, 16000 * width, 2 * width, 8 * width)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + form + struct.pack("<4sI", b"data", len(data)) + data
    )

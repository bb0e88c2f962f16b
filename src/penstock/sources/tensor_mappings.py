"""Files of several tensors by name, .safetensors and .npz, as dictionaries of tensors.

The format of .safetensors is described at https://github.com/huggingface/safetensors: the length of a header in 8 bytes
(little-endian), the header in JSON with the dtype, shape and place of each tensor, and their elements.
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

import numpy as np
import torch

from penstock.errors import CorruptSample, SampleError, like
from penstock.sources.reading import length_of, require_regular, system_error, tensor_of

#: How the names of such files end.
SUFFIXES = (".safetensors", ".npz")
#: The longest header that the format's own library reads, in bytes.
_LONGEST_HEADER = 100_000_000
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def holds_mappings(suffix: str) -> bool:
    """Return whether files of this suffix hold several tensors by name."""
    return suffix.endswith(SUFFIXES)


def read_mapping(file: BinaryIO, sample_id: str, path: str) -> dict[str, torch.Tensor]:
    """Read the tensors of an open .safetensors or .npz file by name, and close it.

    They are those of safetensors.torch.load_file and numpy.load, on the CPU, each with memory of its own. Nothing in
    the file is executed.
    Raises CorruptSample, UnreadableSample.
    """
    with file:
        try:
            require_regular(file, sample_id, path)
            return _read_npz(file) if path.endswith(".npz") else _read_safetensors(file)
        except (SampleError, MemoryError):
            raise
        except OSError as error:
            if error.errno is None:
                raise _corrupt(file, error, sample_id, path) from error
            raise system_error(error.errno, sample_id, path) from error
        except Exception as error:  # numpy, zipfile and zlib raise whatever a damaged file leads them to
            raise _corrupt(file, error, sample_id, path) from error


def _corrupt(file: BinaryIO, error: Exception, sample_id: str, path: str) -> CorruptSample:
    if length_of(file) == 0:
        message = f"sample {sample_id!r} ({path}) is an empty file; write it again, or leave it out"
    else:
        lines = str(error).splitlines()
        why = (lines[0] if lines and lines[0].strip() else type(error).__name__).rstrip(". ")
        how = "numpy.savez" if path.endswith(".npz") else "safetensors.torch.save_file"
        message = (
            f"sample {sample_id!r} ({path}) cannot be read as tensors by name: {why}; write it again with {how}, or "
            "leave it out"
        )
    return like(error, CorruptSample, message, sample_id=sample_id, path=path)


def _read_npz(file: BinaryIO) -> dict[str, torch.Tensor]:
    arrays = np.load(file, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ValueError("it is no archive of arrays")
    with arrays:
        return {name: _tensor(arrays[name]) for name in arrays.files}


def _tensor(array: Any) -> torch.Tensor:
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds files that are no arrays")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return tensor_of(np.ascontiguousarray(array).reshape(array.shape))


def _read_safetensors(file: BinaryIO) -> dict[str, torch.Tensor]:
    """Return the tensors in the order in which they lie. Raises ValueError."""
    size = length_of(file)
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(_LONGEST_HEADER, size - 8):
        raise ValueError(f"its {size:,} bytes do not hold the header of {length:,} that they begin with")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    if not _is_metadata(header.pop("__metadata__", {})):
        raise ValueError("its __metadata__ is no mapping of texts")
    places = sorted((_place(name, entry) for name, entry in header.items()), key=lambda place: place[1:3])
    end = 0
    for name, begin, behind, _, _ in places:
        if begin != end:
            raise ValueError(f"the elements of {name!r} begin at {begin:,}, and those before them end at {end:,}")
        end = behind
    if 8 + length + end != size:
        raise ValueError(f"it has {size:,} bytes, and its header tells of {8 + length + end:,}")
    if sys.byteorder != "little":
        raise ValueError("its elements are little-endian, and this machine is not")
    return {name: _elements(file, begin, behind, dtype, shape) for name, begin, behind, dtype, shape in places}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _is_metadata(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(text, str) for text in value.values()))


def _place(name: str, entry: Any) -> tuple[str, int, int, torch.dtype, list[int]]:
    """Return a tensor's name, where its elements begin and end, its dtype and its shape. Raises ValueError."""
    if not isinstance(entry, dict) or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not say the dtype, shape and data_offsets of {name!r}")
    dtype: Any = getattr(torch, _DTYPES.get(entry["dtype"], "") if isinstance(entry["dtype"], str) else "", None)
    shape, offsets = entry["shape"], entry["data_offsets"]
    if dtype is None:
        raise ValueError(f"{name!r} is of dtype {entry['dtype']!r}, which this torch does not have")
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side < 1 << 63 for side in shape):
        raise ValueError(f"{name!r} is of shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(one) is int and one >= 0 for one in offsets):
        raise ValueError(f"{name!r} has data_offsets={offsets!r}")
    begin, behind = offsets
    needed = dtype.itemsize
    for side in shape:
        needed *= side  # of any size: Python's numbers do not overflow
    if behind - begin != needed:
        raise ValueError(f"{name!r} has {behind - begin:,} bytes, and its shape needs {needed:,}")
    return name, begin, behind, dtype, shape


def _elements(file: BinaryIO, begin: int, behind: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """Return a tensor of elements, which are read from where the file is."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if behind > begin:
        memory: Any = tensor.view(-1).view(torch.uint8).numpy()
        if file.readinto(memory) != behind - begin:  # type: ignore[attr-defined]
            raise ValueError("it ends within its elements: it was cut off")
    return tensor

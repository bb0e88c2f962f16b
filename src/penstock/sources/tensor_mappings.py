"""Files of several tensors by name, .safetensors and .npz, as dictionaries of tensors.

The format of .safetensors is described at https://github.com/huggingface/safetensors: the length of a header in 8 bytes
(little-endian), the header in JSON with the dtype, shape and place of each tensor, and their elements.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, BinaryIO

import numpy as np
import torch

from penstock.sources.reading import errors_named, first_line, length_of, tensor_of_array

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
    how = "numpy.savez" if path.endswith(".npz") else "safetensors.torch.save_file"

    def explain(error: Exception) -> str:
        return f"tensors by name: {first_line(error)}; write it again with {how}, or leave it out"

    with errors_named(file, sample_id, path, explain):
        return _read_npz(file) if path.endswith(".npz") else _read_safetensors(file)


def _read_npz(file: BinaryIO) -> dict[str, torch.Tensor]:
    arrays = np.load(file, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ValueError("it is no archive of arrays")
    with arrays:
        found = {name: arrays[name] for name in arrays.files}
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise ValueError("it holds files that are no arrays")
    return {name: tensor_of_array(array) for name, array in found.items()}


def _read_safetensors(file: BinaryIO) -> dict[str, torch.Tensor]:
    """Return the tensors in the order in which they lie. Raises ValueError, or what a wrong header leads to."""
    size = length_of(file)
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(_LONGEST_HEADER, size - 8):
        raise ValueError(f"its {size:,} bytes do not hold the header of {length:,} that they begin with")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
    metadata = header.pop("__metadata__", None) or {}
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its __metadata__ is not a mapping of texts")
    if sys.byteorder != "little":
        raise ValueError("its elements are little-endian, and this machine is not")
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    end = 0
    for name, entry in entries:
        begin, behind = entry["data_offsets"]
        shape, known = entry["shape"], _DTYPES.get(entry["dtype"], "")
        if not hasattr(torch, known):
            raise ValueError(f"{name!r} is of dtype {entry['dtype']!r}, which this torch does not have")
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{name!r} is of shape {shape!r}")
        if begin != end or behind != begin + math.prod(shape) * getattr(torch, known).itemsize:
            raise ValueError(f"{name!r} has data_offsets={[begin, behind]}, which its shape and its place do not give")
        end = behind
    if 8 + length + end != size:
        raise ValueError(f"it has {size:,} bytes, and its header tells of {8 + length + end:,}")
    tensors = {}
    for name, entry in entries:
        tensors[name] = torch.empty(entry["shape"], dtype=getattr(torch, _DTYPES[entry["dtype"]]), device="cpu")
        memory: Any = tensors[name].view(-1).view(torch.uint8).numpy() if tensors[name].numel() else b""
        if len(memory) and file.readinto(memory) != len(memory):  # type: ignore[attr-defined]
            raise ValueError("it ends within its elements: it was cut off")
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a name twice")
    return found

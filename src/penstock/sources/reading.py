"""Reading one sample in Python: what the native core leaves to torch.load, numpy and Pillow, and its errors.

The errors say what is wrong with the bytes of a .pt or .npy file: cut off, or no longer those that were written.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

import penstock._native as _native
from penstock.errors import (
    CorruptSample,
    ImageTooLarge,
    MissingSample,
    OutsideRoot,
    SampleError,
    UnreadableSample,
    like,
)
from penstock.system.words import counted

_ZIP = b"PK\x03\x04"
_NPY = b"\x93NUMPY"
_PICKLE = b"\x80"
_CHUNK = 1 << 20

# Escape sequences that make a terminal write in bold, which torch puts into messages.
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# The name of what torch.load(weights_only=True) refuses to import, in its messages.
_GLOBAL = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")


def named(sample_id: str, path: str | None) -> str:
    """Return a sample's ID and file, as messages name them; the file once where it is the ID."""
    return f"sample {sample_id!r}" + ("" if path == sample_id else f" ({path or 'in memory'})")


def system_error(code: int, sample_id: str, path: str) -> SampleError:
    """Return the error for a failed system call on a sample's file; code is its errno."""
    kind: type[SampleError] = MissingSample if code in (errno.ENOENT, errno.ENOTDIR) else UnreadableSample
    remedy = {
        errno.ENOENT: "restore the file, or leave the sample out",
        errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
        errno.EACCES: "this user may not read it; change its permissions",
        errno.EISDIR: "put a file in its place, or leave the sample out",
    }.get(code, "check the file and the file system")
    suffix = path.rpartition(sample_id)[2]
    if code == errno.ENOENT and suffix and sample_id != suffix and sample_id.endswith(suffix):
        remedy = f"IDs are given without the suffix {suffix!r}: {sample_id.removesuffix(suffix)!r}, or with suffix=''"
    message = f"{named(sample_id, path)} cannot be read: {os.strerror(code)}; {remedy}"
    return like(OSError(code, os.strerror(code), path), kind, message, sample_id=sample_id, path=path)


def outside_root(sample_id: str, path: str) -> OutsideRoot:
    """Return the error for a name that leads out of its root folder."""
    return OutsideRoot(
        f"sample {sample_id!r} ({path}) leads out of its root folder, through a symbolic link or '..': "
        "copy the file into the folder, or give the folder that holds it as root",
        sample_id=sample_id,
        path=path,
    )


def open_sample(paths: _native.PathTable, position: int, sample_id: str) -> BinaryIO:
    """Open a file of a table for reading. Raises MissingSample, UnreadableSample, OutsideRoot."""
    path = os.fsdecode(paths.path(position))
    try:
        descriptor = paths.open(position)
        try:
            return os.fdopen(descriptor, "rb")
        except BaseException:  # a folder: fdopen has not taken the descriptor
            os.close(descriptor)
            raise
    except PermissionError as error:
        if error.errno == errno.EXDEV or error.errno is None:
            raise outside_root(sample_id, path) from error
        raise system_error(error.errno, sample_id, path) from error
    except OSError as error:
        raise system_error(error.errno or errno.EIO, sample_id, path) from error


def open_path(path: str) -> BinaryIO:
    """Open a file that is known by its path for reading. Raises MissingSample, UnreadableSample."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise system_error(error.errno or errno.EIO, path, path) from error


def read_tensor(file: BinaryIO, sample_id: str, path: str) -> torch.Tensor:
    """Read the tensor of an open .pt or .npy file by torch.load(weights_only=True) or numpy.load, and close the file.

    file: may be an io.BytesIO.
    The tensor is on the CPU, detached and strided; the CRC-32 of each record of a .pt file is compared.
    Raises CorruptSample, UnreadableSample.
    """
    with errors_named(file, sample_id, path, lambda error: _unreadable(_why(file, error))):
        tensor: Any
        magic = file.read(6)
        file.seek(0)
        # numpy reads a file, or refuses it, by its first bytes, else by its name.
        if magic and not magic.startswith((_ZIP, _PICKLE)) and (_NPY.startswith(magic) or path.endswith(".npy")):
            _check_npy_size(file)
            tensor = tensor_of_array(np.load(file, allow_pickle=False))
        else:
            tensor = torch.load(file, "cpu", weights_only=True)
        if (wrong := changed(file)) is not None:
            message = f"sample {sample_id!r} ({path}) cannot be read as {_unreadable(wrong)}"
            raise CorruptSample(message, sample_id=sample_id, path=path)
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        raise CorruptSample(
            f"sample {sample_id!r} ({path}) holds {_describe(tensor)}, not one dense tensor; "
            "save only the tensor, or write your own Dataset",
            sample_id=sample_id,
            path=path,
        )
    return tensor.detach()


def _check_npy_size(file: BinaryIO) -> None:
    """Raise ValueError where the header of an .npy file speaks of more than it holds: numpy allocates that first."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    begin, end = file.tell(), file.seek(0, os.SEEK_END)
    if math.prod(shape) * dtype.itemsize > end - begin and not dtype.hasobject:
        raise ValueError(f"its header says {shape} {dtype}, and {end - begin:,} bytes follow it")
    file.seek(0)


@contextmanager
def errors_named(file: BinaryIO, sample_id: str, path: str, explain: Callable[[Exception], str]) -> Iterator[None]:
    """Close a file in the end, and raise what its reader raises as the error of a sample.

    explain: returns what the file cannot be read as, why, and what to do.
    Raises CorruptSample, UnreadableSample, which an irregular file is too.
    """
    with file:
        try:
            if not isinstance(file, io.BytesIO) and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableSample(
                    f"sample {sample_id!r} ({path}) cannot be read: it is not a regular file; replace it, or leave it "
                    "out",
                    sample_id=sample_id,
                    path=path,
                )
            yield
        except (SampleError, MemoryError, ImportError):
            raise
        except Exception as error:  # torch.load, numpy and zipfile raise whatever a damaged file leads them to
            # torch.load seeks before the start of a short file, which is EINVAL.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise system_error(error.errno, sample_id, path) from error
            empty = length_of(file) == 0
            what = (
                "is an empty file; write it again, or leave it out" if empty else f"cannot be read as {explain(error)}"
            )
            message = f"sample {sample_id!r} ({path}) {what}"
            raise like(error, CorruptSample, message, sample_id=sample_id, path=path) from error


def _unreadable(why: str) -> str:
    return f"a tensor: {why}; write it again with torch.save(tensor, path) or numpy.save, or leave it out"


def _why(file: BinaryIO, error: Exception) -> str:
    """Return what is wrong with a file that torch.load or numpy.load did not read."""
    text = _ANSI.sub("", str(error))
    if (wrong := changed(file)) is not None:
        return wrong
    if (found := _GLOBAL.search(text)) is not None:
        return f"it holds an object made by {found[1]}, which torch.load refuses with weights_only=True"
    said = first_line(error).partition(". This is an internal miniz error")[0]
    if (found := re.search(r"WeightsUnpickler error:\s*(.+)", text)) is not None:
        said = found[1].strip().rstrip(".")
    elif isinstance(error, OSError):
        said = "it ends too early"
    file.seek(0)
    return f"{said} (it has {counted(length_of(file), 'byte')}, which begin with {file.read(16)!r}: was it cut off?)"


def read_image(file: BinaryIO, path: str, sample_id: str | None = None) -> Image.Image:
    """Decode an open image file by Pillow to mode RGB, as torchvision's pil_loader does, and close the file.

    sample_id: the path where none is given. Raises CorruptSample, ImageTooLarge, UnreadableSample.
    """
    with file:
        try:
            return Image.open(file).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:
            raise image_error(error, path, sample_id or path) from error


def image_error(error: Exception, path: str, sample_id: str) -> SampleError:
    """Return the error for an image file that Pillow could not open or decode, also an instance of Pillow's."""
    about = f"image {path}" if sample_id == path else f"image {sample_id!r} ({path})"
    if isinstance(error, Image.DecompressionBombError):
        message = f"{about} is too large: {first_line(error)}. If you trust the file, raise PIL.Image.MAX_IMAGE_PIXELS"
        return like(error, ImageTooLarge, message, sample_id=sample_id, path=path)
    if isinstance(error, OSError) and error.errno is not None:
        return system_error(error.errno, sample_id, path)
    empty = os.path.isfile(path) and os.path.getsize(path) == 0
    what = "is an empty file" if empty else f"cannot be decoded: {first_line(error)}"
    if isinstance(error, UnidentifiedImageError) and not empty:
        what = "is not an image of a format that Pillow knows"
    message = f"{about} {what}; replace the file, or leave it out"
    return like(error, CorruptSample, message, sample_id=sample_id, path=path)


def tensor_of_array(array: np.ndarray) -> torch.Tensor:
    """Return a contiguous tensor of an array of any byte order; it may share memory, which is only read."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return tensor_of(np.ascontiguousarray(array).reshape(array.shape))


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, which is only read: it need not be writable."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class _Writable:
    """The memory of a read-only array, described as writable.

    torch.from_numpy warns of read-only arrays. To silence the warning would not do: the filters of warnings belong to
    all threads.
    """

    def __init__(self, array: np.ndarray) -> None:
        interface: dict[str, Any] = array.__array_interface__
        self._array = array  # owns the memory
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "a quantized tensor" if value.is_quantized else f"a {str(value.layout).removeprefix('torch.')} tensor"
    return f"a {type(value).__name__}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message without its full stop, so that a semicolon can follow it."""
    lines = _ANSI.sub("", str(error)).splitlines()
    return (lines[0] if lines and lines[0].strip() else type(error).__name__).rstrip(". ")


# --- damaged files ----------------------------------------------------------------------------------------------------


def length_of(file: BinaryIO) -> int:
    """Return how many bytes an open file has, or a file object over memory."""
    return len(file.getbuffer()) if isinstance(file, io.BytesIO) else os.fstat(file.fileno()).st_size


def changed(file: BinaryIO) -> str | None:
    """Return which record of a torch.save archive does not match its CRC-32; None: there is none.

    None as well for what is not a zip archive, and for records without a CRC-32, which torch.save writes as 0
    (torch.serialization.set_crc32_options(False), skip_data()). The file's position is moved.
    """
    file.seek(0)
    if file.read(4) != _ZIP:
        return None
    name = ""
    try:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                name = record.filename.partition("/")[2]
                if record.CRC and (name == "data.pkl" or name.startswith("data/")):
                    with archive.open(record) as contents:
                        while contents.read(_CHUNK):
                            pass
    except zipfile.BadZipFile as error:
        if "Bad CRC-32" in str(error):
            return f"the CRC-32 of {name} is not the one in the file: its content has changed since it was written"
    except (NotImplementedError, RuntimeError, ValueError, EOFError, struct.error, zlib.error):
        pass  # what torch.load has read and zipfile cannot need not be damaged
    return None


# --- files of several tensors by name ---------------------------------------------------------------------------------

#: How the names of such files end.
MAPPING_SUFFIXES = (".safetensors", ".npz")


def holds_mappings(suffix: str) -> bool:
    """Return whether files of this suffix hold several tensors by name."""
    return suffix.endswith(MAPPING_SUFFIXES)


def read_mapping(file: BinaryIO, sample_id: str, path: str) -> dict[str, torch.Tensor]:
    """Read the tensors of an open .safetensors or .npz file by name, and close it.

    They are those of safetensors.torch.load and numpy.load, on the CPU. Nothing in the file is executed.
    Raises CorruptSample, UnreadableSample; ImportError without the package safetensors.
    """
    how = "numpy.savez" if path.endswith(".npz") else "safetensors.torch.save_file"

    def explain(error: Exception) -> str:
        return f"tensors by name: {first_line(error)}; write it again with {how}, or leave it out"

    with errors_named(file, sample_id, path, explain):
        if not path.endswith(".npz"):
            return _load_safetensors(file.read())
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it is not an archive of arrays")
        return {name: tensor_of_array(arrays[name]) for name in arrays.files}


def _load_safetensors(data: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors in the order in which they lie, as load_file does."""
    try:
        from safetensors.torch import load  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("files that end in .safetensors are read by the package: pip install safetensors") from error
    found = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return {name: found[name] for name in sorted(header, key=lambda name: header[name]["data_offsets"])}

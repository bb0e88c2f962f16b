"""torch.load and numpy.load, answered by the native core.

An answer of torch.load has the same containers, values, dtypes, strides, storages and sharing as its own. The tensors'
storages own their memory, which the native core allocates; torch cannot resize them, as it cannot those of
``torch.load``. Everything but torch.save's zip archives of dense tensors and plain Python values is refused.

An answer of numpy.load is an array of numpy's memory, with the same dtype, order, flags and base; of an ``.npz``
archive it is a NpzFile that reads such arrays natively where they are stored uncompressed. Refused are structured,
big-endian and object arrays, strings and dates, mapped files, and all that is damaged.
"""

from __future__ import annotations

import _io
import builtins
import functools
import io
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock import _native

config: Any
try:
    from torch.utils.serialization import config
except ImportError:  # torch 2.6, which has no such setting
    config = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is the original function's, which gives its own result or error."""

    reason: str
    """Why, for a report: "it holds PIL.Image.Image"."""


def _content_of(file: Any) -> tuple[Any, int] | Refused:
    """Return where the content of a function's argument is (its path, bytes or descriptor), and at which position.

    Taken are paths, an open io.BytesIO and a file opened by open(..., "rb").
    """
    path = file
    if not isinstance(file, str):
        try:
            if type(file) is io.BytesIO:
                return file.getvalue(), file.tell()
            if type(file) is io.BufferedReader and type(file.raw) is io.FileIO:
                return file.fileno(), file.tell()
        except (OSError, ValueError):  # closed, detached, or not seekable
            pass
        path = os.fspath(file) if isinstance(file, os.PathLike) and not hasattr(file, "read") else file
    if not isinstance(path, str):
        return Refused(f"it reads from a {type(file).__qualname__}")
    return (path, 0) if builtins.open is _io.open else Refused("open() was replaced")


# --- torch.load -------------------------------------------------------------------------------------------------------

_FORCED = b"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_by_default = bool(torch.serialization._default_to_weights_only(None))  # type: ignore[no-untyped-call]
_CPU = torch.device("cpu")
_environment = os.environ._data  # type: ignore[attr-defined]  # os.getenv costs a microsecond
_local = torch.serialization._serialization_tls
_registry = torch.serialization._package_registry
_cpu_deserialize = torch.serialization._cpu_deserialize
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._guards.TracingContext.try_get
_inference = torch.is_inference_mode_enabled


def load_torch(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Return what torch.load returns for the same arguments, or Refused.

    A file object is left where torch.load leaves it; one of a refusal is where it was. Nothing that a file names is
    looked up or called.
    """
    if pickle_module is not None or pickle_load_args:
        return Refused("it has arguments for unpickling")
    anywhere = map_location is not None
    if anywhere and not is_cpu(map_location):
        return Refused("its map_location= names a device")
    if not (weights_only is True or (weights_only is None and _by_default)) or _FORCED in _environment:
        return Refused("it may unpickle any object (weights_only=False)")
    if mmap is not None and mmap is not False:
        return Refused("it maps the file (mmap=)")
    why = unusual()
    if why is not None:
        return Refused(why)
    content = _content_of(f)
    if isinstance(content, Refused):
        return content
    where, start = content
    if isinstance(where, str):
        return Refused("a safetensors file") if where.endswith(".safetensors") else torch_loader.path(where, anywhere)
    found, end = (torch_loader.bytes if isinstance(where, bytes) else torch_loader.descriptor)(where, start, anywhere)
    if type(found) is not Refused:
        f.seek(end)
    return found


def is_cpu(location: Any) -> bool:
    return location == "cpu" if type(location) is str else type(location) is torch.device and location == _CPU


def modes_are_on() -> bool:
    """Return whether one of torch's modes sees what this thread calls of it."""
    return bool(_function_modes() or _dispatch_modes())


def unusual() -> str | None:
    """Return what of torch's state would make torch.load do something else, or None."""
    if modes_are_on():
        return "one of torch's modes is on"
    if _tracing() is not None or _inference():
        return "torch traces, or is in inference mode"
    if _local.skip_data:
        return "torch.serialization.skip_data is on"
    if _registry[0][2] is not _cpu_deserialize:
        return "torch.serialization.register_package was called for another device"
    return _Settings.unusual


class _Settings:
    unusual: str | None = None
    """What of torch's settings made torch.load do something else when the latest pass began, or None."""


def look_at_settings() -> None:
    """Take note of how torch is set to load. Reading a setting takes as long as a tenth of a file."""
    _Settings.unusual = None
    if torch.serialization.get_default_load_endianness() is not None:
        _Settings.unusual = "torch.serialization.set_default_load_endianness was called"
    elif config is not None and config.load.mmap:
        _Settings.unusual = "torch.utils.serialization.config.load.mmap is on"


def _view(base: torch.Tensor, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    """Return a view of the bytes of `base`, as torch._utils._rebuild_tensor makes it."""
    return torch.empty((0,), dtype=dtype).set_(base.untyped_storage(), offset, size, stride)


torch_loader = _native.TorchLoader(
    getattr(torch.Tensor, "__dlpack_c_exchange_api__", torch._C._from_dlpack),  # the latter before torch 2.10
    [getattr(torch, name, None) for name in _native.DTYPES],
    _view,
    torch._utils._rebuild_parameter,
    torch.Size,
    OrderedDict,
    torch._C._increment_version,
    Refused,
)


# --- numpy.load -------------------------------------------------------------------------------------------------------


def load_numpy(
    file: Any,
    mmap_mode: Any = None,
    allow_pickle: bool = False,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    *,
    max_header_size: int = 10000,
) -> Any:
    """Return what numpy.load returns for the same arguments, or Refused.

    A file object is left where numpy.load leaves it; one of a refusal is where it was.
    """
    if mmap_mode is not None:
        return Refused("it maps the file (mmap_mode=)")
    if fix_imports is not True or encoding != "ASCII" or max_header_size != 10000:
        return Refused("it has arguments for reading")
    if allow_pickle is not False and allow_pickle is not True:
        return Refused("its allow_pickle is not a bool")
    content = _content_of(file)
    if isinstance(content, Refused):
        return content
    where, start = content
    if isinstance(where, str):
        if where.endswith(".npz"):
            return _open_npz(where, allow_pickle=allow_pickle)
        found = numpy_loader.path(where)
    else:
        found = (numpy_loader.bytes if isinstance(where, bytes) else numpy_loader.descriptor)(where, start)
    if type(found) is Refused:
        return found
    array, shape, fortran_order, end = found
    if not isinstance(where, str):
        file.seek(start + end)
    return _shaped(array, shape, fortran_order)


def _shaped(array: Any, shape: tuple[int, ...], fortran_order: bool) -> Any:
    """Return the array in its shape, by what numpy.lib.format.read_array does to it."""
    before = shape[::-1] if fortran_order else shape
    if _assigns:
        array.shape = before
    else:
        array = array.reshape(before)
    return array.transpose() if fortran_order else array


def _assigns_shapes() -> bool:
    """Return whether this numpy gives an array its shape in place, so that no other array is its base."""
    file = io.BytesIO()
    np.save(file, np.zeros((1, 2)))
    file.seek(0)
    return np.lib.format.read_array(file).base is None


_assigns = _assigns_shapes()
numpy_loader = _native.NumpyLoader(
    np.empty,
    [np.dtype(name) if name in np.sctypeDict else None for name in _native.DTYPES],  # None: in no .npy file
    Refused,
)


class NpzArchive(np.lib.npyio.NpzFile):
    """A NpzFile whose uncompressed arrays the native core reads; zipfile opens the archive for all else."""

    fid: Any
    f: Any

    def __init__(self, file: io.BufferedReader, archive: Any, *, allow_pickle: bool) -> None:
        names = archive.names()
        self._archive, self._number = archive, {name: number for number, name in enumerate(names)}
        self._opened: Any = None
        self.files = [name.removesuffix(".npy") for name in names]
        self._files = dict(zip(self.files, names, strict=True)) | dict(zip(names, names, strict=True))
        self.allow_pickle, self.max_header_size = allow_pickle, 10000
        self.pickle_kwargs = {"encoding": "ASCII", "fix_imports": True}
        self.f = _numpys["BagObj"](self)
        self.fid = file

    @property
    def zip(self) -> Any:
        """The ZipFile, which is made when something asks for it."""
        if self._opened is None and self.fid is not None:
            self._opened = _numpys["zipfile_factory"](self.fid)
        return self._opened

    @zip.setter
    def zip(self, value: Any) -> None:
        self._opened = value

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            super().close()
        elif self.fid is not None:
            self.fid.close()
            self.fid = self.f = None

    def __getitem__(self, key: str) -> Any:
        number = self._number.get(self._files.get(key, ""))
        if number is not None and self.fid is not None and not self.fid.closed:
            found = numpy_loader.member(self._archive, number)
            if type(found) is not Refused:
                return _shaped(*found)
        return super().__getitem__(key)


_numpys: dict[str, Any] = np.lib.npyio.NpzFile.__init__.__globals__


@functools.cache
def _npz_refused() -> Refused | None:
    """Return why a NpzArchive would not be as this numpy's NpzFile, or None."""
    file = io.BytesIO()
    np.savez(file, x=np.zeros(1))
    file.seek(0)
    with np.lib.npyio.NpzFile(file) as theirs:
        known = "_files files allow_pickle max_header_size pickle_kwargs zip f"
        same = sorted(vars(theirs)) == sorted(known.split()) and vars(theirs)["_files"] == {
            "x": "x.npy",
            "x.npy": "x.npy",
        }
    return None if same else Refused("npz: a numpy whose NpzFile is another")


def _open_npz(path: str, *, allow_pickle: bool) -> Any:
    """Return what numpy.load returns for the path of an archive, or Refused."""
    if (refused := _npz_refused()) is not None:
        return refused
    try:
        file = open(path, "rb")  # noqa: SIM115
    except (OSError, ValueError):
        return Refused("the file cannot be opened")
    archive = numpy_loader.archive(file.fileno())
    if type(archive) is Refused:
        file.close()
        return archive
    return NpzArchive(file, archive, allow_pickle=allow_pickle)

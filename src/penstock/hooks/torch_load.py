"""torch.load, answered by the native core.

An answer is what ``torch.load`` would give: the same containers, values, dtypes, strides, storages and sharing. The
tensors' storages own their memory, which the native core allocates; torch cannot resize them, as it cannot those of
``torch.load``. Everything but torch.save's zip archives of dense tensors and plain Python values is refused.
"""

from __future__ import annotations

import _io
import builtins
import os
from collections import OrderedDict
from typing import Any

import torch
from torch.utils.serialization import config

from penstock import _native
from penstock.hooks.answers import Refused, content_of

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


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Return what torch.load returns for the same arguments, or Refused; see penstock.hooks.torch_load.

    A file object is left where torch.load leaves it; one of a refusal is where it was. Nothing that a file names is
    looked up or called.
    """
    if pickle_module is not None or pickle_load_args:
        return Refused("it is told how to unpickle")
    anywhere = map_location is not None
    if anywhere and not _is_cpu(map_location):
        return Refused("it is told a device")
    if not (weights_only is True or (weights_only is None and _by_default)) or _FORCED in _environment:
        return Refused("it may unpickle any object (weights_only=False)")
    if mmap is not None and mmap is not False:
        return Refused("it is told to map the file (mmap=)")
    why = _unusual()
    if why is not None:
        return Refused(why)
    if isinstance(f, str):
        return _load_path(f, anywhere)
    given = content_of(f)
    if given is None:
        path = os.fspath(f) if isinstance(f, os.PathLike) else None
        return (
            _load_path(path, anywhere) if isinstance(path, str) else Refused(f"it reads from a {type(f).__qualname__}")
        )
    content, start = given
    if isinstance(content, bytes):
        found, end = _loader.bytes(content, start, anywhere)
    else:
        found, end = _loader.descriptor(content, start, anywhere)
    if type(found) is not Refused:
        f.seek(end)
    return found


def _load_path(path: str, anywhere: bool) -> Any:
    if path.endswith(".safetensors"):
        return Refused("a safetensors file")
    if builtins.open is not _io.open:
        return Refused("open() was replaced")
    return _loader.path(path, anywhere)


def _is_cpu(location: Any) -> bool:
    return location == "cpu" if type(location) is str else type(location) is torch.device and location == _CPU


def _unusual() -> str | None:
    """Return what of torch's state would make torch.load do something else, or None."""
    if _function_modes() or _dispatch_modes():
        return "a mode of torch's is on"
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
    if config.load.endianness is not None:
        _Settings.unusual = "torch.serialization.set_default_load_endianness was called"
    elif config.load.mmap:
        _Settings.unusual = "torch.utils.serialization.config.load.mmap is on"


def _view(base: torch.Tensor, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    """Return a view of the bytes of `base`, as torch._utils._rebuild_tensor makes it."""
    return torch.empty((0,), dtype=dtype).set_(base.untyped_storage(), offset, size, stride)


_loader = _native.TorchLoader(
    torch.Tensor.__dlpack_c_exchange_api__,
    [getattr(torch, name) for name in _native.DTYPES],
    _view,
    torch._utils._rebuild_parameter,
    torch.Size,
    OrderedDict,
    torch._C._increment_version,
    Refused,
)

"""`Feed`, the one value that says how batches go to a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import torch

from penstock.errors import InvalidOption
from penstock.system.warn_user import warn_user

Device = str | int | torch.device
Decode = Literal["cpu", "gpu", "auto"]


@dataclass(frozen=True)
class Feed:
    """How batches go to a device: ``DataLoader(..., device=Feed("cuda", dtype=torch.bfloat16))``.

    Args:
        device: "cuda" means cuda:LOCAL_RANK where torchrun sets that, else the current device. Where this machine has
            no accelerator of that kind, batches stay on the CPU, with a warning. "cpu": they stay there.
        depth: batches that are copied ahead of the one in use.
        dtype: of floating-point tensors, converted on the device; None: unchanged.
        channels_last: 4-d tensors get torch.channels_last strides, on the device.
        transform: called with each batch on the device, on the stream of the copies and under torch.no_grad(); returns
            the batch that the loop gets. It may be an nn.Module or transforms of torchvision.
        decode: who decodes JPEG images, "cpu" or "gpu"; "auto": the GPU, where a decoder for it is installed. The
            GPU's pixels differ from Pillow's by a few of 255 steps.
        cache: "device" copies recognised in-memory datasets to the device when a pass begins: batches are gathered and
            augmented there, equal to the host's. Where they do not fit they stay on the host.

    Raises:
        InvalidOption: a device that torch does not know or that does not exist, and values out of range.
    """

    device: Device = "cuda"
    _: KW_ONLY
    depth: int = 2
    dtype: torch.dtype | None = None
    channels_last: bool = False
    transform: Callable[[Any], Any] | None = None
    decode: Decode = "cpu"
    cache: Literal["device"] | None = None

    def __post_init__(self) -> None:
        _parsed(self.device)
        depth, dtype = self.depth, self.dtype
        if type(depth) is not int or depth < 1:
            raise InvalidOption(f"depth={depth!r}: the number of batches copied ahead is 1 or more")
        if dtype is not None and not getattr(dtype, "is_floating_point", False):
            raise InvalidOption(f"dtype={dtype!r}: a floating-point dtype of torch, such as torch.bfloat16")
        if self.transform is not None and not callable(self.transform):
            raise InvalidOption(f"transform={self.transform!r}: something that is called with a batch")
        if self.decode not in get_args(Decode):
            raise InvalidOption(f"decode={self.decode!r}: one of 'cpu', 'gpu', 'auto'")
        if self.cache not in (None, "device"):
            raise InvalidOption(f"cache={self.cache!r}: 'device' or None")

    def resolve(self) -> torch.device:
        """Return the device, with its index, as it is for this process now. Raises InvalidOption."""
        device = _parsed(self.device)
        if device.type == "cpu":
            return torch.device("cpu")
        present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if present is None or present.type != device.type:
            warn_user(
                f"device={str(self.device)!r}: no {device.type} device is available, so that batches stay on the CPU"
            )
            return torch.device("cpu")
        count = torch.accelerator.device_count()
        if device.index is None:
            rank = os.environ.get("LOCAL_RANK", "")
            index = int(rank) if rank.isdecimal() and int(rank) < count else torch.accelerator.current_device_index()
            return torch.device(device.type, index)
        if device.index >= count:
            raise InvalidOption(
                f"device={str(self.device)!r}: this process sees {count} of them, {device.type}:0 to "
                f"{device.type}:{count - 1}"
            )
        return device


def feed_of(device: Device | Feed | None) -> Feed | None:
    """Return what a loader's device= means. Raises InvalidOption."""
    return device if device is None or isinstance(device, Feed) else Feed(device)


def _parsed(device: object) -> torch.device:
    if not isinstance(device, str | int | torch.device) or isinstance(device, bool):
        raise InvalidOption(f"device={device!r}: a name such as 'cuda' or 'cuda:1', a torch.device, or a penstock.Feed")
    fed = ("cpu", "cuda", "xpu", "mps", "mtia", torch._C._get_privateuse1_backend_name())
    refusal = f"device={str(device)!r}: batches can be fed to {', '.join(fed)}"
    if isinstance(device, str) and device.partition(":")[0] not in fed:  # torch's message lists what is refused here
        raise InvalidOption(refusal)
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise InvalidOption(f"device={device!r}: {str(error).splitlines()[0]}") from None
    if parsed.type not in fed:
        raise InvalidOption(refusal)
    return parsed

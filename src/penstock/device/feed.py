"""`Feed`, the one value that says how batches go to a device, and what a loader does with it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from penstock.errors import InvalidOption
from penstock.settings import Settings
from penstock.stats import Counters
from penstock.system.deferred import deferred
from penstock.system.warn_user import warn_user

if TYPE_CHECKING:
    from penstock.device import feeding, target as targets
    from penstock.device.copy_stream import CopyStream
    from penstock.device.feeding import Feeding, Sender
    from penstock.device.target import Target
    from penstock.plan import Plan
else:
    feeding, targets = deferred("penstock.device", "feeding", "target")

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


class DeviceFeed:
    """Finds the device of a loader when a pass begins, and makes the pass that brings batches to it. Not picklable."""

    def __init__(self) -> None:
        self._target: Target | None = None  # of the latest pass
        self._sender: Sender | None = None  # of the pass that uses an iterator which the loader keeps

    def begin(self, feed: Feed | None) -> Target | None:
        """Return the device of the pass that begins, None where batches stay in host memory; end the pass before.

        Raises InvalidOption.
        """
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.release()
        self._target = self._target_of(feed)
        return self._target

    def _target_of(self, feed: Feed | None) -> Target | None:
        if feed is None:
            return None
        device = feed.resolve()
        return self._target if self._target is not None and self._target.device == device else targets.Target(device)

    def feeding(
        self,
        batches: Any,
        feed: Feed,
        target: Target,
        stream: CopyStream | None,
        settings: Settings,
        plan: Plan,
        counters: Counters,
    ) -> Feeding[Any]:
        """Return the pass that brings batches to the device. counters: of the loader."""
        end = getattr(batches, "_shutdown_workers", None)
        made: Feeding[Any] = feeding.Feeding(
            batches,
            feed,
            target.device,
            stream,
            arithmetic=target.arithmetic(plan),
            in_thread=settings.num_workers > 0,
            end_source=None if settings.persistent_workers else end,
            counters=counters,
        )
        self._sender = made.sender if settings.persistent_workers else None
        return made

    def explain(self, feed: Feed | None, plan: Plan, *, replaces: bool) -> Iterator[str]:
        """Yield what explain() says of the device.

        plan: of the loader, of raw pixels where those are sent; replaces: bad samples are replaced.
        """
        target = self._quietly(feed)
        if feed is not None and target is not None:
            if target.sends:
                ahead = f"{feed.depth} batch{'es' * (feed.depth > 1)} ahead"
                way = f"one copy a field, from page-locked memory, on a separate stream, {ahead}"
            else:
                way = "batches stay in host memory" if target.device.type == "cpu" else "by plain copies"
            yield f"device   {target.device}: {way}"
            yield from target.explain(feed, plan, replaces=replaces)

    def sends(self, feed: Feed | None) -> bool:
        """Return whether a pass that began now would send its batches to an accelerator."""
        target = self._quietly(feed)
        return target is not None and target.sends

    def _quietly(self, feed: Feed | None) -> Target | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a device that is not there: the pass says it
            return self._target_of(feed)

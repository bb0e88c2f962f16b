"""Which arrays and tensors lie in memory that this process shares with its worker processes."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect
from functools import cached_property
from typing import Any

import numpy as np
import torch


class SharedMappings:
    """The memory that this process shares with its worker processes: its shared mappings, read when first needed."""

    @cached_property
    def _bounds(self) -> list[int]:
        """Beginnings and ends of the shared mappings, in ascending order."""
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            found = re.findall(r"(?m)^(\w+)-(\w+) ...s", maps.read())
        return [int(bound, 16) for bounds in found for bound in bounds]

    def hold(self, value: Any) -> bool:
        """Return whether an array, a tensor or an object of ctypes lies in shared memory."""
        if isinstance(value, torch.Tensor):
            if not has_storage(value) or value.untyped_storage().resizable():  # torch itself has allocated it
                return has_storage(value) and value.is_shared()  # type: ignore[no-untyped-call]
            address = value.data_ptr()
        elif isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            if value.flags.owndata:
                return False
            address = value.__array_interface__["data"][0]
        else:
            address = ctypes.addressof(value)
        return bisect(self._bounds, address) % 2 == 1


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one piece of the processor's memory: sparse, nested and opaque ones are not."""
    return tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested

"""Everything that torch.utils.data has, with Penstock's DataLoader: for programs that write `data.DataLoader`."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch.utils.data import *  # noqa: F403

from penstock.loader import DataLoader


def __getattr__(name: str) -> Any:
    """Return what torch.utils.data has under other names: its modules, and private ones."""
    return getattr(torch.utils.data, name)


def __dir__() -> list[str]:
    return dir(torch.utils.data)


__all__ = [*(name for name in torch.utils.data.__all__ if name != "DataLoader"), "DataLoader"]

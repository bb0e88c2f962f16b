"""What the package gives where its native core is not built (macOS, Windows): torch's loader as DataLoader."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any, NoReturn

import torch.utils.data

from penstock.errors import InvalidOption
from penstock.system.warn_user import warn_user

_COMPILED = ": pip install --no-binary penstock-loader penstock-loader compiles it" if sys.platform == "linux" else ""
CORE = f"the native core of Penstock, which runs on Linux and is not installed here ({sys.platform}{_COMPILED})"
#: The values of options that torch's loader does as well. cache= and cache_decoded= change no batch.
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "seed": (None,),
    "worker_method": (None, "process", "multiprocessing"),
    "share_dataset": (False,),
    "on_error": ("raise",),
    "device": (None, "cpu", torch.device("cpu")),
    "shard": (None,),
    "ledger": (None,),
}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch.utils.data.DataLoader, which takes those options of Penstock's that change no batch.

    Raises:
        InvalidOption: an option that needs the native core.
    """

    _said = False  # once a program

    def __init__(self, *args: Any, num_workers: int | None = None, **options: Any) -> None:
        for name, accepted in _ACCEPTED.items():
            if (value := options.pop(name, accepted[0])) not in accepted:
                raise InvalidOption(f"{name}={value!r} needs {CORE}: leave it out, or run this program on Linux")
        for name in ("cache", "cache_decoded", "snapshot_every_n_steps"):
            options.pop(name, None)
        if num_workers is not None:
            options["num_workers"] = num_workers
        super().__init__(*args, **options)

    def __iter__(self) -> Any:
        if not DataLoader._said and multiprocessing.parent_process() is None:
            DataLoader._said = True
            warn_user(f"penstock.DataLoader is torch's own loader without {CORE}", RuntimeWarning)
        return super().__iter__()

    def explain(self) -> str:
        return f"torch's loader, without {CORE}"


def cache_folder(path: object) -> None:
    """Take the folder, or None: torch's loader keeps no files in it."""


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"penstock.{name} needs {CORE}", name=f"penstock.{name}")

"""Which code is the user's own, and which is a library's: only what a user can change is worth a remark."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from typing import Any

#: Libraries by the names of their packages, wherever they are installed.
# fmt: off
_LIBRARIES = frozenset(
    [
        "PIL", "albumentations", "builtins", "cv2", "datasets", "ffcv", "h5py", "kornia", "lightning",
        "litdata", "lmdb", "monai", "numpy", "pandas", "penstock", "pytorch_lightning", "scipy", "skimage",
        "sklearn", "streaming", "timm", "torch", "torchaudio", "torchdata", "torchtext", "torchvision",
        "transformers", "webdataset",
    ]
)
# fmt: on
_FOLDERS = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if path
)


class Ownership:
    """Tells the user's own code from that of libraries.

    Args:
        root: an object of the user's. A package that its class is in counts as the user's, also where it is installed.
    """

    def __init__(self, root: object) -> None:
        name = _package(type(root).__module__)
        self._package = None if name in _LIBRARIES or name in sys.stdlib_module_names else name

    def of_class(self, kind: type) -> bool:
        """Return whether a class is the user's own."""
        return self._of_module(kind.__module__, None)

    def of_function(self, function: types.FunctionType) -> bool:
        """Return whether a function is the user's own."""
        return self._of_module(function.__module__, function.__code__.co_filename)

    def _of_module(self, name: Any, file: str | None) -> bool:
        if not isinstance(name, str):  # of a function that was made by hand
            name = "__main__"
        package = _package(name)
        if package in _LIBRARIES:
            return False
        if package in (self._package, "__main__"):
            return True
        if package in sys.stdlib_module_names:
            return False
        module = sys.modules.get(name)
        if file is None and module is not None:
            file = vars(module).get("__file__")
        return file is None or not _is_installed(os.path.realpath(file))


def _is_installed(path: str) -> bool:
    """Return whether a file lies where packages are installed, of this environment or of one below it."""
    return path.startswith(_FOLDERS) or not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))


def _package(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""

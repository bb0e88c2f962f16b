"""Whose code a file is: a user's own, or that of Python, of Penstock or of an installed library."""

from __future__ import annotations

import os
import sys

from penstock.system.warn_user import PACKAGE

#: Python's own library: typing makes a DataLoader[Any](...), threading and importlib run the code that makes others.
PYTHONS = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, "<frozen ")
#: Parts of the paths of installed libraries.
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library(file: str) -> bool:
    """Return whether a file is code of Penstock, of Python or of an installed library."""
    return file.startswith((PACKAGE, *PYTHONS)) or any(folder in file for folder in INSTALLED)


def is_users(kind: type) -> bool:
    """Return whether a class is the user's own code, and not of a library: what a user can change."""
    module = str(kind.__module__ or "__main__")  # None: of one made by hand
    if module == "__main__" or module in sys.builtin_module_names:
        return module == "__main__"
    file = file_of(module)
    return file is None or not is_library(os.path.realpath(file))


def file_of(module: str) -> str | None:
    """Return the file of a module that is imported, None where it has none."""
    return getattr(sys.modules.get(module), "__file__", None)

"""The other project on the package index: its distribution and its folder are named `penstock`, as this folder is."""

from __future__ import annotations

import multiprocessing
import os
import warnings

#: What is wrong where both are installed, and what to do.
SENTENCE = (
    "the distribution penstock, another project, is installed into the same folder as penstock-loader, and each "
    "overwrites files of the other: pip uninstall penstock penstock-loader, then pip install penstock-loader"
)


def shares(file: str) -> bool:
    """Return whether the distribution `penstock` wrote files into the package whose `__init__.py` this is.

    One listing of the folder above finds it: 0.9 ms for 800 entries, where importlib.metadata takes 40 ms to import.
    """
    above = os.path.dirname(os.path.dirname(file))
    try:
        for name in os.listdir(above):
            if name.startswith("penstock-") and name.endswith(".dist-info"):
                with open(os.path.join(above, name, "RECORD"), encoding="utf-8") as record:
                    if any(line.startswith("penstock/") for line in record):
                        return True
    except OSError:  # a package in a zip file, or a distribution without a record
        pass
    return False


def warn(file: str) -> None:
    """Warn once a program, not in its worker processes, where both distributions wrote into one folder."""
    if shares(file) and multiprocessing.parent_process() is None:
        warnings.warn(SENTENCE, RuntimeWarning, stacklevel=3)

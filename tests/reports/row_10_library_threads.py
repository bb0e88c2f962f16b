"""Reports: zarrs/zarrs-python#171, Lightning-AI/litData#823, pola-rs/polars#24162, scverse/anndata#2021,
m2lines/Samudra#782.

The program has used a library with a pool of threads; a forked worker has the library's locks and none of its threads,
and waits for ever at its first sample.

After 30 seconds without a first answer a warning names the workers that wait for a lock, the sample, the library and
the line, and says what to do. The script's library is one of its own, with a lock that its thread holds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from torch.utils.data import Dataset

from tests.reports.report import Found, found_in_child

LIBRARY = """
import threading, time
_pool = threading.Lock()
def _work():
    with _pool:
        time.sleep(3600)
def begin():
    threading.Thread(target=_work, daemon=True).start()
    time.sleep(0.2)
def decode(index):
    with _pool:
        return index
"""


class Decoded(Dataset[Any]):
    def __init__(self, library: Any) -> None:
        self.decode = library.decode

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(self.decode(index))


def installed(folder: str) -> Any:
    """Return a library as one that is installed in a folder of packages."""
    place = Path(folder) / "site-packages" / "threadpooled"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("threadpooled", place / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def passes(loader: Any, seconds: float) -> Found:
    """Return what the loader says within so many seconds of a pass that hangs."""
    with tempfile.TemporaryDirectory() as folder:
        library = installed(folder)
        library.begin()
        with (
            warnings.catch_warnings(record=True) as caught,
            mock.patch("penstock.carriers.worker_processes._SILENT", min(seconds / 6, 30.0)),
            mock.patch("penstock.carriers.worker_processes._LOOK", 0.2),
        ):
            warnings.simplefilter("always")
            with contextlib.suppress(RuntimeError):
                next(iter(loader(Decoded(library), num_workers=2, timeout=seconds)))
    texts = [str(one.message) for one in caught]
    said = next((text.partition(",")[0] for text in texts if "for a lock" in text and "threadpooled" in text), "")
    return Found(int(not said), 1, "hanging passes of which nothing is said", said)


def trouble(loader: Any, *, short: bool) -> Found:
    seconds = 6.0 if short else 60.0
    return found_in_child(partial(passes, loader, seconds), seconds + 20, "hanging passes of which nothing is said")


def answered(found: Found) -> bool:
    return "for a lock" in found.said

"""Reports: mehta-lab/VisCy#417, czbiohub-sf/iohub#408, HannesStark/boltzgen#40, zarr-developers/zarr-python#1218,
numpy/numpy#18124.

A zip, tar or HDF5 file that `__init__` opens is shared by all worker processes after the fork, with its position: its
bytes are read from wrong places (BadZipFile, or wrong data in silence).

The bytes are the same as in torch's loader; a warning as the first pass begins names the attribute and the lines that
mend it. Threads refuse such a dataset.
"""

from __future__ import annotations

import os
import tempfile
import warnings
import zipfile
from typing import Any

from torch.utils.data import Dataset

from tests.reports.report import Found


class Zipped(Dataset[Any]):
    def __init__(self, path: str, *, opens_late: bool = False) -> None:
        self.path = path
        self.file: zipfile.ZipFile | None = None if opens_late else zipfile.ZipFile(path)

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> bool:
        if self.file is None:
            self.file = zipfile.ZipFile(self.path)
        try:
            return self.file.read(f"{index}") == bytes([index % 251]) * 20_000
        except zipfile.BadZipFile:
            return False


def trouble(loader: Any, *, short: bool) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.zip")
        with zipfile.ZipFile(path, "w") as file:
            for index in range(400):
                file.writestr(f"{index}", bytes([index % 251]) * 20_000)
        mended = loader(Zipped(path, opens_late=True), batch_size=10, num_workers=4)
        assert all(bool(batch.all()) for batch in mended)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right = sum(int(batch.sum()) for batch in loader(Zipped(path), batch_size=10, num_workers=4))
    said = next((str(one.message) for one in caught if "dataset.file" in str(one.message)), "")
    return Found(400 - right, 400, "samples with a bad checksum", said.partition(",")[0])


def answered(found: Found) -> bool:
    return found.said.startswith("dataset.file")

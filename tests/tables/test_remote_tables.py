"""penstock.Table of object stores: the rows of the files, fetched row group by row group, each once."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.errors import ChangedObject, InvalidOption, MissingObject
from tests.object_server import ObjectServer
from tests.s3_server import serve
from tests.same import assert_same

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")
pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

ROWS, GROUP = 120, 20


def table() -> Any:
    return pa.table({"id": range(ROWS), "text": [f"text {row}" for row in range(ROWS)], "x": np.arange(ROWS) / 7})


def parquet(rows: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=GROUP)
    return sink.getvalue()


def ipc_file(rows: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, 30)
    return sink.getvalue()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """An S3 bucket with three files of Parquet and one of Arrow."""
    with serve() as s3:
        for number in range(3):
            s3.put(f"rows/{number}.parquet", parquet(table().slice(number * 40, 40)))
        s3.put("more/rows.arrow", ipc_file(table()))
        s3.put("more/_ignored.parquet", b"")
        yield s3


@pytest.mark.parametrize("name", ["rows", "rows/*.parquet", "**/[012].parquet", "more/rows.arrow", "more"])
def test_rows_are_those_of_the_files(name: str, bucket: Any, tmp_path: Path) -> None:
    samples = penstock.Table(f"{bucket.url}/{name}", cache_folder=tmp_path)
    assert len(samples) == ROWS
    for index in (0, 59, ROWS - 1):
        assert_same(
            samples[index],
            {"id": torch.tensor(index), "text": f"text {index}", "x": torch.tensor(index / 7, dtype=torch.float64)},
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}],
    ids=["here", "processes", "threads"],
)
def test_each_row_group_is_fetched_once(options: dict[str, Any], bucket: Any, tmp_path: Path) -> None:
    samples = penstock.Table(f"{bucket.url}/rows", window=2, cache_folder=tmp_path)
    bucket.requests.clear()
    loader = penstock.DataLoader(samples, batch_size=7, shuffle=True, seed=1, **options)
    ids = torch.cat([batch["id"] for batch in loader]).tolist()
    assert sorted(ids) == list(range(ROWS))
    assert ids[:GROUP] != sorted(ids[:GROUP])
    assert "within a window of 2 row groups" in loader.explain()
    assert sum(bucket.requests.values()) == ROWS // GROUP
    again = penstock.DataLoader(samples, batch_size=7, shuffle=True, seed=1)
    assert torch.cat([batch["id"] for batch in again]).tolist() == ids
    assert sum(bucket.requests.values()) == ROWS // GROUP


def test_filters_read_their_columns_alone(bucket: Any, tmp_path: Path) -> None:
    samples = penstock.Table(f"{bucket.url}/rows", ["text"], [("id", ">=", 100)], cache_folder=tmp_path)
    assert [sample["text"] for sample in map(samples.__getitem__, range(20))] == [
        f"text {row}" for row in range(100, 120)
    ]
    assert samples.name(0) == "2.parquet:20"


def test_objects_that_are_not_there(bucket: Any) -> None:
    with pytest.raises(MissingObject, match=r"rows/7\.parquet"):
        penstock.Table(f"{bucket.url}/rows/7.parquet")
    with pytest.raises(InvalidOption, match="no file matches"):
        penstock.Table(f"{bucket.url}/rows/*.arrow")
    with pytest.raises(InvalidOption, match="contains no files that end in"):
        penstock.Table(f"{bucket.url}/nothing")


def test_streams_of_stores_are_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())
    with ObjectServer({"rows.arrows": sink.getvalue()}) as server, pytest.raises(InvalidOption, match="IPC stream"):
        penstock.Table(f"{server.url}/rows.arrows", cache_folder=tmp_path)


def test_an_object_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    """Also one of the same length: the store's ETag tells."""
    with ObjectServer({"rows.parquet": parquet(table())}) as server:
        samples = penstock.Table(f"{server.url}/rows.parquet", cache_folder=tmp_path)
        assert samples[0]["text"] == "text 0"
        data = server.objects["rows.parquet"]
        server.objects["rows.parquet"] = data.replace(b"text 11", b"text 1x")
        with pytest.raises(ChangedObject, match="was replaced since the dataset was opened"):
            samples[ROWS - 1]

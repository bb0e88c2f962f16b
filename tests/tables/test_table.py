"""penstock.Table: the rows that pyarrow reads, of every type, format and compression; its order; its arguments."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate
from torchvision.transforms import v2

import penstock
from penstock import testing
from penstock.errors import CorruptSample, InvalidOption
from tests.data import photo_files
from tests.differential.values import describe
from tests.forking import assert_in_child
from tests.same import assert_same

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")
feather: Any = pytest.importorskip("pyarrow.feather", reason="pyarrow has no Feather")
pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

from tests.tables.columns import INNER, value  # noqa: E402

ROWS = 57
#: Types that tables hold, lists and structs of them among these.
KINDS = [
    *(one for one in INNER if not pa.types.is_null(one)),
    *(pa.list_(one) for one in (pa.int32(), pa.bool_(), pa.float16(), pa.string(), pa.list_(pa.int64()))),
    pa.large_list(pa.float32()), pa.list_(pa.float32(), 3), pa.map_(pa.string(), pa.int64()),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
]  # fmt: skip


def column(kind: Any, seed: int) -> Any:
    """Return values of a type, none of them null."""
    draw = Random(seed)
    if pa.types.is_map(kind):
        return pa.array([[(f"k{row}", row), ("k", 2)] for row in range(ROWS)], kind)
    return pa.array([value(draw, kind, 0, None) for _ in range(ROWS)], kind)


def strings(number: int, seed: int) -> list[str]:
    return [f"é€𝄞{seed} " * (row % 4) + str(row) for row in range(number)]


def expected(table: Any) -> list[dict[str, Any]]:
    """Return the samples of a table: what pyarrow gives, numbers and lists of them as tensors of their dtype."""

    def sample_value(kind: Any, value: Any) -> Any:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        number = kind.value_type if lists else kind
        if pa.types.is_integer(number) or pa.types.is_floating(number) or pa.types.is_boolean(number):
            dtype = torch.from_numpy(np.empty(0, number.to_pandas_dtype())).dtype
            return torch.tensor(value, dtype=dtype)
        return value

    return [
        {name: sample_value(table.schema.field(name).type, value) for name, value in row.items()}
        for row in table.to_pylist()
    ]


def write_parquet(table: Any, path: Path, **options: Any) -> None:
    pq.write_table(table, path, **{"row_group_size": 11, **options})


def write_ipc(table: Any, path: Path, *, stream: bool = False, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema, options=options) as writer:
        writer.write_table(table, 11)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "snappy": write_parquet,
    "plain": lambda table, path: write_parquet(table, path, compression="none", use_dictionary=False),
    "zstd, checksums": lambda table, path: write_parquet(
        table, path, compression="zstd", write_page_checksum=True, data_page_version="2.0"
    ),
    "file": write_ipc,
    "stream": lambda table, path: write_ipc(table, path, stream=True),
    "lz4 file": lambda table, path: write_ipc(table, path, compression="lz4"),
    "zstd stream": lambda table, path: write_ipc(table, path, stream=True, compression="zstd"),
    "feather": lambda table, path: feather.write_feather(table, path, chunksize=11),
}


def written(folder: Path, table: Any, write: Callable[[Any, Path], None] = write_parquet, files: int = 2) -> Path:
    """Write a table into the files 0, 1, ... of a folder, each with about as many rows."""
    folder.mkdir(exist_ok=True, parents=True)
    cuts = [len(table) * number // files for number in range(files + 1)]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        write(table.slice(begin, end - begin), folder / f"{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("numbers"), number_table(), files=3)


def number_table(rows: int = 200) -> Any:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "id": np.arange(rows),
            "x": rng.standard_normal(rows).astype("f4"),
            "label": rng.integers(0, 9, rows).astype("i4"),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(rows * 3)), 3),
        }
    )


class Rows(Dataset[Any]):
    """The rows of a table as a plain dataset: the oracle of the loader."""

    def __init__(self, table: Any) -> None:
        self.rows = expected(table)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def rows_of(samples: Any, indices: Any) -> list[dict[str, Any]]:
    """Return samples of a table, gathered at once."""
    found: list[dict[str, Any]] = samples.__getitems__(list(indices))
    return found


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_samples_are_the_rows_that_pyarrow_reads(writer: str, tmp_path: Path) -> None:
    """All types that the format holds, in two files of three parts each, one by one and by batches."""
    parquet = writer in ("snappy", "plain", "zstd, checksums")
    table = pa.table({f"{number}": column(kind, number) for number, kind in enumerate(KINDS)})
    folder = written(tmp_path / "data", table, WRITERS[writer])
    read = pq.read_table(folder) if parquet else table  # Parquet gives date64 as date32
    samples = penstock.Table(folder)
    wanted = expected(read.select(table.column_names))
    assert len(samples) == ROWS
    assert samples.columns == table.column_names
    order = np.random.default_rng(0).permutation(ROWS).tolist()
    assert describe(rows_of(samples, order)) == describe([wanted[index] for index in order])
    for index in (0, -1, 30):
        assert describe(samples[index]) == describe(wanted[index])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 12 photos, as bytes and as Hugging Face writes them, in two files of several row groups."""
    folder = tmp_path_factory.mktemp("photos")
    data = [file.read_bytes() for file in sorted(photo_files(folder / "files", 12).rglob("*.jpg"))]
    structs = [{"bytes": one, "path": None} for one in data]
    table = pa.table({"label": range(len(data)), "image": structs, "raw": data})
    return written(folder / "data", table, lambda table, path: write_parquet(table, path, row_group_size=4))


FIXED = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
RANDOM = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)])


@pytest.mark.parametrize("image", ["image", "raw"])
@pytest.mark.parametrize("transform", [FIXED, RANDOM], ids=["fixed", "random"])
@pytest.mark.parametrize("filters", [None, [("label", ">", 3)]], ids=["all", "filtered"])
def test_images_are_read_natively(image: str, transform: Any, filters: Any, photos: Path) -> None:
    """The batches are those of the dataset's own samples, with the same draws, in the order of the columns."""
    samples = penstock.Table(photos, columns=["label", image], filters=filters, image=image, transform=transform)
    assert list(samples[0]) == [image, "label"]
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 2}
    native = penstock.DataLoader(samples, **options)
    assert "JPEG decoded" in native.explain()
    python = penstock.DataLoader(samples, **options, worker_method="process")
    assert_same(list(native), list(python))
    assert not native.stats().read_by_python


def test_decoder_states_are_kept_of_photos_in_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.jpeg_index._LEFT", 0.0)
    rng, photos = np.random.default_rng(0), []
    for _ in range(40):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (384, 480, 3), np.uint8)).save(file, "jpeg", quality=50)
        photos.append(file.getvalue())
    folder = written(tmp_path / "data", pa.table({"photo": photos, "label": range(40)}))
    samples = penstock.Table(folder, image="photo", transform=RANDOM)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2}
    native, python = (
        penstock.DataLoader(samples, **options),
        penstock.DataLoader(samples, **options, worker_method="thread", collate_fn=as_is),
    )
    for _ in range(2):
        assert_same(list(native), list(python))
    assert "index    " in native.explain()


def as_is(samples: Any) -> Any:
    return default_collate(list(samples))


def test_images_without_a_known_transform(photos: Path) -> None:
    samples = penstock.Table(photos, columns=["image"], image="image", transform=np.asarray)
    files = sorted((photos.parent / "files").rglob("*.jpg"))
    loader = penstock.DataLoader(samples, batch_size=4, num_workers=2, collate_fn=list)
    for sample, file in zip((one for batch in loader for one in batch), files, strict=True):
        np.testing.assert_array_equal(sample["image"], np.asarray(Image.open(file).convert("RGB")))
    assert penstock.Table(photos, image="raw")[0]["raw"].mode == "RGB"


def test_a_damaged_image_is_named_and_replaced(tmp_path: Path, photos: Path) -> None:
    table = pq.read_table(photos).to_pydict()
    table["raw"][5] = table["raw"][5][:100]
    table["raw"][7] = None
    folder = written(tmp_path / "data", pa.table({"raw": table["raw"], "label": table["label"]}), files=1)
    samples = penstock.Table(folder, image="raw", transform=FIXED)
    with pytest.raises(CorruptSample, match=r"sample '0\.parquet:5'.*image in column 'raw' cannot be decoded"):
        list(penstock.DataLoader(samples, batch_size=3))
    loader = penstock.DataLoader(samples, batch_size=3, seed=1, on_error=penstock.Replace(max_share=0.5))
    labels = torch.cat([batch["label"] for batch in loader]).tolist()
    assert len(labels) == 12 and not {5, 7} & set(labels)


def test_a_transform_gets_the_dictionary(numbers: Path) -> None:
    found: Any = penstock.Table(numbers, transform=sorted)[3]
    assert found == ["id", "label", "vector", "x"]


# --- nulls ------------------------------------------------------------------------------------------------------------


def test_a_null_names_row_column_and_file(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, None, 4], "text": ["x", None, "y", "z"], "tokens": [[1], [2], [3], [None, 4]]})
    folder = written(tmp_path / "data", table)
    with pytest.raises(
        CorruptSample, match=r"sample '1\.parquet:0' \(row 0 of .*1\.parquet\): column 'a' holds a null"
    ):
        rows_of(penstock.Table(folder), [0, 2])
    with pytest.raises(CorruptSample, match=r"row 1 of .*0\.parquet.*'text' holds a null.*fill=\{'text': "):
        penstock.Table(folder, columns=["text"])[1]
    with pytest.raises(CorruptSample, match=r"row 1 of .*1\.parquet\): column 'tokens' holds a null"):
        penstock.Table(folder, columns=["tokens"])[3]
    filled = penstock.Table(folder, fill={"a": -1, "text": "", "tokens": 0})
    assert [int(row["a"]) for row in rows_of(filled, range(4))] == [1, 2, -1, 4]
    assert [row["text"] for row in rows_of(filled, range(4))] == ["x", "", "y", "z"]
    assert filled[3]["tokens"].tolist() == [0, 4]


@pytest.mark.parametrize("writer", ["snappy", "file"])
def test_fill_for_all_columns_that_can_hold_it(writer: str, tmp_path: Path) -> None:
    table = pa.table({"a": [1.5, None], "b": pa.array([None, 2], pa.int8()), "c": ["x", "y"], "d": [None, [1, 2]]})
    samples = penstock.Table(written(tmp_path / "data", table, WRITERS[writer], 1), fill=0)
    filled = pa.table({"a": [1.5, 0], "b": pa.array([0, 2], pa.int8()), "c": ["x", "y"], "d": [[], [1, 2]]})
    assert_same(rows_of(samples, [0, 1]), expected(filled))
    batch = next(iter(penstock.DataLoader(penstock.Table(tmp_path / "data", columns=["a", "b"], fill=0), batch_size=2)))
    assert batch["a"].tolist() == [1.5, 0] and batch["b"].tolist() == [0, 2]


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["snappy", "file", "lz4 file"])
@pytest.mark.parametrize(
    "filters",
    [
        [("label", "==", 3)],
        [("label", "in", [1, 2]), ("x", ">", 0.0)],
        [[("label", "==", 1)], [("id", "<", 30)]],
        [("id", ">=", 100)],
    ],
)
def test_filters_keep_the_rows_that_pyarrow_keeps(writer: str, filters: Any, tmp_path: Path) -> None:
    table = number_table()
    folder = written(tmp_path / "data", table, WRITERS[writer], 3)
    wanted = expected(table.filter(pq.filters_to_expression(filters)))
    for given in (filters, pq.filters_to_expression(filters)):
        samples = penstock.Table(folder, filters=given)
        assert len(samples) == len(wanted)
        assert_same(rows_of(samples, range(len(samples))), wanted)
    other = penstock.Table(folder, columns=["x"], filters=filters)
    assert_same(other[len(other) - 1]["x"], wanted[-1]["x"])
    ids = torch.cat([batch["id"] for batch in penstock.DataLoader(samples, batch_size=7)])
    assert ids.tolist() == [int(row["id"]) for row in wanted]
    file, row = samples.name(len(samples) - 1).split(":")
    assert int(row) + [0, 66, 133][int(file[0])] == int(wanted[-1]["id"])


def test_row_groups_without_a_row_that_is_kept_are_not_decoded(numbers: Path) -> None:
    samples = penstock.Table(numbers, columns=["x"], filters=[("id", "<", 5)])
    assert len(samples.row_groups.shards) == 1
    assert_same(rows_of(samples, range(5)), [{"x": row["x"]} for row in expected(number_table())[:5]])


# --- the loader -------------------------------------------------------------------------------------------------------

LOADERS: dict[str, dict[str, Any]] = {
    "in sequence": {},
    "shuffled": {"shuffle": True},
    "seeded": {"shuffle": True, "seed": 5},
    "workers": {"shuffle": True, "seed": 5, "num_workers": 2},
    "processes": {"shuffle": True, "seed": 5, "num_workers": 2, "worker_method": "process"},
    "threads": {"shuffle": True, "seed": 5, "num_workers": 2, "worker_method": "thread"},
}


NUMBERS, MORE = ["label", "id", "vector"], ["x", "text", "pair"]
#: Options of a Table, and what explain() says of it with workers.
READ: dict[str, tuple[dict[str, Any], str]] = {
    "numbers": ({"columns": NUMBERS}, "gather  200 rows of 3 files: label int32[]; id int64[]; vector float64[3]"),
    "texts and lists": ({"columns": [*NUMBERS, *MORE]}, "gather, as Table.__getitem__ indexes"),
    "filtered": ({"filters": [("id", ">", 20)], "columns": [*NUMBERS, *MORE]}, "gather, as Table.__getitem__ indexes"),
    "in a window": ({"window": 3, "columns": [*NUMBERS, *MORE]}, "within a window of 3 row groups"),
    "structs in a window": ({"window": 3}, "within a window of 3 row groups"),
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mixed"), mixed_table(), files=3)


def mixed_table() -> Any:
    table = number_table().append_column("text", pa.array(strings(200, 3)))
    table = table.append_column("pair", pa.array([[row, row + 1] for row in range(200)], pa.list_(pa.int16())))
    return table.append_column("struct", pa.array([{"a": row} for row in range(200)]))


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("read", READ)
def test_batches_are_those_of_the_rows(read: str, options: dict[str, Any], mixed: Path) -> None:
    given, said = READ[read]
    samples = penstock.Table(mixed, **given)
    rows = Rows(mixed_table().select(samples.columns))
    loader = penstock.DataLoader(samples, batch_size=16, **options)
    torch.manual_seed(0)
    ours = list(loader)
    order = torch.cat([batch["id"] for batch in ours]).tolist()
    assert sorted(order) == list(range(200 - len(samples), 200))
    assert_same(
        ours, [default_collate([rows[index] for index in order[at : at + 16]]) for at in range(0, len(order), 16)]
    )
    if "window" not in given:  # it is in torch's order
        torch.manual_seed(0)
        plain = {**options, "num_workers": 0, "worker_method": None, "batch_size": None}
        ids: Any = range(200 - len(samples), 200)
        assert order == [int(one) for one in penstock.DataLoader(ids, **plain)]
    if options.get("num_workers") and "worker_method" not in options:
        assert said in loader.explain()


def test_subsets_and_concatenations(numbers: Path) -> None:
    some = Subset(penstock.Table(numbers), [5, 3, 199])
    two: Any = ConcatDataset([penstock.Table(numbers), penstock.Table(numbers)])
    for samples in (some, two):
        torch.manual_seed(2)
        loader = penstock.DataLoader(samples, batch_size=16, shuffle=True)
        ours = list(loader)
        torch.manual_seed(2)
        assert_same(ours, list(DataLoader(samples, batch_size=16, shuffle=True)))
        assert "gather  200 rows" in loader.explain()


def test_a_subclass_makes_its_samples(numbers: Path) -> None:
    class Labels(penstock.Table):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)["label"]

    wanted = [row["label"] for row in expected(number_table())]
    for workers in (0, 2):
        loader = penstock.DataLoader(Labels(numbers), batch_size=50, num_workers=workers)
        assert_same(torch.cat(list(loader)), torch.stack(wanted))


def test_lists_of_different_lengths_are_torchs_error(tmp_path: Path) -> None:
    table = pa.table({"tokens": [[1], [1, 2]] * 8})
    loader = penstock.DataLoader(penstock.Table(written(tmp_path / "data", table)), batch_size=4)
    with pytest.raises(RuntimeError, match=r"stack expects each tensor to be equal size|have shape"):
        list(loader)


def test_other_rows_are_refused_by_a_state(numbers: Path, tmp_path: Path) -> None:
    loader = penstock.DataLoader(penstock.Table(numbers), batch_size=8, shuffle=True, seed=3)
    next(iter(loader))
    state = loader.state_dict()
    other = penstock.DataLoader(penstock.Table(numbers, filters=[("id", "<", 200)]), batch_size=8, shuffle=True, seed=3)
    with pytest.raises(penstock.DatasetChanged):
        other.load_state_dict(state)


def test_a_window_of_row_groups(numbers: Path) -> None:
    samples = penstock.Table(numbers, window=2)
    ids = torch.cat([batch["id"] for batch in penstock.DataLoader(samples, batch_size=5, shuffle=True, seed=3)])
    first = {samples.locate(np.array([index]))[0].item() for index in ids.tolist()[:10]}
    assert len(first) <= 3


def test_what_does_not_fit_into_the_cache_is_read_in_a_window(tmp_path: Path, numbers: Path) -> None:
    samples = penstock.Table(numbers, cache_folder=tmp_path / "cache", cache_limit=3000)
    assert samples.in_blocks
    loader = penstock.DataLoader(samples, batch_size=5, shuffle=True, seed=3, num_workers=2)
    assert sorted(torch.cat([batch["id"] for batch in loader]).tolist()) == list(range(200))
    with pytest.raises(InvalidOption, match="does not hold a window of 8 row groups"):
        penstock.Table(numbers, cache_folder=tmp_path / "cache", cache_limit=3000, window=8)
    with pytest.raises(InvalidOption, match="does not hold a window of 1 row group "):
        penstock.Table(numbers, cache_folder=tmp_path / "cache", cache_limit=300)


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 2}, {"columns": ["id", "text"]}, {"filters": [("id", ">", 30)]}],
    ids=["numbers", "window", "texts", "filters"],
)
def test_ranks_workers_and_resumes(options: dict[str, Any], tmp_path: Path) -> None:
    table = number_table(120).append_column("text", pa.array(strings(120, 3)))
    names = {"columns": ["id", "x"], **options}
    samples = penstock.Table(written(tmp_path / "data", table), **names)

    def make(**more: Any) -> penstock.DataLoader[Any]:
        return penstock.DataLoader(samples, **{"batch_size": 8, "shuffle": True, "seed": 3, **more})

    testing.assert_each_sample_once(make, ranks=(1, 3), workers=(0,))
    testing.assert_worker_invariant(make, workers=(0, 2))
    testing.assert_resume_exact(make, stops=3, workers=(0,), ranks=(1, 2))


def test_a_damaged_row_group_is_replaced(tmp_path: Path) -> None:
    """Its rows are bad samples, whether all row groups are read as one or in a window."""
    table = pa.table({"id": np.arange(60), "text": strings(60, 0)})
    folder = written(
        tmp_path / "data",
        table,
        lambda table, path: write_parquet(
            table, path, compression="none", write_page_checksum=True, use_dictionary=False
        ),
        files=1,
    )
    path = folder / "0.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(2).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(data)
    windows: list[dict[str, Any]] = [{}, {"window": 2}]
    for options in windows:
        for workers in (0, 2):
            samples = penstock.Table(folder, cache_folder=tmp_path / "cache", **options)
            with pytest.raises(CorruptSample, match=r"0\.parquet, row group 2 is not readable as Parquet.*CRC"):
                list(penstock.DataLoader(samples, batch_size=5, shuffle=True, num_workers=workers))
            replace = penstock.Replace(max_share=0.5)
            loader = penstock.DataLoader(
                samples, batch_size=5, shuffle=True, seed=1, on_error=replace, num_workers=workers
            )
            ids = torch.cat([batch["id"] for batch in loader]).tolist()
            assert len(ids) == 60 and not set(range(22, 33)) & set(ids)


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_table_is_pickled_and_forked(numbers: Path) -> None:
    samples = penstock.Table(numbers, filters=[("id", ">", 3)], fill={"label": 0})
    wanted = rows_of(samples, [1, 150])
    assert_same(rows_of(pickle.loads(pickle.dumps(samples)), [1, 150]), wanted)

    def same() -> None:
        assert_same(rows_of(samples, [1, 150]), wanted)

    assert_in_child(same)


def test_a_row_group_is_decoded_once(numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []
    decode = pq.ParquetFile.iter_batches

    def counted(self: Any, *given: Any, row_groups: Any, **options: Any) -> Any:
        decoded.extend(row_groups)
        return decode(self, *given, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    for _ in range(2):
        samples = penstock.Table(numbers, cache_folder=tmp_path / "cache")
        for _ in range(2):
            list(penstock.DataLoader(samples, batch_size=8, shuffle=True))
        assert sorted(decoded) == sorted(part.number for part in samples.row_groups.shards)


def test_a_damaged_file_of_the_cache_is_made_anew(numbers: Path, tmp_path: Path) -> None:
    wanted = rows_of(penstock.Table(numbers, cache_folder=tmp_path), range(200))
    for file in tmp_path.glob("*.shard"):
        file.write_bytes(file.read_bytes()[:100])
    assert_same(rows_of(penstock.Table(numbers, cache_folder=tmp_path), range(200)), wanted)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["labl"]}, "has no column 'labl': do you mean 'label'"),
        ({"columns": []}, "a list of names of columns"),
        ({"columns": "label"}, "a list of names of columns"),
        ({"filters": [("labl", "==", 1)]}, "No match for FieldRef"),
        ({"filters": [("label", "=", 1, 2)]}, "filters="),
        ({"filters": 7}, "filters="),
        ({"filters": [("label", "==", "text")]}, "filters="),
        ({"filters": [("label", ">", 100)]}, "no row meets filters="),
        ({"fill": {"label": "text"}}, "the column holds int32"),
        ({"fill": {"labl": 1}}, "names a column 'labl'"),
        ({"fill": object()}, "is a value of no column"),
        ({"window": 0}, "window=0"),
        ({"cache_limit": 0}, "cache_limit=0"),
        ({"image": "photo"}, "is not one of the columns"),
        ({"image": "label"}, "encoded images are binary"),
        ({"transform": 3}, "not callable"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str, numbers: Path) -> None:
    with pytest.raises(InvalidOption, match=said):
        penstock.Table(numbers, **options)


def test_without_pyarrow(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables.table.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "penstock-loader\[tables\]"'):
        penstock.Table(numbers)


def test_which_files(numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(numbers.parent)
    data: Any
    for data in (f"{numbers.name}/*.parquet", str(numbers), numbers, sorted(numbers.iterdir()), [numbers]):
        assert len(penstock.Table(data)) == 200
    assert len(penstock.Table(numbers / "1.parquet")) == 67
    with pytest.raises(FileNotFoundError, match=r"do you mean '1\.parquet'"):
        penstock.Table(numbers / "1.parqet")
    (tmp_path / "empty").mkdir()
    for data, said in (
        (tmp_path / "empty", "contains no files that end in"),
        (f"{tmp_path}/*.parquet", "no file matches"),
        ([], "a path, a glob, a folder"),
        (7, "a path, a glob, a folder"),
        ([7], "is not a path"),
        ("s3:/bucket/x.parquet", "not a URL"),
        ("s4://bucket/x.parquet", "such URLs begin with s3"),
    ):
        with pytest.raises(InvalidOption, match=said):
            penstock.Table(data)


def test_schemas_that_differ(tmp_path: Path) -> None:
    first, folder = pa.table({"a": [1], "b": [2]}), tmp_path / "data"
    folder.mkdir()
    write_parquet(first, folder / "0.parquet")
    for other, said in (
        (pa.table({"a": [1], "b": [2.0]}), r"column 'b' has type int64 in .*0\.parquet and double in .*1\.parquet"),
        (pa.table({"a": [1]}), r"1\.parquet has no column 'b', and .*0\.parquet has one"),
        (pa.table({"a": [1], "b": [2], "c": [3]}), r"1\.parquet has a column 'c', and .*0\.parquet has none"),
    ):
        write_parquet(other, folder / "1.parquet")
        with pytest.raises(InvalidOption, match=said):
            penstock.Table(folder)
        assert len(penstock.Table(folder, columns=["a"])) == 2
    write_ipc(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), folder / "1.parquet")
    with pytest.raises(InvalidOption, match=r"1\.parquet has 2 columns 'a'"):
        penstock.Table(folder, columns=["a"])
    write_parquet(first.slice(0, 0), folder / "0.parquet")
    with pytest.raises(InvalidOption, match="there are no rows"):
        penstock.Table(folder / "0.parquet")


def test_unread_types(tmp_path: Path) -> None:
    values = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])])
    write_ipc(pa.table({"a": values}), tmp_path / "u.arrow")
    with pytest.raises(InvalidOption, match="column 'a' has type sparse_union"):
        penstock.Table(tmp_path / "u.arrow")


@pytest.mark.parametrize("writer", ["zstd, checksums", "file", "stream", "lz4 file"])
def test_truncated_files(writer: str, tmp_path: Path) -> None:
    """A file that was cut off anywhere is refused, or gives the rows of the whole one."""
    WRITERS[writer](number_table(60), tmp_path / "whole")
    data, path = (tmp_path / "whole").read_bytes(), tmp_path / "cut.parquet"
    wanted = expected(number_table(60))
    for length in [*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 20, len(data))]:
        path.write_bytes(data[:length])
        try:
            samples = penstock.Table(path, cache_folder=tmp_path / "cache")
            found = rows_of(samples, range(len(samples)))
        except (CorruptSample, InvalidOption) as error:
            assert "cut.parquet" in str(error)
            continue
        assert_same(found, wanted[: len(found)])
        assert writer == "stream", length


def test_flipped_bytes(tmp_path: Path) -> None:
    """With page checksums no byte of a page can change unseen."""
    write_parquet(number_table(60), tmp_path / "whole", compression="none", write_page_checksum=True)
    data, path = bytearray((tmp_path / "whole").read_bytes()), tmp_path / "flipped.parquet"
    wanted, raised = expected(number_table(60)), 0
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(5, footer, 97):
        changed = bytearray(data)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        try:
            samples = penstock.Table(path, cache_folder=tmp_path / "cache")
            found = rows_of(samples, range(len(samples)))
        except (CorruptSample, InvalidOption) as error:
            assert "flipped.parquet" in str(error)
            raised += 1
            continue
        assert_same(found, wanted)
    assert raised > 9


def test_no_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    (tmp_path / "nothing.parquet").touch()
    for name, said in (("text", "it begins with b'a,b"), ("nothing", "it is empty")):
        with pytest.raises(CorruptSample, match=said):
            penstock.Table(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("writer", ["snappy", "file"])
def test_a_file_that_changes_is_noticed(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables.row_groups._LOOK_AGAIN", 0.0)
    folder = written(tmp_path / "data", number_table(), WRITERS[writer])
    samples = penstock.Table(folder)
    iterator = iter(penstock.DataLoader(samples, batch_size=8))
    next(iterator)
    WRITERS[writer](number_table(50), tmp_path / "other")
    os.replace(tmp_path / "other", folder / "0.parquet")
    with pytest.raises(CorruptSample, match=r"0\.parquet.*has changed since the table was made"):
        list(iterator)

"""Rows of tables: Hugging Face datasets with their collators, Parquet files, images in a column, gathers of columns.

Each round is a fresh process of each contestant, in turn: some epochs, of which the median counts. What a build does
not have yet, or a peer that is not installed, is listed with the reason.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.nn.utils.rnn import pad_sequence

from benchmarks import photos, remote
from benchmarks.contestants import Make, penstock_persistent, torch_loader
from benchmarks.process import ROOT
from benchmarks.question import (
    SPEED,
    Build,
    Contestant,
    Facts,
    Host,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    lower,
    made,
)
from benchmarks.remote_server import BUCKET

TOKENS = dataclasses.replace(SPEED, key="tokens_per_s", unit="tokens/s")
FIRST = lower("first_batch_ms", "ms to the first batch")
MEMORY = lower("memory_mb", "MB that no file holds")
VOCABULARY = 30_000
EPOCHS = 3
PARQUET_FILES = 10

# --- the data ---------------------------------------------------------------------------------------------------------


def lists(rng: np.random.Generator, rows: int) -> tuple[Any, Any, Any]:
    """Arrow's lists of 20 to 400 tokens, their attention masks and labels."""
    import pyarrow as pa

    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(20, 401, rows), out=offsets[1:])
    tokens = pa.array(rng.integers(5, VOCABULARY, offsets[-1], dtype=np.int32))
    masks = pa.array(np.ones(offsets[-1], np.int8))
    labels = pa.array(rng.integers(0, 2, rows))
    return pa.ListArray.from_arrays(offsets, tokens), pa.ListArray.from_arrays(offsets, masks), labels


def write_tokens(folder: Path, rows: int) -> None:
    import datasets
    import pyarrow as pa

    ids, masks, labels = lists(np.random.default_rng(0), rows)
    table = pa.table({"input_ids": ids, "attention_mask": masks, "label": labels})
    datasets.Dataset(table).save_to_disk(folder / "table")


def write_columns(folder: Path, rows: int) -> None:
    """Six columns of numbers and six of strings."""
    import datasets
    import pyarrow as pa

    rng = np.random.default_rng(0)
    kinds = ("int64", "int32", "float64", "float32", "int8", "bool")
    columns = {f"number_{kind}": pa.array(rng.integers(0, 100, rows).astype(kind)) for kind in kinds}
    words = np.array([f"word-{number}" for number in range(5_000)])
    columns |= {f"text_{number}": pa.array(words[rng.integers(0, len(words), rows)]) for number in range(6)}
    datasets.Dataset(pa.table(columns)).save_to_disk(folder / "table")


def write_images(folder: Path, options: Options) -> None:
    """Photos as a column of {"bytes", "path"}, in Parquet as Hugging Face writes it."""
    import datasets

    source = photos.prepare(options)
    files = [source.path(name) for name in photos.files(source)]
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    labels = [number % 10 for number in range(len(rows))]
    datasets.Dataset.from_dict({"image": rows, "label": labels}, features=features).to_parquet(
        folder / "photos.parquet", batch_size=100
    )
    (folder / "photos").mkdir()
    for number, file in enumerate(files):
        shutil.copyfile(file, folder / "photos" / f"{number}.jpg")  # what LitData packs


def write_numbers(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, size = np.random.default_rng(0), rows // PARQUET_FILES
    for number in range(PARQUET_FILES):
        columns = {"id": np.arange(size) + number * size, "x": rng.random(size, np.float32), "y": rng.random(size)}
        pq.write_table(pa.table(columns), folder / f"{number:02d}.parquet", row_group_size=100_000, compression=None)
    (folder / "small").mkdir()
    pq.write_table(pa.table(columns).slice(0, 1_000), folder / "small" / "first.parquet")


def write_bucket(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for number in range(20):
        ids, _, labels = lists(rng, rows // 20)
        table = pa.table({"input_ids": ids, "label": labels})
        pq.write_table(table, folder / f"{number:02d}.parquet", row_group_size=max(1, rows // 80))


# --- what is measured -------------------------------------------------------------------------------------------------


def length(batch: Any) -> int:
    """The rows of a batch, one element of which is read."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if hasattr(batch, "values") else batch[0]
    batch[(0,) * batch.ndim].item()
    return len(batch)


def epochs(
    batches: Iterable[Any], count: Callable[[Any], int] = length, key: str = SPEED.key, times: int = EPOCHS
) -> Running:
    """A round: the median of some epochs behind one that warms up."""

    def measured() -> dict[str, float]:
        speeds = []
        for _ in range(times + 1):
            began = time.perf_counter()
            counted = sum(map(count, batches))
            speeds.append(counted / (time.perf_counter() - began))
        return {key: statistics.median(speeds[1:])}

    return Running(measured, getattr(batches, "explain", None))


def of_table(setup: Setup, form: str | None = None) -> Any:
    import datasets

    return datasets.load_from_disk(str(setup.path(setup.variant, "table"))).with_format(form)


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, "[EOS]": 3, "[CLS]": 4}
    words |= {f"w{number}": number for number in range(len(words), VOCABULARY)}
    names = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    whole = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=whole, padding_side="right", **names)


def padded(make: Make, setup: Setup, **options: Any) -> Running:
    from transformers import DataCollatorWithPadding

    data = of_table(dataclasses.replace(setup, variant="tokens"))
    return epochs(make(setup, data, collate_fn=DataCollatorWithPadding(tokenizer()), batch_size=32, **options))


def masked(make: Make, setup: Setup, **options: Any) -> Running:
    from transformers import DataCollatorForLanguageModeling

    data = of_table(dataclasses.replace(setup, variant="tokens")).select_columns(["input_ids", "attention_mask"])
    collator = DataCollatorForLanguageModeling(tokenizer())
    return epochs(make(setup, data, collate_fn=collator, batch_size=32, **options))


def own_collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As programs write it that have no collator of a library."""
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in batch], batch_first=True, padding_value=0)
    return {"input_ids": ids, "mask": (ids != 0).long(), "label": torch.tensor([row["label"] for row in batch])}


def padded_by_own(make: Make, setup: Setup, **options: Any) -> Running:
    data = of_table(dataclasses.replace(setup, variant="tokens"))
    return epochs(make(setup, data, collate_fn=own_collate, batch_size=32, **options))


def padding_free(make: Make, setup: Setup, **options: Any) -> Running:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    data = of_table(dataclasses.replace(setup, variant="tokens")).select_columns(["input_ids"])
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    loader = make(setup, data, collate_fn=collator, batch_size=32, **options)
    return epochs(loader, lambda batch: int(batch["input_ids"].numel()), TOKENS.key)


def plain_columns(make: Make, setup: Setup, **options: Any) -> Running:
    data = of_table(setup).shuffle(seed=0)
    return epochs(make(setup, data, batch_size=64, **options))


# --- images -----------------------------------------------------------------------------------------------------------


def parquet(setup: Setup) -> str:
    return str(setup.path("images", "photos.parquet"))


def transformed(make: Make, setup: Setup, **options: Any) -> Running:
    import datasets

    recipe = photos.recipe("float32")

    def pixels(rows: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": [recipe(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}

    folder = tempfile.mkdtemp(prefix="penstock-bench-rows-")
    data = datasets.Dataset.from_parquet(parquet(setup), cache_dir=folder).with_transform(pixels)
    return epochs(make(setup, data, **options), times=1)


def image_table(setup: Setup) -> Running:
    """penstock.DataLoader over penstock.Table of the Parquet file, image= and transform=."""
    import penstock

    kind: Any = penstock.Table
    data = kind(parquet(setup), image="image", transform=photos.recipe("float32"))
    return epochs(penstock_persistent(setup, data, seed=0), times=1)


def litdata_images(setup: Setup) -> Running:
    """LitData's StreamingDataset over the photos as optimize() packs them, the same transforms, 2 workers."""
    import litdata as ld
    from PIL import Image

    packed = tempfile.mkdtemp(prefix="penstock-bench-litdata-")
    origin = [str(path) for path in setup.path("images", "photos").rglob("*.jpg")]
    ld.optimize(read_photo, origin, packed, chunk_bytes=64 << 20, num_workers=1)
    recipe = photos.recipe("float32")

    class Photos(ld.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            import io

            row = super().__getitem__(index)
            return recipe(Image.open(io.BytesIO(row["image"])).convert("RGB")), row["label"]

    loader = ld.StreamingDataLoader(
        Photos(packed, shuffle=True), batch_size=setup.batch, num_workers=setup.workers, persistent_workers=True
    )
    return epochs(loader, times=1)


def read_photo(path: str) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "label": 0}


# --- gathers ----------------------------------------------------------------------------------------------------------


def chunked_table(setup: Setup) -> Any:
    """100,000 rows of a number, a float and a list of eight tokens, in chunks of so many rows."""
    import pyarrow as pa

    _, chunk, _ = setup.variant.split("-")
    rng, rows = np.random.default_rng(0), setup.facts["rows"]["gathers"]
    offsets = np.arange(0, 8 * rows + 1, 8, dtype=np.int32)
    tokens = pa.array(rng.integers(0, VOCABULARY, 8 * rows, dtype=np.int32))
    columns = [pa.array(np.arange(rows)), pa.array(rng.random(rows)), pa.ListArray.from_arrays(offsets, tokens)]
    whole = pa.record_batch(columns, ["id", "x", "tokens"])
    return pa.Table.from_batches([whole.slice(begin, int(chunk)) for begin in range(0, rows, int(chunk))])


def gathers(gather: Callable[[Any, Any], Any], setup: Setup) -> Running:
    table, rng = gather_source(gather, setup), np.random.default_rng(1)
    rows, batch = setup.facts["rows"]["gathers"], int(setup.variant.split("-")[2])
    orders = [rng.integers(0, rows, batch) for _ in range(20)]
    return epochs([(table, order) for order in orders], lambda given: len(gather(*given) or given[1]))


def gather_source(gather: Any, setup: Setup) -> Any:
    import datasets

    table = chunked_table(setup)
    return table if gather in (taken, natively) else datasets.Dataset(table).with_format("torch")


def taken(table: Any, order: Any) -> Any:
    """pyarrow's Table.take, which makes an Arrow table."""
    table.take(order)


def by_fast_gather(dataset: Any, order: Any) -> Any:
    """fast_gather of a dataset's table, which makes an Arrow table of views."""
    dataset._data.fast_gather(order)


def by_dataset(dataset: Any, order: Any) -> Any:
    """dataset[indices] in torch's format."""
    dataset[order.tolist()]


def natively(table: Any, order: Any) -> Any:
    """Penstock's own gatherer: the columns of a batch as tensors."""
    from penstock.tables.column import column_of

    for name, dtype, size in (("id", torch.int64, 1), ("x", torch.float64, 1), ("tokens", torch.int32, 8)):
        column_of(table, name).flat(order, dtype, size * len(order))


# --- Parquet files ----------------------------------------------------------------------------------------------------


def first_batch(setup: Setup) -> Running:
    """penstock.Table with an empty cache folder: the constructor, the loader and its first shuffled batch, in a process
    that has read a table before."""
    import penstock

    kind: Any = penstock.Table

    def measured(files: str = "*.parquet") -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-rows-") as cache:
            before, began = anonymous_mb(), time.perf_counter()
            data = kind(str(setup.path("numbers", files)), cache_folder=cache)
            iterator = iter(penstock.DataLoader(data, batch_size=256, shuffle=True, seed=0, num_workers=2))
            assert length(next(iterator)) == 256
            first, used = time.perf_counter() - began, anonymous_mb() - before
        return {FIRST.key: 1000 * first, MEMORY.key: used}

    measured("small/*.parquet")  # what a program's first pass imports
    return Running(measured)


def anonymous_mb() -> float:
    """Memory of this process that is not of a file, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))


def penstock_bucket(setup: Setup) -> Running:
    """penstock.DataLoader over penstock.Table of the bucket: windows of row groups, an empty cache folder."""
    import penstock

    remote.configured(setup)
    kind: Any = penstock.Table

    def batches() -> Any:
        cache = tempfile.mkdtemp(prefix="penstock-bench-rows-")
        data = kind(f"s3://{BUCKET}/*.parquet", cache_folder=cache)
        return penstock_persistent(setup, data, batch_size=32, seed=0, collate_fn=pad_labels, persistent_workers=False)

    return anew(batches)


def hugging_face_bucket(setup: Setup) -> Running:
    """load_dataset("parquet", streaming=True) over the server's URLs, .shuffle(buffer_size=1000), 2 workers."""
    import datasets

    urls = [f"{remote.configured(setup)}/{BUCKET}/{number:02d}.parquet" for number in range(20)]
    stream = datasets.load_dataset("parquet", data_files=urls, split="train", streaming=True)
    data = stream.shuffle(seed=0, buffer_size=1_000)
    return anew(lambda: torch_loader(setup, data, batch_size=32, shuffle=None, collate_fn=pad_labels))


def anew(batches: Callable[[], Iterable[Any]]) -> Running:
    """A round: one epoch of a new loader, nothing of which is in a cache; its rate is that behind the first batch."""

    def measured() -> dict[str, float]:
        began = time.perf_counter()
        iterator = iter(batches())
        next(iterator)
        first = time.perf_counter()
        counted = sum(map(length, iterator))
        return {SPEED.key: counted / (time.perf_counter() - first), FIRST.key: 1000 * (first - began)}

    return Running(measured)


def pad_labels(rows: list[dict[str, Any]]) -> Any:
    tokens = [torch.as_tensor(row["input_ids"]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)


# --- the tables -------------------------------------------------------------------------------------------------------

TORCH = "torch.utils.data.DataLoader with 2 worker processes, which are kept."
NO_WORKERS = "The same with num_workers=0."
PENSTOCK = "The import changed."
HF = ("datasets",)
Run = Callable[..., Running]


def beside_torch(name: str, title: str, run: Run, least: float, measure: Any = SPEED, *more: Contestant) -> Table:
    """A table of torch's loader without workers and with 2, and of ours, which is held against both."""
    contestants = (
        Contestant("torch", Role.TORCH, partial(run, torch_loader), TORCH),
        Contestant("torch, 0 workers", Role.ASIDE, built(run, torch_loader, num_workers=0), NO_WORKERS, ("torch",)),
        Contestant("penstock", Role.PENSTOCK, partial(run, penstock_persistent), PENSTOCK),
        *more,
    )
    targets = tuple(Target("penstock", least, other, measure) for other in ("torch", "torch, 0 workers"))
    return Table(name, title, contestants, targets, (measure,), Host.FRESH)


def built(run: Run, make: Make, **options: Any) -> Build:
    return lambda setup: run(make, setup, **options)


IMAGES = "JPEG bytes in a Parquet column, RandomResizedCrop(224), flip, normalised, batch 64, shuffled, 2 workers"
OF_IMAGES = beside_torch(
    "images", IMAGES, transformed, 4, SPEED,
    Contestant("penstock.Table", Role.PENSTOCK, image_table),
    Contestant("LitData", Role.PEER, litdata_images, peers=("litdata",)),
)  # fmt: skip
GATHERS = tuple(
    Table(
        f"gather-{chunk}-{batch}",
        f"Gathers of {batch:,} rows of 100,000, in chunks of {chunk:,}: int64, float64, lists of 8 int32",
        (
            Contestant("datasets", Role.PEER, partial(gathers, by_dataset), by_dataset.__doc__ or "", HF),
            Contestant("fast_gather", Role.ASIDE, partial(gathers, by_fast_gather), by_fast_gather.__doc__ or "", HF),
            Contestant("pyarrow", Role.BARE, partial(gathers, taken), taken.__doc__ or "", ("pyarrow",)),
            Contestant("penstock", Role.PENSTOCK, partial(gathers, natively), natively.__doc__ or ""),
        ),
        (Target("penstock", 5, "fast_gather"), Target("penstock", 0.8, "pyarrow")),
        (SPEED,),
        Host.FRESH,
    )
    for chunk in (1, 100, 1_000)
    for batch in (32, 1_000, 10_000)
)  # fmt: skip
TARGETS_OF_IMAGES = (Target("penstock.Table", 4, "torch"), Target("penstock.Table", 1.5, "LitData"))
COLUMNS = "Six columns of strings and six of numbers"
RAGGED = "Lists of 20 to 400 tokens with masks and labels, batch 32, shuffled, 2 workers"
TABLES = (
    beside_torch("padding", f"{RAGGED}: DataCollatorWithPadding", padded, 8),
    beside_torch("own", f"{RAGGED}: a collate_fn of one's own, with pad_sequence", padded_by_own, 4),
    beside_torch("masking", f"{RAGGED}: DataCollatorForLanguageModeling", masked, 4),
    *GATHERS,
    beside_torch("columns", f"{COLUMNS}, batch 64, shuffled, 2 workers", plain_columns, 8),
    dataclasses.replace(OF_IMAGES, targets=(*OF_IMAGES.targets, *TARGETS_OF_IMAGES)),
    Table(
        "table",
        "penstock.Table over 10,000,000 rows in 10 Parquet files: the constructor and the first shuffled batch",
        (Contestant("penstock", Role.PENSTOCK, first_batch),),
        (Target("penstock", 500, None, FIRST), Target("penstock", 60, None, MEMORY)),
        (FIRST, MEMORY),
        Host.FRESH,
    ),
    Table(
        "bucket",
        "Lists of tokens in 20 Parquet files of an S3 bucket on loopback, shuffled in blocks, batch 32, 2 workers",
        (
            Contestant("penstock", Role.PENSTOCK, penstock_bucket),
            Contestant("Hugging Face", Role.PEER, hugging_face_bucket, packages=("datasets",)),
        ),
        (Target("penstock", 1.5, "Hugging Face"),),
        (SPEED, FIRST),
        Host.FRESH,
    ),
    beside_torch("padding_free", f"{RAGGED}: TRL's collator, padding_free=True", padding_free, 4, TOKENS),
)  # fmt: skip


def prepare(options: Options) -> Setup:
    """A folder for each kind of data; the bucket's is served on the loopback interface."""
    share = 0.05 if options.quick else 1.0
    rows = {"tokens": 20_000, "columns": 50_000, "numbers": 10_000_000, "bucket": 40_000, "gathers": 100_000}
    rows = {name: round(size * share) for name, size in rows.items()}
    name = "rows-quick" if options.quick else "rows"
    writers: dict[str, Callable[[Path], None]] = {
        "tokens": partial(write_tokens, rows=rows["tokens"]),
        "columns": partial(write_columns, rows=rows["columns"]),
        "images": partial(write_images, options=options),
        "numbers": partial(write_numbers, rows=rows["numbers"]),
        "bucket": partial(write_bucket, rows=rows["bucket"]),
    }
    needs = {
        "padding": "tokens",
        "own": "tokens",
        "masking": "tokens",
        "padding_free": "tokens",
        "table": "numbers",
        "gather": "",
    }
    folder = options.cache / name
    folder.mkdir(exist_ok=True)
    facts: Facts = {"rows": rows}
    for table in TABLES:
        if options.cases and not any(word in table.name for word in options.cases):
            continue
        kind = needs.get(table.name.partition("-")[0], table.name)
        if kind:
            made(folder / kind, writers[kind])
        if kind == "bucket" and "endpoint" not in facts:
            server = [sys.executable, "-m", "benchmarks.remote_server", str(folder / "bucket")]
            process = subprocess.Popen(server, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            facts["endpoint"] = process.stdout.readline().strip()
    return Setup(str(folder), rows["tokens"], facts=facts)


QUESTION = Question("rows", "Rows of tables", TABLES, prepare)

"""Columns of random types for Hugging Face datasets: their values, their features and their chunks.

A column is drawn from a random.Random, and a function of its state.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import itertools
import string
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from PIL import Image

# --- types of columns, and their values -------------------------------------------------------------------------------

NUMBERS = (
    *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
    pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
)  # fmt: skip
TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
)  # fmt: skip
TIMES = (
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"), pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ns", "+02:00"),
)  # fmt: skip
INNER = (*NUMBERS, *TEXTS, *TIMES, pa.decimal128(10, 3), pa.decimal256(40, 3), pa.null())
LEAVES = (*INNER, pa.json_())
_LETTERS = [*string.ascii_letters, "é", "\N{SNOWMAN}", "\0", "\N{GRINNING FACE}"]
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def nested(draw: Random, depth: int) -> pa.DataType:
    """Return a list or a struct of types that nest so deep at most."""
    inner = functools.partial(nested, draw, depth - 1) if draw.random() < 0.4 and depth > 1 else None
    item = inner() if inner else draw.choice([*NUMBERS, *NUMBERS, *INNER])
    kinds: list[Callable[[], pa.DataType]] = [
        lambda: pa.list_(item), lambda: pa.list_(item), lambda: pa.large_list(item), lambda: pa.list_(item, 2),
        lambda: pa.struct([("a", item), ("b", draw.choice(INNER))]), lambda: pa.list_(pa.struct([("x y", item)])),
    ]  # fmt: skip
    return draw.choice(kinds)()


def value(draw: Random, kind: pa.DataType, nulls: float, length: int | None) -> Any:
    """Return a value that pyarrow takes for a type. Lists have this length, None: another one each time."""
    if draw.random() < nulls or pa.types.is_null(kind):
        return None
    if isinstance(kind, pa.FixedSizeListType):
        return [value(draw, kind.value_type, nulls, length) for _ in range(kind.list_size)]
    if isinstance(kind, (pa.ListType, pa.LargeListType)):
        size = draw.choice((0, 1, 1, 2, 5)) if length is None else length
        return [value(draw, kind.value_type, nulls, length) for _ in range(size)]
    if isinstance(kind, pa.StructType):
        return {part.name: value(draw, part.type, nulls, length) for part in kind}
    return _leaf(draw, kind)


def _leaf(draw: Random, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return draw.choice(["a", "b", "ccc"] if types.is_string(kind.value_type) else [5, -7, 2**40])
    if types.is_boolean(kind):
        return draw.random() < 0.5
    if types.is_integer(kind):
        limits = np.iinfo(str(kind))
        return draw.choice([int(limits.min), int(limits.max), 0, 1, draw.randrange(128)])
    if types.is_floating(kind):
        dtype = np.dtype({"halffloat": "float16"}.get(str(kind), str(kind).replace("double", "float64")))
        found = draw.choice([0.0, -0.0, float("nan"), float("inf"), float(np.finfo(dtype).tiny), draw.gauss(0, 3)])
        return np.float16(found) if dtype == np.float16 else found
    if types.is_decimal(kind):
        return decimal.Decimal(draw.randrange(-(10**6), 10**6)).scaleb(-3)
    if types.is_date(kind):
        return datetime.date(1890, 1, 1) + datetime.timedelta(days=draw.randrange(100_000))
    if types.is_temporal(kind):
        unit = _UNITS[kind.unit]
        limit = unit * (86_399 if types.is_time(kind) else 2**32)
        number = draw.randrange(0 if types.is_time(kind) else -limit // 2, limit)
        # pandas, which the package needs for them, is not asked for: a Python object has no nanoseconds.
        return number - number % 1000 if kind.unit == "ns" else number
    if isinstance(kind, pa.JsonType):
        return draw.choice(['{"a": [1, null]}', "3", '"x"', "[]"])
    text = "".join(draw.choices(_LETTERS, k=draw.choice((0, 3, 12, 40))))
    if types.is_fixed_size_binary(kind):
        return draw.randbytes(kind.byte_width)
    return text if "string" in str(kind) else text.encode()


def _encoded(draw: Random, form: str, number: int) -> bytes:
    image = Image.new(draw.choice(("RGB", "L")) if form == "PNG" else "RGB", (3 + number % 2, 2), number % 256)
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


@functools.cache
def photo(form: str = "PNG", number: int = 3) -> str:
    """Return the path of an image file, which lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="penstock-schemas-")
    weakref.finalize(photo, folder.cleanup)
    path = Path(folder.name, f"photo.{form.lower()}")
    path.write_bytes(_encoded(Random(0), form, number))
    return str(path)


def _content(draw: Random, number: int) -> dict[str, Any]:
    return {"bytes": _encoded(draw, draw.choice(("PNG", "JPEG")), number), "path": draw.choice((None, "x.png"))}


def _image(draw: Random, number: int) -> Any:
    content = _content(draw, number)
    return draw.choice([content, content["bytes"], photo(), Image.new("RGB", (4, 2), number % 256)])


def _array(shape: tuple[int, ...], dtype: str) -> Callable[[Random, int], Any]:
    return lambda draw, number: np.full(shape, number).astype(dtype).tolist()


#: Features that have a class of their own: how each is made, and a value of it.
FEATURES: dict[str, tuple[Callable[[], Any], Callable[[Random, int], Any]]] = {
    "ClassLabel": (lambda: datasets.ClassLabel(names=["no", "yes", "maybe"]), lambda draw, n: draw.randrange(3)),
    "Array2D": (lambda: datasets.Array2D((2, 3), "int32"), _array((2, 3), "int32")),
    "Array3D": (lambda: datasets.Array3D((1, 2, 3), "float32"), _array((1, 2, 3), "float32")),
    "Array4D": (lambda: datasets.Array4D((2, 1, 2, 1), "uint8"), _array((2, 1, 2, 1), "uint8")),
    "Array5D": (lambda: datasets.Array5D((1, 2, 1, 2, 1), "float64"), _array((1, 2, 1, 2, 1), "float64")),
    "ragged Array2D": (
        lambda: datasets.Array2D((None, 2), "int64"),
        lambda draw, n: np.full((draw.randrange(1, 4), 2), n).tolist(),
    ),
    "Array2D of truth": (lambda: datasets.Array2D((2, 2), "bool"), _array((2, 2), "bool")),
    "Image": (datasets.Image, _image),
    "Image, not decoded": (lambda: datasets.Image(decode=False), _image),
    "Image in a mode": (lambda: datasets.Image(mode="L"), _image),
    "images": (lambda: datasets.List(datasets.Image()), lambda draw, n: [_content(draw, n) for _ in range(n % 3)]),
    "Audio, not decoded": (
        lambda: datasets.Audio(decode=False),
        lambda draw, n: {"bytes": bytes([n % 256]), "path": None},
    ),
    "ClassLabels": (
        lambda: datasets.List(datasets.ClassLabel(num_classes=4)),
        lambda draw, n: [draw.randrange(4) for _ in range(draw.randrange(4))],
    ),
    "Translation": (
        lambda: datasets.Translation(languages=["de", "en"]),
        lambda draw, n: {"de": "ja" * (n % 3), "en": str(n)},
    ),
    "a dictionary of features": (
        lambda: {"label": datasets.ClassLabel(num_classes=5), "box": datasets.List(datasets.Value("float32"))},
        lambda draw, n: {"label": n % 5, "box": [draw.gauss(0, 1) for _ in range(4)]},
    ),
}  # fmt: skip


def column_of(draw: Random, rows: int, kind: str, plain: bool) -> tuple[Any, Any, str]:
    """Return (chunked array, its feature, what it is). `plain`: torch's default_collate may take the rows."""
    nulls = 0.0 if plain else draw.choice((0, 0, 0, 0.1, 0.4, 1))
    if kind == "feature":
        name = draw.choice(list(FEATURES))
        make, sample = FEATURES[name]
        values = [None if draw.random() < nulls else sample(draw, number) for number in range(rows)]
        known = datasets.Features(x=make())
        if name.startswith("Audio"):  # which the package encodes by torchcodec
            return pa.chunked_array([pa.array(values, known["x"].pa_type)]), known["x"], f"{name} nulls={nulls}"
        made = datasets.Dataset.from_dict({"x": values}, features=known)
        return made.data.table.column(0), known["x"], f"{name} nulls={nulls}"
    pool = NUMBERS if kind == "numbers" else (*NUMBERS, *TEXTS) if plain else LEAVES
    type_ = draw.choice(pool) if kind != "nested" else nested(draw, 3)
    if plain and kind == "nested":
        type_ = draw.choice((pa.list_, pa.large_list))(draw.choice(NUMBERS))
    length = draw.choice((1, 3)) if plain else draw.choice((None, None, 2))
    values = [value(draw, type_, nulls, length) for _ in range(rows)]
    array = pa.array(values, type_.storage_type) if isinstance(type_, pa.JsonType) else pa.array(values, type_)
    if isinstance(type_, pa.JsonType):
        array = pa.ExtensionArray.from_storage(type_, array)
    return pa.chunked_array([array]), None, f"{type_} nulls={nulls} length={length}"


def chunked(draw: Random, column: Any) -> tuple[Any, str]:
    """Return the same rows in other chunks: views of one buffer, copies, chunks of a row, and empty ones."""
    how = draw.choice(("one", "few", "single", "few"))
    rows = len(column)
    cuts = {"one": [], "few": sorted(draw.choices(range(rows + 1), k=4)), "single": list(range(rows))}[how]
    parts = [column.slice(begin, end - begin) for begin, end in itertools.pairwise([0, *cuts, rows])]
    arrays = [pa.concat_arrays(part.chunks) if draw.random() < 0.3 else part.chunks for part in parts if part.chunks]
    flat = [one for array in arrays for one in (array if isinstance(array, list) else [array])]
    return pa.chunked_array(flat, column.type), how

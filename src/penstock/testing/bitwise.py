"""Equality of batches bit for bit: where they differ first, and a digest of each of their samples."""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image


class Difference(NamedTuple):
    """The first difference of two values."""

    path: str
    """Where: what would follow the value's name in Python."""
    row: int | None
    """The index along the first dimension of a tensor or an array, or in a list of strings."""
    what: str
    """What the one is, "and" what the other is."""

    def path_in_sample(self) -> str:
        """Return the path without the row, which is the first number of its last brackets."""
        front, _, last = self.path.rpartition("[")
        rest = last.rstrip("]").partition(", ")[2]
        return f"{front}[{rest}]" if rest else front


def difference(a: Any, b: Any, path: str = "", row: int | None = None, *, layout: bool = False) -> Difference | None:
    """Return the first difference of two batches, None where all is the same: structure, types, shapes and bits.

    NaNs are equal where their bits are; 0.0 and -0.0 are not. With layout=True these must be the same too: strides,
    devices, requires_grad and attributes of tensors, strides and flags of arrays, format and info of PIL images.
    """
    if type(a) is not type(b):
        return Difference(path, row, f"is a {type(a).__name__}, and a {type(b).__name__}")
    if isinstance(a, torch.Tensor | np.ndarray):
        found = _array_difference(a, b, path, row)
        return _layout_difference(a, b, path, row) if layout and found is None else found
    ours, theirs = _parts(a), _parts(b)
    if ours is None or theirs is None:
        equals = getattr(a, "equals", None)  # of pandas: == compares each element
        if not (equals(b) if callable(equals) else _leaf(a) == _leaf(b)):
            return Difference(path, row, f"is {_short(a)}, and {_short(b)}")
        return _layout_difference(a, b, path, row) if layout else None
    if list(ours) != list(theirs):
        if isinstance(a, tuple | list):
            return Difference(path, row, f"has length {len(a)}, and {len(b)}")
        if isinstance(a, Mapping):
            return Difference(path, row, f"has the keys {list(a)}, and {list(b)}")
        return Difference(path, row, f"has the attributes {list(ours)}, and {list(theirs)}")
    words = isinstance(a, tuple | list) and all(isinstance(value, str | bytes) for value in a) and row is None
    pairs = enumerate(zip(ours, ours.values(), theirs.values(), strict=True))
    inside = (difference(x, y, path + at, i if words else row, layout=layout) for i, (at, x, y) in pairs)
    return next((one for one in inside if one is not None), None)


def rows(batch: Any) -> list[Any]:
    """Return the samples of a batch as torch's default collation, or one like it, puts them together.

    Raises:
        TypeError: the batch is not made of rows: tensors or arrays with as many of them each, or lists of strings.
    """
    if isinstance(batch, torch.Tensor | np.ndarray) and batch.ndim:
        return list(batch)
    if isinstance(batch, Mapping) and batch:
        fields = [rows(value) for value in batch.values()]
    elif isinstance(batch, tuple | list) and batch:
        if all(isinstance(value, str | bytes) for value in batch):
            return list(batch)
        fields = [rows(value) for value in batch]
    else:
        raise TypeError(f"a batch with a {type(batch).__name__} in it, which has no rows: give key=")
    if len({len(field) for field in fields}) > 1:
        raise TypeError(f"a batch whose parts have {', '.join(str(len(f)) for f in fields)} rows: give key=")
    return list(zip(*fields, strict=True))


def digest(value: Any) -> bytes:
    """Return 16 bytes that are the same for values between which difference() finds none, and differ for others."""
    into = hashlib.blake2b(digest_size=16)
    waiting = [("", value)]
    while waiting:
        name, value = waiting.pop()
        parts = _parts(value)
        fact = (name, type(value).__qualname__, _leaf(value) if parts is None else len(parts))
        into.update(repr(fact).encode("utf-8", "surrogatepass"))
        waiting += () if parts is None else parts.items()
    return into.digest()


def _array_difference(a: Any, b: Any, path: str, row: int | None) -> Difference | None:
    for name, ours, theirs in (("dtype", a.dtype, b.dtype), ("shape", tuple(a.shape), tuple(b.shape))):
        if ours != theirs:
            return Difference(path, row, f"has {name} {ours}, and {theirs}")
    if isinstance(a, np.ndarray) and a.dtype.hasobject:
        unequal = np.array([digest(x) != digest(y) for x, y in zip(a.flat, b.flat, strict=True)], dtype=bool)
    else:
        unequal = (_bytes(a) != _bytes(b)).reshape(-1, a.itemsize).any(1)
    if not unequal.any():
        return None
    where = tuple(map(int, np.unravel_index(int(unequal.argmax()), tuple(a.shape))))
    values = [_short(one[where].item() if hasattr(one[where], "item") else one[where]) for one in (a, b)]
    inside = f"[{', '.join(map(str, where))}]" if where else ""
    return Difference(path + inside, where[0] if where and row is None else row, f"is {values[0]}, and {values[1]}")


def _layout(value: Any) -> dict[str, Any]:
    """Return what is compared of a value beside its elements."""
    if isinstance(value, torch.Tensor):
        return {
            "strides": value.stride() if value.layout == torch.strided else None,
            "device": str(value.device),
            "requires_grad": value.requires_grad,
            "a lazy conjugate": value.is_conj(),
            "the attributes": dict(vars(value)),
        }
    if isinstance(value, np.ndarray):
        return {"strides": value.strides, "writeable": value.flags.writeable}
    return {"format": value.format, "info": value.info} if isinstance(value, Image.Image) else {}


def _layout_difference(a: Any, b: Any, path: str, row: int | None) -> Difference | None:
    """Return the first difference of two equal values outside of their elements."""
    pairs = zip(_layout(a).items(), _layout(b).values(), strict=True)
    said = (f"has {name} {_short(x)}, and {_short(y)}" for (name, x), y in pairs if difference(x, y) is not None)
    return next((Difference(path, row, what) for what in said), None)


def _bytes(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor or an array, in order."""
    if isinstance(value, np.ndarray):
        return np.frombuffer(value.tobytes(), dtype=np.uint8)
    dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    flat = dense.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return np.asarray(flat.view(torch.uint8).numpy()) if flat.numel() else np.empty(0, dtype=np.uint8)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """Return the parts of a container, or of an object that does not say itself when it is equal to another.

    By what follows the value's name in Python; None: the value has none.
    """
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, tuple | list):
        return {f"[{number}]": part for number, part in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    if getattr(type(value), "__eq__", None) is not object.__eq__ or isinstance(value, type):
        return None
    slots = (name for name in copyreg._slotnames(type(value)) if hasattr(value, name))  # type: ignore[attr-defined]
    held = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
    return {f".{name}": part for name, part in held.items()} or None


def _leaf(value: Any) -> Any:
    """Return what two values must have in common to be bitwise the same."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return tuple(value.shape), [digest(one) for one in value.ravel().tolist()]
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype), tuple(value.shape), _bytes(value).tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<2d", value.real, value.imag)
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if callable(to_bytes := getattr(value, "tobytes", None)):  # a PIL image
        return getattr(value, "mode", None), getattr(value, "size", None), to_bytes()
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

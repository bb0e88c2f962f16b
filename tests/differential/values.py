"""What the samples of a case hold, how a value is described in full, and the log of a pass.

Each definition is printed into the programs of the cases that name it: it needs torch, numpy and Pillow only.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, StackDataset, Subset

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Point:
    first: Any
    second: Any


class Pinnable(Point):
    def pin_memory(self):
        return Pinnable(self.first.pin_memory(), self.second)


class Marked(torch.Tensor):
    """A tensor's subclass that changes nothing."""


class Odd(Exception):
    """An error that cannot be made of one text."""

    def __init__(self, index, reason):
        super().__init__(f"bad sample {index}: {reason}")


def numbers(i, dtype, *shape):
    """Return a tensor whose bytes are a function of i, NaNs and negative zeros among them."""
    size = torch.empty((), dtype=dtype).element_size()
    n = torch.Size(shape).numel()
    if dtype == torch.bool:
        return ((torch.arange(n) + i) % 3 == 0).reshape(shape)
    bytes_ = (torch.arange(n * size) * 37 + i * 11 + torch.arange(n * size) // 251).to(torch.uint8)
    return bytes_.view(dtype).reshape(shape)


def photo(i, mode="RGB", width=12, height=10):
    pixels = np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3) * (i + 3) // 7
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def alike(i, how, change):
    """Change an image and its mask behind one state of torch's generator; the image counts where the index gives it."""
    image = photo(i)
    with torch.random.fork_rng(devices=[]) if how == "fork" else contextlib.nullcontext():
        state = torch.get_rng_state() if how == "state" else None
        seed = int(torch.randint(2**31, ())) if how == "number" else i
        if how in ("number", "index"):
            torch.manual_seed(seed)
        first = describe(change(image))
    if state is not None:
        torch.set_rng_state(state)
    elif how != "fork":
        torch.manual_seed(seed)
    return describe(change(image)) == first, zlib.crc32(first.encode()) if how == "index" else 0


def overlaps(tensor):
    flat = tensor.reshape(-1)
    return flat.as_strided((max(flat.numel() - 2, 0), 2), (1, 1))


def content(tensor):
    with torch.no_grad():
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        plain = plain.clone(memory_format=torch.contiguous_format)  # contiguous() keeps the strides of one element
        return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def describe(value, seen=None):
    """Return all that a program could see of a value, as text; an object that comes twice by its number."""
    seen = {} if seen is None else seen
    kind = type(value).__name__
    if isinstance(value, (torch.Tensor, np.ndarray, list, dict)):
        if id(value) in seen:
            return f"{kind} again #{seen[id(value)]}"
        seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"{kind} nested {[describe(part) for part in value.unbind()]}"
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return f"{kind} {value.layout} {describe(value.to_dense())}"
    if isinstance(value, torch.Tensor):
        flags = "".join(f" {n}" for n in ("requires_grad", "is_leaf") if getattr(value, n) != (n == "is_leaf"))
        flags += " conj" * value.is_conj() + " neg" * value.is_neg()
        data = content(value)
        text = f"{kind} {value.dtype} {tuple(value.shape)} {value.stride()}{flags}"
        return f"{text} {zlib.crc32(data):08x} {data[:8].hex()}"
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return f"{kind} {value.tolist()!r}"
    if isinstance(value, np.ndarray):
        return f"{kind} {value.dtype} {value.shape} {value.strides} {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, torch.UntypedStorage):
        return f"{kind} {zlib.crc32(content(torch.empty(0, dtype=torch.uint8).set_(value))):08x}"
    if isinstance(value, memoryview):
        return f"{kind} {value.format} {value.shape} {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, Image.Image):
        return f"{kind} {value.mode} {value.size} {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, dict):
        return f"{kind} {{{', '.join(f'{key!r}: {describe(part, seen)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{kind} ({', '.join(describe(part, seen) for part in value)})"
    if dataclasses.is_dataclass(value):
        return f"{kind} {describe(vars(value), seen)}"
    return re.sub(" at 0x[0-9a-f]+", "", f"{kind} {value!r}")


def mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(part, change) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return mapped(vars(value), change)
    return value


def tensors_of(value) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(value, found.append)
    return found


class Log:
    """What a program sees of a loader, as lines; and what it holds of it, which must not change."""

    def __init__(self):
        self.lines = []
        self.words = False  # errors are told with all of their words
        self.held = collections.deque[Any]()

    def note(self, line):
        self.lines.append(line)

    def receive(self, value, keep=None):
        """Take a value's digest; hold the value, or `keep` in its place, until `drop` or `end`."""
        self.note(describe(value))
        held = value if keep is None else keep
        self.held.append((len(self.lines), held, describe(held)))

    def raised(self, error):
        kind = next(kind for kind in type(error).__mro__ if not kind.__module__.startswith("penstock"))
        words = str(error) if self.words else re.findall(r"bad [a-z]+ [0-9]+", str(error))[:1]
        self.note(re.sub(" at 0x[0-9a-f]+", "", f"raised {kind.__name__} {words}"))

    def drop(self, last):
        """Let go of all but the last ones, and note what had changed since it was received."""
        while len(self.held) > last:
            line, value, was = self.held.popleft()
            if describe(value) != was:
                self.note(f"of line {line} changed: {was} to {describe(value)}")

    def end(self):
        self.drop(0)


def fresh(source, how="file"):
    """Return the dataset of a new module; its source is in a file, in none, or in a file that has been edited since."""
    name = f"dataset_{zlib.crc32(source.encode()):08x}"
    path = os.path.abspath(f"{name}.py") if how != "nowhere" else "<string>"
    sys.modules[name] = module = types.ModuleType(name)
    vars(module).update(Pair=Pair, Point=Point, Marked=Marked, bits=numbers)
    texts = {"file": [source], "nowhere": [], "edited": [source, re.sub(r"\[i\b", "[i - 1", source)]}[how]
    code = compile(source, path, "exec")
    for text in texts:
        pathlib.Path(path).write_text(text)
    exec(code, vars(module))
    return module.make()


def inmost(dataset):
    """Return the dataset of a fresh module that others are wrapped around."""
    while type(dataset) in (Subset, ConcatDataset, StackDataset) or type(dataset).__name__ == "Outer":
        dataset = dataset.dataset if hasattr(dataset, "dataset") else dataset.datasets[0]
    return dataset


def generator_states():
    numpys: Any = np.random.get_state()
    states = torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode(), numpys[1].tobytes()
    return [*map(zlib.crc32, states), numpys[2:]]


@contextlib.contextmanager
def pinning() -> Iterator[None]:
    """Pin tensors by a copy, as if there were an accelerator: torch's thread that pins runs."""
    empty: Callable[..., torch.Tensor] = torch.empty

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*size, **options)

    with (
        mock.patch.object(torch.accelerator, "is_available", lambda: True),
        mock.patch.object(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")),
        mock.patch.object(torch.accelerator, "current_device_index", lambda: 0),
        mock.patch.object(torch.accelerator, "set_device_index", lambda index: None),
        mock.patch.object(torch.Tensor, "pin_memory", lambda self, device=None: self.clone()),
        mock.patch.object(torch, "empty", unpinned),
    ):
        yield


def seeded() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)

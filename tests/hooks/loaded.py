"""Objects that torch.load gave, ours and torch's: equal in all that a program could see, down to who shares what."""

from __future__ import annotations

import math
import random
import struct
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.hooks.loads import Refused, load_torch as load

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.bfloat16, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):  # of torch 2.7
    DTYPES.append(torch.float8_e8m0fnu)


ARRAY_DTYPES = ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]


class Pairs:
    """Compares two objects; what is one object, or one storage, on one side is one on the other."""

    def __init__(self) -> None:
        self._ours: dict[Any, Any] = {}
        self._theirs: dict[Any, Any] = {}

    def match(self, kind: str, ours: Any, theirs: Any) -> bool:
        """Return whether this pair was met before; assert that neither was met with another."""
        known = (kind, ours) in self._ours or (kind, theirs) in self._theirs
        assert self._ours.setdefault((kind, ours), theirs) == theirs
        assert self._theirs.setdefault((kind, theirs), ours) == ours
        return known

    def compare(self, ours: Any, theirs: Any) -> None:
        assert type(ours) is type(theirs), (ours, theirs)
        if self.match("object", id(ours), id(theirs)):
            return
        if isinstance(theirs, torch.Tensor):
            self.compare_tensors(ours, theirs)
        elif isinstance(theirs, (dict, list, tuple)):
            assert len(ours) == len(theirs)
            parts = [(*one, *one.values()) if isinstance(one, dict) else one for one in (ours, theirs)]
            for mine, other in zip(*parts, strict=True):
                self.compare(mine, other)
        elif isinstance(theirs, float):
            assert struct.pack("d", ours) == struct.pack("d", theirs)
        elif isinstance(theirs, complex):
            assert struct.pack("dd", ours.real, ours.imag) == struct.pack("dd", theirs.real, theirs.imag)
        else:
            assert ours == theirs
        assert getattr(ours, "__dict__", None) == getattr(theirs, "__dict__", None)

    def compare_tensors(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        names = "dtype shape requires_grad is_leaf device layout grad grad_fn _base _version _backward_hooks"
        for name in [*names.split(), "is_quantized", "is_sparse", "output_nr"]:
            assert getattr(ours, name) == getattr(theirs, name), name
        names = "stride storage_offset is_contiguous is_conj is_neg is_shared is_inference numel"
        for name in names.split():
            assert getattr(ours, name)() == getattr(theirs, name)(), name
        assert type(ours._backward_hooks) is type(theirs._backward_hooks)
        assert (ours.data_ptr() == 0) == (theirs.data_ptr() == 0)
        mine, other = ours.untyped_storage(), theirs.untyped_storage()
        assert (mine.nbytes(), mine.resizable(), mine.device) == (other.nbytes(), other.resizable(), other.device)
        assert torch.equal(torch.empty(0).byte().set_(mine), torch.empty(0).byte().set_(other))
        self.match("storage", mine._cdata, other._cdata)
        if mine.nbytes():
            self.match("memory", mine.data_ptr(), other.data_ptr())
            assert mine.data_ptr() % 64 == 0


def assert_equal(ours: Any, theirs: Any) -> None:
    """Assert that two objects of torch.load's are equal."""
    Pairs().compare(ours, theirs)


def filled(shape: tuple[int, ...], dtype: torch.dtype, begin: int = 0) -> torch.Tensor:
    """Return a tensor whose bytes differ from their neighbours (bool: 0 and 1)."""
    data = (torch.arange(math.prod(shape) * dtype.itemsize, dtype=torch.int64) + begin) * 37 % 251
    return (data % 2 if dtype == torch.bool else data).to(torch.uint8).view(dtype).reshape(shape)


def filled_array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array whose bytes differ from their neighbours, as filled() does."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    data = (np.arange(count) * 37 % 251).astype(np.uint8)
    return np.ascontiguousarray(data % 2 if dtype == "|b1" else data).view(dtype).reshape(shape)


def corpus() -> dict[str, Any]:
    """Return objects that are answered natively."""
    base = filled((6, 8), torch.float32)
    shared, text = [1, 2], "a text that is there twice"
    cyclic: list[Any] = [1]
    cyclic.append({"itself": cyclic})
    grad = torch.randn(3, requires_grad=True)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    objects: dict[str, Any] = {
        "tensor": base.clone(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0),
        "empty 2-d": torch.empty(3, 0, 2, dtype=torch.int64),
        "transposed": base.clone().t(),
        "column": base[:, 3],
        "tail": base[3:],
        "head": base[:2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "ones in between": torch.randn(2, 1, 3),
        "odd stride of one": torch.empty_strided((1, 3), (7, 1)).fill_(1),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "8-d": torch.randn(1, 2, 1, 2, 1, 2, 1, 2),
        "requires grad": grad,
        "parameter": torch.nn.Parameter(torch.randn(2, 3)),
        "frozen parameter": torch.nn.Parameter(torch.arange(3), requires_grad=False),
        "dict": {"x": torch.randn(4), "y": torch.randint(9, (3,)), "label": 3, "name": "ä€😀"},
        "ordered dict": OrderedDict(b=1, a=torch.ones(2)),
        "views": [base, base[1:], base.t(), base[2:, 3:]],
        "same tensor": (base, base, {"again": base}),
        "same list": [shared, shared, (shared, text), text],
        "shared parts": {"a": (1, 2, text), "b": [text, {"c": text}]},
        "cyclic": cyclic,
        "none": None,
        "plain": [True, False, None, 0, 1, -1, 255, 256, 65535, 65536, -(2**31), 2**31, 2**63, -(2**63), 2**64, 10**60],
        "floats": [0.0, -0.0, 1.5, float("inf"), float("nan"), 5e-324, 1e308],
        "complex": [1 + 2j, complex("nan"), -0j],
        "texts": ["", "a", "ä", "\ud800", "\x00", "x" * 300, "€" * 100],
        "bytes": [b"\x00\xff", b"abc", bytes(range(256))],
        "sets": [set(), {1}, {1, "a", (2, 3)}],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((), ((),))],
        "keys": {1: 2, 1.5: 3, None: 4, False: 5, (1, "a"): 6, b"b": 7, "": 8},
        "size": [torch.Size([1, 2]), torch.Size([]), torch.randn(2, 3).shape],
        "dtypes": [torch.float32, torch.int64, torch.bool, torch.float8_e5m2],
        "deep": deep,
        "many": list(range(2000)),
        "many tensors": [torch.full((i,), i) for i in range(40)],
        "big and small": {"x": filled((3, 40, 40), torch.float32), "y": torch.tensor(3), "mask": torch.ones(9).bool()},
        "two of a size": {"x": torch.randn(600), "y": torch.randn(600)},
        "mixed requires": [grad, grad.detach(), torch.nn.Parameter(base), base],
        "tensor as key": {torch.ones(2): 1},
        "set of none": {None},
        "nested empties": {"a": [], "b": {}, "c": (), "d": OrderedDict(), "e": [[], {}]},
    }
    objects |= {f"{dtype}": filled((3, 4), dtype) for dtype in DTYPES}
    objects |= {f"views of {dtype}": [filled((3, 4), dtype)[1:, ::2], filled((2,), dtype)] for dtype in DTYPES}
    return objects


def random_object(draw: random.Random, depth: int = 4, known: list[Any] | None = None) -> Any:
    """Return a random structure of what torch.save writes, with parts that are met more than once."""
    known = [] if known is None else known
    if known and draw.random() < 0.15:
        return draw.choice(known)
    kind = draw.randrange(12 if depth else 7)
    made: Any
    if kind < 2:
        number = draw.choice([draw.randrange(-300, 70000), draw.getrandbits(draw.choice([8, 40, 90]))])
        made = draw.choice([None, True, False, number, number, draw.uniform(-1, 1), draw.uniform(-1, 1)])
    elif kind == 2:
        made = "".join(draw.choices("abcä€😀 \n", k=draw.randrange(12)))
    elif kind == 3:
        made = draw.randbytes(draw.randrange(1, 9))
    elif kind < 7:
        made = _random_tensor(draw, known)
    else:
        made = [random_object(draw, depth - 1, known) for _ in range(draw.randrange(6))]
        if kind < 9:
            made = {draw.choice(["x", "y", 3, (1, "k"), f"k{draw.randrange(99)}"]): one for one in made}
        if draw.random() < 0.4:
            made = OrderedDict(made) if kind < 9 else tuple(made)
    known.append(made)
    return made


def _random_tensor(draw: random.Random, known: list[Any]) -> torch.Tensor:
    plain = [one for one in known if type(one) is torch.Tensor and one.dim() and not one.requires_grad]
    tensors = [one for one in plain if one.untyped_storage().nbytes()]
    if tensors and draw.random() < 0.4:
        base = draw.choice(tensors)
        return draw.choice([base.t() if base.dim() == 2 else base, base[: base.shape[0] // 2], base[1:], base[::2]])
    shape = tuple(draw.randrange(5) for _ in range(draw.randrange(4)))
    made = filled(shape, draw.choice(DTYPES), draw.randrange(99))
    if made.dtype == torch.float32 and draw.random() < 0.3:
        made = torch.nn.Parameter(made) if draw.random() < 0.5 else made.requires_grad_()
    return made


def answered_by(load: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a native answer of a call gives."""
    found = load(*arguments, **options)
    assert type(found) is not Refused, found
    return found


def refused_by(load: Any, *arguments: Any, **options: Any) -> str:
    """Return why a call is not answered natively."""
    found = load(*arguments, **options)
    assert type(found) is Refused, found
    return found.reason


answered = partial(answered_by, load)
refused = partial(refused_by, load)

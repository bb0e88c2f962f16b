"""Classes that lie, and data that is not what it seems: what torch's loader gives, or its error."""

from __future__ import annotations

import collections
import datetime
import functools
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import python_processes
from tests.differential.values import numbers
from tests.indexing.both import assert_as_torch
from tests.indexing.lying import FAILING, INDEXING, KINDS, Colour, Counted, Deep, Marked, N, Sequence, Shifted, Stubborn


def array(dtype: Any = np.float32, *shape: int) -> np.ndarray:
    return (np.arange(N * int(np.prod(shape or (3,)))) % 100).reshape(N, *(shape or (3,))).astype(dtype)


def replaced(values: list[Any], at: int, value: Any) -> list[Any]:
    values[at] = value
    return values


def read_only(values: np.ndarray) -> np.ndarray:
    values.setflags(write=False)
    return values


def with_nans(values: np.ndarray) -> np.ndarray:
    values[3, :2], values[5, 0], values[6, 1] = np.nan, -0.0, np.inf
    return values


def in_objects(values: list[Any]) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def structured() -> np.ndarray:
    made = np.zeros(N, dtype=[("a", "f4"), ("b", "i8", 2)])
    made["a"] = range(N)
    return made


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    made = numbers(3, dtype, N, *shape)
    if dtype is torch.float16:  # whose NaNs torch converts in one way or another, by the length of a row
        made[made.isnan()] = 0
    return made


def lazily(name: str) -> torch.Tensor:
    return (
        torch.Tensor.conj(tensor(torch.complex64, 3)) if name == "conj" else torch._neg_view(tensor(torch.float32, 3))
    )


ODD: dict[str, Callable[[], Any]] = {
    # lists
    "rows of other shapes": lambda: replaced([torch.ones(3) * i for i in range(N)], 9, torch.ones(4)),
    "a row of another dtype": lambda: replaced([torch.ones(3) * i for i in range(N)], 9, torch.ones(3).double()),
    "rows of other strides": lambda: replaced([torch.ones(2, 3) * i for i in range(N)], 9, torch.ones(3, 2).t()),
    "a row that needs a gradient": lambda: replaced([torch.ones(3) for _ in range(N)], 9,
    torch.ones(3).requires_grad_()),
    "a row of a subclass": lambda: replaced([torch.ones(3) for _ in range(N)], 9, torch.ones(3).as_subclass(Marked)),
    "one tensor many times": lambda: [torch.arange(3)] * N,
    "views of one tensor": lambda: list(torch.arange(3.0 * N).reshape(3, N).t().unbind()),
    "arrays of other shapes": lambda: replaced([np.ones(3) * i for i in range(N)], 9, np.ones(2)),
    "an array of another dtype": lambda: replaced([np.ones(3) * i for i in range(N)], 9, np.ones(3, np.float32)),
    "one array is a list": lambda: replaced([np.ones(3) * i for i in range(N)], 9, [1.0, 2.0, 3.0]),
    "one None": lambda: replaced([*range(N)], 9, None),
    "one None among rows": lambda: replaced([torch.ones(3) for _ in range(N)], 9, None),
    "all None": lambda: [None] * N,
    "an integer among floats": lambda: replaced([i / 3 for i in range(N)], 9, 4),
    "a float among integers": lambda: replaced([*range(N)], 9, 4.5),
    "the first is another": lambda: replaced([*range(N)], 0, 4.5),
    "a bool among integers": lambda: replaced([*range(N)], 9, True),
    "bools": lambda: [i % 3 == 0 for i in range(N)],
    "an integer among bools": lambda: replaced([i % 3 == 0 for i in range(N)], 9, 2),
    "a numpy number among integers": lambda: replaced([*range(N)], 9, np.int32(4)),
    "numbers of numpy": lambda: [np.float16(i) for i in range(N)],
    "mixed numbers of numpy": lambda: replaced([np.float32(i) for i in range(N)], 9, np.float64(2)),
    "large integers": lambda: [2**62 + i for i in range(N)],
    "too large an integer": lambda: replaced([*range(N)], 9, 2**63),
    "far too large an integer": lambda: replaced([*range(N)], 9, 2**70),
    "a large integer among floats": lambda: replaced([float(i) for i in range(N)], 9, 2**70),
    "NaN": lambda: replaced([i / 3 for i in range(N)], 9, float("nan")),
    "complex": lambda: [complex(i, 1) for i in range(N)],
    "enumeration": lambda: [Colour.RED, Colour.BLUE] * (N // 2),
    "strings": lambda: [f"text {i}" for i in range(N)],
    "huge strings": lambda: [f"{i}" * 20_000 for i in range(N)],
    "strange strings": lambda: ["", "\0", "\ud800", "ß" * 3, "\U0001f600", *["a"] * (N - 5)],
    "a string among numbers": lambda: replaced([*range(N)], 9, "nine"),
    "a number among strings": lambda: replaced(["a"] * N, 9, 9),
    "bytes": lambda: [b"a%d" % i for i in range(N)],
    "strings of numpy": lambda: [np.str_(f"a{i}") for i in range(N)],
    "ragged lists": lambda: [[*range(i % 3 + 1)] for i in range(N)],
    "one longer list": lambda: replaced([[i, i + 1, i + 2] for i in range(N)], 9, [1, 2, 3, 4]),
    "one list holds a float": lambda: replaced([[i, i + 1, i + 2] for i in range(N)], 9, [1, 2.5, 3]),
    "one list holds None": lambda: replaced([[i, i + 1, i + 2] for i in range(N)], 9, [1, None, 3]),
    "one tuple among lists": lambda: replaced([[i, i + 1, i + 2] for i in range(N)], 9, (1, 2, 3)),
    "nested lists": lambda: [[[i, 1], [2, 3]] for i in range(N)],
    "empty lists": lambda: [[] for _ in range(N)],
    "dictionaries": lambda: [{"a": i, "b": torch.ones(2) * i} for i in range(N)],
    "other keys": lambda: replaced([{"a": i} for i in range(N)], 9, {"b": 1}),
    "another order of keys": lambda: replaced([{"a": i, "b": 1} for i in range(N)], 9, {"b": 1, "a": 2}),
    "pairs": lambda: [(torch.ones(2) * i, i, f"{i}") for i in range(N)],
    "dates": lambda: [datetime.date(2026, 1, i + 1) for i in range(N)],
    "a list of a subclass": lambda: Counted(range(N)),
    "a deque": lambda: collections.deque(range(N)),
    "a user's list": lambda: collections.UserList(range(N)),
    "a range": lambda: range(5, 5 + N),
    "a string": lambda: "abcdefghijklmnopqrstuvwxyz"[:N],
    "bytes of one object": lambda: bytes(range(N)),
    "a bytearray": lambda: bytearray(range(N)),
    "a memoryview": lambda: memoryview(np.arange(N, dtype=np.int16).data),
    "a dictionary": lambda: {i: torch.ones(3) * i for i in range(N)},
    "a dictionary without a key": lambda: {i: i for i in range(N) if i != 9},
    "a defaultdict": lambda: collections.defaultdict(int, {1: 5}),
    "a user's sequence": lambda: Sequence(),
    "nothing": lambda: None,
    "an empty list": list,
    # arrays
    **{f"array of {name}": functools.partial(array, name) for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float64",
        "complex64", "complex128", ">f4", ">i8", "<i2", "O", "U5", "S3", "M8[D]", "m8[s]",
    )},
    "one column": lambda: array(np.int16).reshape(-1)[:N],
    "one column of floats": lambda: array(np.float64).reshape(-1)[:N],
    "one column, byte-swapped": lambda: array(">f8").reshape(-1)[:N],
    "one column of texts": lambda: np.array([f"t{i}" for i in range(N)]),
    "NaNs, infinities, negative zeros": lambda: with_nans(array()),
    "read-only": lambda: read_only(array()),
    "every second element": lambda: array(np.float32, 6)[:, ::2],
    "every second row": lambda: np.repeat(array(), 2, 0)[::2],
    "rows from behind": lambda: array()[::-1],
    "elements from behind": lambda: array()[:, ::-1],
    "Fortran's order": lambda: np.asfortranarray(array(np.float32, 3, 4)),
    "transposed": lambda: array(np.float32, 2, 3).transpose(0, 2, 1),
    "broadcast": lambda: np.broadcast_to(np.arange(3.0), (N, 3)),
    "not aligned": lambda: np.frombuffer(b"\0" + array().tobytes(), np.uint8)[1:].view(np.float32).reshape(N, 3),
    "of zero rows": lambda: np.zeros((0, 3), np.float32),
    "of empty rows": lambda: np.zeros((N, 0), np.float32),
    "of no dimension": lambda: np.float32(3),
    "fewer rows": lambda: array()[:9],
    "of objects": lambda: in_objects([np.ones(3) * i for i in range(N)]),
    "of objects of other shapes": lambda: in_objects([np.ones(i % 3 + 1) for i in range(N)]),
    "of objects with None": lambda: in_objects(replaced([1] * N, 9, None)),
    "of texts as objects": lambda: in_objects([f"t{i}" for i in range(N)]),
    "structured": structured,
    "a record array": lambda: structured().view(np.recarray),
    "an array of a subclass": lambda: array().view(Shifted),
    "a matrix": lambda: np.ones((N, 3)) @ np.eye(3),
    # tensors
    **{f"tensor of {dtype}": functools.partial(tensor, dtype, 4) for dtype in (
        torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
        torch.uint64, torch.float16, torch.bfloat16, torch.float64, torch.complex32, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2,
    )},
    "a tensor of numbers": lambda: tensor(torch.int16),
    "a tensor of halves": lambda: tensor(torch.bfloat16),
    "a tensor of fewer rows": lambda: torch.ones(9, 3),
    "a tensor of zero rows": lambda: torch.ones(0, 3),
    "a tensor of empty rows": lambda: torch.ones(N, 0),
    "a tensor of no dimension": lambda: torch.tensor(3.0),
    "a transposed tensor": lambda: torch.arange(3.0 * N).reshape(3, N).t(),
    "a tensor's rows transposed": lambda: torch.arange(6.0 * N).reshape(N, 2, 3).transpose(1, 2),
    "an expanded tensor": lambda: torch.arange(3.0).expand(N, 3),
    "every second column": lambda: torch.arange(6.0 * N).reshape(N, 6)[:, ::2],
    "channels last": lambda: torch.randn(N, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "overlapping rows": lambda: torch.arange(40.0).as_strided((N, 3), (1, 1)),
    "with an offset": lambda: torch.arange(50.0)[4:].as_strided((N, 3), (3, 1), 4),
    "with a gradient": lambda: torch.ones(N, 3, requires_grad=True),
    "with a graph": lambda: torch.ones(N, 3, requires_grad=True) * 2,
    "a parameter": lambda: torch.nn.Parameter(torch.arange(3.0 * N).reshape(N, 3)),
    "a conjugated view": lambda: lazily("conj"),
    "a negated view": lambda: lazily("neg"),
    "a tensor of a subclass": lambda: torch.arange(3.0 * N).reshape(N, 3).as_subclass(Marked),
    "a tensor of a stubborn subclass": lambda: torch.arange(3.0 * N).reshape(N, 3).as_subclass(Stubborn),
    "sparse": lambda: torch.eye(N).to_sparse(),
    "in shared memory": lambda: torch.arange(3.0 * N).reshape(N, 3).share_memory_(),
    "made for inference": lambda: inference(),
    "attributes on a tensor": lambda: marked(torch.ones(N, 3)),
    # NaNs whose bits count
    "bits of NaNs": lambda: torch.arange(N * 3, dtype=torch.int32).add(0x7FC00000).view(torch.float32).reshape(N, 3),
}  # fmt: skip


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(N, 3)


def marked(value: torch.Tensor) -> torch.Tensor:
    value.mark = 3  # type: ignore[attr-defined]
    return value


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_odd_data(name: str) -> None:
    for kind in (KINDS[one.__name__] for one in INDEXING):
        for options in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 3, "collate_fn": list}):
            try:
                assert_as_torch(lambda kind=kind: kind(ODD[name]()), lambda options=options: options)  # type: ignore[misc]
            except AssertionError as error:
                raise AssertionError(f"{kind.__name__}, {options}: {error}") from None


@pytest.mark.parametrize(
    "name", ["one None", "rows of other shapes", "array of uint16", "strings", "fewer rows", "NaN"]
)
@pytest.mark.parametrize("kind", ["plain", "in_dictionary", "to_tensor"])
def test_odd_data_in_worker_processes(kind: str, name: str) -> None:
    assert_as_torch(lambda: KINDS[kind](ODD[name]()), lambda: {"batch_size": 4, "num_workers": 1}, passes=1)


INDICES: dict[str, Callable[[], list[Any]]] = {
    "negative": lambda: [-1, 0, -N, 5],
    "below": lambda: [1, 2, -N - 1, 3],
    "beyond": lambda: [1, 2, N, 3, 4, 5],
    "far beyond": lambda: [1, 2**70, 3],
    "tensors": lambda: list(torch.tensor([3, 1, 2, 5])),
    "tensors of one dimension": lambda: [torch.tensor([3]), torch.tensor([1])],
    "tensors of indices": lambda: [torch.tensor([3, 4]), torch.tensor([1, 2])],
    "numbers of numpy": lambda: list(np.array([3, 1, 2, 5], np.int32)),
    "unsigned numbers of numpy": lambda: list(np.array([3, 1, 2, 5], np.uint8)),
    "arrays of no dimension": lambda: [np.array(3), np.array(1)],
    "bools": lambda: [True, False, True, 2],
    "floats": lambda: [1.0, 2.0],
    "a float among integers": lambda: [1, 2.0, 3],
    "slices": lambda: [slice(0, 3), slice(3, 6)],
    "lists": lambda: [[1, 2], [3, 4]],
    "pairs": lambda: [(1, 0), (2, 1)],
    "strings": lambda: ["1", "2"],
    "None": lambda: [1, None, 2],
    "a subclass of int": lambda: [Colour.RED, Colour.BLUE, 3],
    "repeated": lambda: [2, 2, 2, 2],
    "none at all": list,
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("data", ["array of float64", "with an offset", "strings", "pairs", "one column"])
def test_odd_indices(name: str, data: str) -> None:
    for kind in (KINDS[one] for one in ("plain", "windows", "to_tensor", "asking")):
        for given, own in product(("sampler", "batch_sampler"), (None, {"seed": 7})):
            chosen = INDICES[name]()
            options: Any = {given: chosen if given == "sampler" else [chosen[:2], chosen[2:]]}
            if given == "sampler":
                options["batch_size"] = 3
            try:
                assert_as_torch(lambda kind=kind: kind(ODD[data]()), lambda options=options: options, own)  # type: ignore[misc]
            except AssertionError as error:
                raise AssertionError(f"{kind.__name__}, {given}, {own}: {error}") from None


@pytest.mark.parametrize("length", [0, 1, 9, N - 1, N + 1, N + 9])
@pytest.mark.parametrize("data", ["array of float64", "with an offset", "strings", "pairs", "one column", "a range"])
def test_lengths_that_are_not_the_datas(length: int, data: str) -> None:
    """Windows at the end are shorter; rows behind it are errors, or memory that is there by chance: never read."""
    for kind in (KINDS[one] for one in ("plain", "windows", "in_dictionary", "to_floats")):
        for options in (
            {"batch_size": 4},
            {"batch_size": 5, "shuffle": length > 0},
            {"batch_size": None},
            {"drop_last": True},
        ):
            assert_as_torch(lambda kind=kind: kind(ODD[data](), length), lambda options=options: options)  # type: ignore[misc]


def bad_rows() -> torch.Tensor:
    x = torch.arange(3.0 * N).reshape(N, 3)
    x[9, 1] = float("nan")
    return x


@pytest.mark.parametrize("kind", [*(KINDS[one.__name__] for one in FAILING), Deep], ids=lambda kind: kind.__name__)
def test_errors_of_the_class_are_its_own(kind: Any) -> None:
    for options in ({"batch_size": 4}, {"batch_size": 1}, {"batch_size": None}, {"batch_size": 4, "num_workers": 1}):
        passes = 1 if "num_workers" in options else 3
        assert_as_torch(lambda: kind(bad_rows()), lambda options=options: options, passes=passes)  # type: ignore[misc]


def test_an_error_names_its_sample() -> None:
    from penstock import DataLoader  # noqa: PLC0415

    with pytest.raises(ValueError, match="sample 9 is bad") as caught:
        list(DataLoader(KINDS["refusing"](bad_rows()), 4))
    assert any("9" in note for note in getattr(caught.value, "__notes__", ["9"]))


_CUT = """
import os, sys
import numpy as np, torch
import penstock
from tests.indexing.lying import MappedTokens, MappedRows
kind = penstock.DataLoader if sys.argv[1] == "ours" else torch.utils.data.DataLoader
path, left, mode, name, late = sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6] == "late"
np.arange(100_000, dtype=np.uint16).tofile(path)
rows = np.memmap(path, dtype=np.uint16, mode=mode)
dataset = {"tokens": MappedTokens, "rows": MappedRows}[name](rows)
if not late:
    os.truncate(path, left)
count = 0
for number, (x, y) in enumerate(kind(dataset, 64)):
    if late and number == 2:
        os.truncate(path, left)
    count += int(x.sum()) + int(y.sum())
print(count)
"""


@pytest.mark.parametrize("name", ["tokens", "rows"])
@pytest.mark.parametrize(("left", "when"), [(4096 * 10, "early"), (4096 * 10 + 1000, "late"), (0, "late")])
def test_a_memory_map_whose_file_was_cut(name: str, left: int, when: str, tmp_path: Path) -> None:
    """The program ends as with torch's loader: by SIGBUS, behind the same batches."""
    ended = [
        python_processes.run(_CUT, who, tmp_path / f"{who}.bin", left, "r", name, when) for who in ("theirs", "ours")
    ]
    assert ended[0].returncode == ended[1].returncode, ended[1].stderr
    assert ended[0].stdout == ended[1].stdout

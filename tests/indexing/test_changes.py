"""What a program changes while a loader reads its dataset is seen when torch's loader sees it."""

from __future__ import annotations

import functools
import importlib.util
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.indexing.both import assert_as_torch
from tests.indexing.forms import FORMS

_MODULE = Path(__file__).with_name("changing.py")


def fresh(name: str = "Data", path: Path = _MODULE) -> Any:
    """Return a new instance of a class of a fresh copy of a module."""
    spec = importlib.util.spec_from_file_location("changing", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


def names(data: Any) -> dict[str, Any]:
    """Return the names of the module of a dataset."""
    return type(data).__len__.__globals__


def kind(data: Any) -> Any:
    return type(data)


def set_item(container: Any, key: Any, value: Any) -> None:
    container[key] = value


def give(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def doubled(self: Any, i: int) -> Any:
    return self.x[i] * 2


def number(self: Any, i: int) -> Any:
    return {"number": i}


def without_transform(data: Any) -> None:
    del data.transform


def answering(data: Any) -> None:
    type(data).__getattr__ = lambda self, name: None


CHANGES: dict[str, Callable[[Any], object]] = {
    # attributes
    "tensor exchanged": lambda d: give(d, x=d.x + 1000),
    "tensor of another dtype": lambda d: give(d, x=d.x.double()),
    "tensor of another shape": lambda d: give(d, x=d.x[:, :2]),
    "array in a tensor's place": lambda d: give(d, x=d.x.numpy() + 1),
    "list in a tensor's place": lambda d: give(d, x=d.x.tolist()),
    "fewer rows": lambda d: give(d, x=d.x[:9]),
    "no rows": lambda d: give(d, x=d.x[:0]),
    "attribute deleted": lambda d: delattr(d, "x"),
    "None in a list's place": lambda d: give(d, y=None),
    "a transform": lambda d: give(d, transform=lambda x: x.sum()),
    "a transform with a state": lambda d: give(d, transform=torch.nn.Identity()),
    "a switch": lambda d: give(d, train=not d.train),
    "vars": lambda d: vars(d).update(x=d.x - 5),
    "all exchanged": lambda d: vars(d).update(vars(fresh("Data")), x=d.x * 3),
    "indices exchanged": lambda d: give(d, ids=d.ids[::-1]),
    "indices of an array": lambda d: give(d, ids=np.array(d.ids)[::-1]),
    "a config's value": lambda d: give(d.config, block=4),
    "a config exchanged": lambda d: give(d, config=type("Own", (), {"block": 2})()),
    # memory
    "tensor written": lambda d: d.x.mul_(-1),
    "row of a tensor written": lambda d: d.x[5:9].zero_(),
    "array written": lambda d: set_item(d.a, slice(None), -1.5),
    "tokens written": lambda d: set_item(d.tokens, slice(4, 12), 7),
    "tensor set": lambda d: d.x.set_(torch.arange(40.0).reshape(20, 2)),
    "tensor resized": lambda d: d.x.resize_(10, 4),
    "tensor emptied": lambda d: d.x.resize_(0),
    "tensor transposed": lambda d: d.x.t_(),
    "tensor's data exchanged": lambda d: give(d.x, data=torch.ones(20, 4)),
    "tensor needs a gradient": lambda d: d.x.requires_grad_(),
    "array of another shape": lambda d: give(d, a=d.a.reshape(20, 1, 3)),
    "array reshaped in place": lambda d: d.a.resize((20, 1, 3), refcheck=False),
    "array resized": lambda d: d.a.resize((30, 3), refcheck=False),
    "array cut": lambda d: d.a.resize((9, 3), refcheck=False),
    "array read-only": lambda d: d.a.setflags(write=False),
    "tokens of another dtype": lambda d: give(d, tokens=d.tokens.view(np.int16)),
    # lists and dictionaries
    "list grew": lambda d: d.y.append(5),
    "element replaced": lambda d: set_item(d.y, 7, 5),
    "element of another kind": lambda d: set_item(d.y, 7, 2.5),
    "None in a list": lambda d: set_item(d.y, 7, None),
    "word replaced": lambda d: set_item(d.words, 7, "another"),
    "word is a number": lambda d: set_item(d.words, 7, 3),
    "list turned round": lambda d: d.y.reverse(),
    "element inserted": lambda d: d.words.insert(0, "first"),
    "list cut": lambda d: d.y.__delitem__(slice(9, None)),
    "list emptied": lambda d: d.y.clear(),
    "tensor of a list exchanged": lambda d: set_item(d.rows, 7, torch.ones(3, dtype=torch.int64)),
    "tensor of a list written": lambda d: d.rows[7].zero_(),
    "tensor of a list of another shape": lambda d: set_item(d.rows, 7, torch.ones(2, dtype=torch.int64)),
    "tensor of a list of another dtype": lambda d: set_item(d.rows, 7, torch.ones(3)),
    "index replaced": lambda d: set_item(d.ids, 7, 0),
    "index out of range": lambda d: set_item(d.ids, 7, 70),
    "entry exchanged": lambda d: set_item(d.table, "k", d.table["k"] * 2),
    "entry deleted": lambda d: d.table.pop("k"),
    # the class, the instance, the module
    "class's method": lambda d: give(kind(d), __getitem__=doubled),
    "class's method, another sample": lambda d: give(kind(d), __getitem__=number),
    "class's method, of the index's type": lambda d: give(kind(d), __getitem__=lambda self, i: type(i).__name__),
    "code of the method": lambda d: give(kind(d).__getitem__, __code__=number.__code__),
    "code of a helper": lambda d: give(names(d)["helper"], __code__=(lambda x, times: x + times).__code__),
    "defaults of a helper": lambda d: give(names(d)["helper"], __defaults__=(30,)),
    "helper of the class": lambda d: give(kind(d), label=lambda self, i: -i),
    "helper of the instance": lambda d: give(d, label=lambda i: i / 2),
    "helper of the module": lambda d: names(d).update(helper=lambda x: x + 100),
    "constant of the module": lambda d: names(d).update(FACTOR=8),
    "name of the module hidden": lambda d: names(d).update(torch=type("T", (), {"from_numpy": staticmethod(len)})),
    "builtin hidden": lambda d: names(d).update(slice=int, int=float),
    "class attribute": lambda d: give(kind(d), scale=1),
    "class attribute on the instance": lambda d: give(d, scale=2),
    "class attribute of the config": lambda d: give(type(d.config), block=5),
    "another class": lambda d: give(d, __class__=names(d)["Other"]),
    "method of the instance": lambda d: give(d, __getitem__=lambda i: i),
    "getitems of the instance": lambda d: give(d, __getitems__=lambda indices: [{"i": i} for i in indices]),
    "getitems of the class": lambda d: give(kind(d), __getitems__=lambda self, indices: [{"i": i} for i in indices]),
    "property": lambda d: give(kind(d), x=property(lambda self: torch.arange(40.0).reshape(20, 2))),
    "property for a list": lambda d: give(kind(d), y=property(lambda self: range(20))),
    "descriptor": lambda d: give(kind(d), x=names(d)["Changed"]()),
    "getattribute": lambda d: give(kind(d), __getattribute__=lambda self, name: object.__getattribute__(self, name)),
    "getattribute, another value": lambda d: give(
        kind(d), __getattribute__=lambda self, name: 9 if name == "train" else object.__getattribute__(self, name)
    ),
    "getattr": lambda d: [change(d) for change in (without_transform, answering)],
    "getattribute of the config": lambda d: give(type(d.config), __getattribute__=lambda self, name: 2),
    "length": lambda d: give(kind(d), __len__=lambda self: 3),
    "base class": lambda d: give(kind(d), __bases__=(type("Base", (torch.utils.data.Dataset,), {"extra": 3}),)),
}  # fmt: skip


def passes(name: str, **given: Any) -> None:
    for batch_size in (4, 1, None):
        options: Any = functools.partial(dict, batch_size=batch_size)
        try:
            assert_as_torch(lambda: fresh("Data"), options, passes=3, **given)
        except AssertionError as error:
            raise AssertionError(f"batch_size={batch_size}: {error}") from None


@pytest.mark.parametrize("name", CHANGES)
def test_in_the_middle_of_a_pass(name: str) -> None:
    passes(name, during=CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_between_passes(name: str) -> None:
    passes(name, between=CHANGES[name])


IN_WORKERS = [name for name in CHANGES if not name.startswith("tensor's data")][::4]


@pytest.mark.parametrize("name", IN_WORKERS)
def test_between_passes_with_worker_processes(name: str) -> None:
    """New workers have the dataset as it is. Of what is written behind their start they see nothing: rows that are
    gathered, as those of a TensorDataset, are read in the program's own process, and a program may see the change."""
    options = {"batch_size": 4, "num_workers": 1}
    assert_as_torch(lambda: fresh("Data"), lambda: options, between=CHANGES[name])


def test_a_dictionary_that_a_class_goes_through_is_put_into_another_order() -> None:
    assert_as_torch(
        FORMS["Columns"], lambda: {"batch_size": 4}, during=lambda d: set_item(d.columns, "x", d.columns.pop("x"))
    )


def test_a_class_that_is_called_again_gets_numbers_of_python() -> None:
    """The order of a later pass was drawn for rows that are gathered."""
    calls: list[Any] = []

    def change(data: Any) -> None:
        calls.append(data)
        if len(calls) % 2 == 0:  # in the second pass of each loader
            give(kind(data), __getitem__=lambda self, i: type(i).__name__)

    assert_as_torch(lambda: fresh("Plain"), lambda: {"batch_size": 2, "shuffle": True}, during=change)


def test_an_array_that_is_written_before_each_batch() -> None:
    """What is in memory when a batch is asked for is what the batch holds, and no batch changes afterwards."""

    made: list[Any] = []

    def make() -> Any:
        made.append(fresh("Data"))
        return made[-1]

    assert_as_torch(
        make, lambda: {"batch_size": 2}, receive=lambda batch: (made[-1].x.add_(1), made[-1].a.__iadd__(1)), passes=3
    )


def test_a_file_that_is_written_after_its_import(tmp_path: Path) -> None:
    """The source beside the running code is another one: line by line as long, or not there any more."""
    source = _MODULE.read_text()
    path = tmp_path / "changing.py"
    for stale in (
        source.replace("self.x[i], self.y[i]", "self.y[i], self.x[i]"),
        source.replace("return self.x[i]", "return self.y[i]"),
        source.replace("class Plain(Dataset):", "class Gone(Dataset):"),
        "\n" + source,
        "",
        "def (",
        None,
    ):

        def make(stale: str | None = stale) -> Any:
            path.write_text(source)
            data = fresh("Plain", path)
            path.write_text(stale) if stale is not None else path.unlink()
            return data

        assert_as_torch(make, lambda: {"batch_size": 4})


def test_a_class_without_a_source() -> None:
    def make() -> Any:
        found: dict[str, Any] = {"__name__": "nowhere"}
        exec(compile(_MODULE.read_text(), "<string>", "exec"), found)
        return found["Plain"]()

    assert_as_torch(make, lambda: {"batch_size": 4})


def test_two_classes_of_one_line() -> None:
    """Two functions of one line of source are not taken for one another."""

    def make(which: int) -> Any:  # fmt: skip
        first, second = (lambda self, i: self.x[i], lambda self, i: self.y[i])  # fmt: skip
        kind = type(
            "Pair", (torch.utils.data.Dataset,), {"__getitem__": (first, second)[which], "__len__": lambda s: 9}
        )
        made: Any = kind()
        made.x, made.y = torch.arange(9.0), [*range(9)]
        return made

    for which in (0, 1):
        assert_as_torch(lambda which=which: make(which), lambda: {"batch_size": 2})  # type: ignore[misc]


def taken(calls: list[Any]) -> list[Any]:
    """Return what is in a list, and empty it."""
    found = calls[:]
    calls.clear()
    return found


def test_functions_that_were_exchanged_in_torch_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    of_torch = torch.from_numpy

    def counting(array: Any) -> torch.Tensor:
        calls.append(array.shape)
        return of_torch(array) + 1

    assert_as_torch(lambda: fresh("Data"), lambda: {"batch_size": 4}, state=lambda data: calls[:])
    monkeypatch.setattr(torch, "from_numpy", counting)
    calls.clear()
    assert_as_torch(lambda: fresh("Data"), lambda: {"batch_size": 4}, state=lambda data: taken(calls))


@pytest.mark.parametrize("name", ["__getitem__", "select", "float", "unsqueeze"])
def test_methods_that_were_exchanged_on_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = getattr(torch.Tensor, name), list[str]()

    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return original(self, *arguments, **named)

    monkeypatch.setattr(torch.Tensor, name, noted)
    assert_as_torch(lambda: fresh("Plain"), lambda: {"batch_size": 4}, state=lambda data: taken(calls))


def test_one_instance_that_two_loaders_read() -> None:
    data: Any = fresh("Data")

    def change(_: Any) -> None:
        data.x.add_(1)

    def make() -> Any:
        data.x.copy_(torch.arange(80.0).reshape(20, 4))
        return data

    for _ in range(2):
        assert_as_torch(make, lambda: {"batch_size": 4}, during=change)


def test_an_array_is_held_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may exchange it meanwhile."""
    data, gather, exchanges, seen = fresh("Data"), penstock._native.gather_rows, list[int](), list[bool]()

    def exchanging(*arguments: Any) -> bool:
        if exchanges:
            exchanges.clear()
            data.a = np.zeros((20, 3), dtype=np.float32)
            seen.append(array() is not None)
        return gather(*arguments)

    monkeypatch.setattr(penstock._native, "gather_rows", exchanging)
    loader = penstock.DataLoader(data, batch_size=4)
    list(loader)  # the class is read behind the first batch
    batches, array = iter(loader), weakref.ref(data.a)
    exchanges.append(1)
    next(batches)
    assert seen == [True]

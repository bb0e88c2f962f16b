"""Hugging Face datasets that Python reads, and why: their batches equal those of torch's loader all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from tests.arrow_tables import BATCH, as_bits, datasets, equal, from_columns, simple
from tests.carriers_under_test import Executor, executors
from tests.same import assert_same


def changed(name: str, value: Any) -> Any:
    dataset = simple()
    setattr(dataset, name, value)
    return dataset


def torchs(**columns: Any) -> Any:
    return from_columns(**columns).with_format("torch")


LEFT: dict[str, tuple[Callable[[], Any], str]] = {
    "nulls in lists": (lambda: torchs(x=[[1.0, None]] * 4), "it holds nulls"),
    "lists of lists": (lambda: torchs(x=[[[1, 2], [3, 4]]] * 5), "elements of type list"),
    "dictionaries": (lambda: torchs(x=[{"a": 1}] * 5), "elements of type struct"),
    "a transform": (lambda: from_columns(x=[1, 2]).with_transform(lambda rows: rows), "its function makes the samples"),
    "a dtype": (lambda: simple().with_format("torch", dtype=torch.float16), "which become float16"),
    "an option": (lambda: simple().with_format("torch", requires_grad=False), "Python makes this format"),
    "numpy's options": (lambda: simple().with_format("numpy", dtype=np.float64), "Python makes this format"),
    "no rows": (lambda: simple().select([]), "it has no rows"),
    "a subclass": (
        lambda: changed("__class__", type("Own", (datasets.Dataset,), {})),
        "a subclass of Dataset may read differently",
    ),
    "a method": (
        lambda: changed("__getitems__", lambda indices: [{"x": index} for index in indices]),
        "its __getitem__ was replaced",
    ),
}


#: Tables whose only column is not one of numbers: nothing would make them native.
HOPELESS = ("nulls in lists", "lists of lists", "dictionaries")


def test_the_advice_for_a_table_can_be_followed() -> None:
    dataset = torchs(x=[[[1], [2]]] * 2, y=[1, 2])
    advice = "advice   with select_columns() without it, the native core could read it\n"
    assert advice in penstock.DataLoader(dataset, batch_size=2).explain() + "\n"
    assert "the native core" not in penstock.DataLoader(dataset, batch_size=2, collate_fn=list).explain()


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_columns(x=[1, 2, None, 4]).with_format("numpy"),
        lambda: torchs(x=["a", "b"] * 5, y=range(10)),
        lambda: from_columns(x=[[1, 2]] * 5),
        lambda: torchs(x=[[True, False]] * 5),
        lambda: from_columns(x=["a", "b\0", "", "ü"], y=[True, False] * 2, z=[0.1] * 4, u=[[1]] * 4),
        lambda: from_columns(x=["a", "b\0", "", "ü"], y=[True, False] * 2, z=[0.1] * 4).with_format("numpy"),
    ],
)
def test_other_columns_are_gathered_and_collated(make: Callable[[], Any]) -> None:
    equal(make(), native=None, batch_size=2)
    assert "native   gather" in penstock.DataLoader(make(), batch_size=2, num_workers=2).explain()


@pytest.mark.parametrize("left", LEFT)
def test_what_is_not_surely_the_same_is_read_by_python(left: str) -> None:
    make, why = LEFT[left]
    loader = penstock.DataLoader(make(), batch_size=2, num_workers=2)
    text = loader.explain()
    assert why in text and ("the native core could read it" in text) == (left not in HOPELESS)
    try:
        wanted = list(torch.utils.data.DataLoader(make(), batch_size=2))
    except Exception as error:
        with pytest.raises(type(error)):
            list(penstock.DataLoader(make(), batch_size=2))
    else:
        assert_same(list(map(as_bits, loader)), list(map(as_bits, wanted)))


def test_an_index_out_of_range_is_an_error_as_ever() -> None:
    for loader in (torch.utils.data.DataLoader, penstock.DataLoader):
        with pytest.raises(IndexError, match="out of"):
            list(loader(simple(5), batch_sampler=[[0, 1], [2, 5]]))


def test_lists_of_different_lengths() -> None:
    ragged = torchs(x=[[1.0] * (1 + i // 4) for i in range(12)])
    equal(ragged, batch_size=4)
    # And lists whose lengths come right in sum.
    even = torchs(x=[[1, 2], [3, 4], [5], [6], [7, 8, 9], [10, 11, 12]])
    equal(even, batch_size=2)
    for loader in (torch.utils.data.DataLoader, penstock.DataLoader):
        with pytest.raises(RuntimeError, match=r"equal size|shape \(1,\)"):
            list(loader(even, batch_size=3))


def test_tensors_that_come_otherwise_than_expected() -> None:
    loader = penstock.DataLoader(simple(), BATCH)
    with torch.device("meta"):
        assert "not become a plain tensor in host memory" in loader.explain()
    assert "gather" in loader.explain()


def photos() -> Any:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (40 + i, 50, 3), dtype=np.uint8)) for i in range(13)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcdefghijklm"))})
    return datasets.Dataset.from_dict({"image": images, "label": list(range(13))}, features=kinds)


def to_pixels(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the batch that a transform of the well-known kind makes of PIL images."""
    pixels = [torch.from_numpy(np.array(image.convert("RGB").resize((8, 8)))) for image in rows["image"]]
    return {"pixel_values": pixels, "label": rows["label"], "beside": [len(pixels)] * len(pixels)}


def assert_as_torch(dataset: Any, executor: Executor, *says: str) -> None:
    loader = penstock.DataLoader(dataset, batch_size=4, **executor.options)
    assert all(words in loader.explain() for words in (executor.says, *says))
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=4)))


@executors("caller", "threads, caller", "threads, 2", "threads, 5", "processes, 1", "processes, 2", "caller, fed")
def test_images_and_transforms(executor: Executor) -> None:
    for dataset in (photos(), photos().shuffle(seed=3)):
        assert_as_torch(dataset.with_transform(to_pixels), executor, "its function makes the samples")


def test_images_are_opened_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Mock(wraps=Image.open)
    monkeypatch.setattr(Image, "open", opening)
    dataset = photos().with_transform(to_pixels)
    given: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2, "worker_method": "thread"}]
    for options in given:
        opening.reset_mock()
        assert len(list(penstock.DataLoader(dataset, batch_size=4, **options))) == 4
        assert opening.call_count >= len(dataset)


@executors("caller", "threads, 2", "processes, 2")
def test_images_of_one_size_and_of_a_folder(executor: Executor, tmp_path: Path) -> None:
    dataset = photos().map(lambda row: {"image": row["image"].resize((9, 7))}).with_format("torch")
    assert_as_torch(dataset, executor, "elements of type struct")
    equal(dataset.with_format("torch", columns=["label"]), batch_size=4)
    files = [str(tmp_path / f"{number}.jpg") for number in range(13)]
    for file, row in zip(files, photos(), strict=True):
        row["image"].save(file)
    in_files = from_columns(image=files, label=list(range(13))).cast_column("image", datasets.Image())
    assert_as_torch(in_files.with_transform(to_pixels), executor)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_streams(options: dict[str, Any]) -> None:
    stream = simple().to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=5).with_format("torch")
    wanted = list(map(as_bits, torch.utils.data.DataLoader(stream, batch_size=4, **options)))
    assert_same(list(map(as_bits, penstock.DataLoader(stream, batch_size=4, **options))), wanted)


def test_padding_sees_whole_batches() -> None:
    def pad(rows: dict[str, Any]) -> dict[str, Any]:
        longest = max(map(len, rows["x"]))
        return {"x": [torch.tensor(row + [0] * (longest - len(row))) for row in rows["x"]]}

    dataset = from_columns(x=[list(range(1 + i % 7)) for i in range(40)]).with_transform(pad)
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=16))
    for method in ("process", "thread"):
        assert_same(list(penstock.DataLoader(dataset, batch_size=16, num_workers=2, worker_method=method)), wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_method_that_is_replaced_between_passes(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = from_columns(x=["a", "b", "c"], y=[1, 2, 3])
    loader = penstock.DataLoader(dataset, batch_size=2, num_workers=workers)
    assert [batch["x"] for batch in loader] == [["a", "b"], ["c"]]
    original = datasets.Dataset.__getitem__
    monkeypatch.setattr(
        datasets.Dataset, "__getitem__", lambda self, key: {**original(self, key), "x": ["z"] * len(key)}
    )
    assert [batch["x"] for batch in loader] == [["z", "z"], ["z"]]
    monkeypatch.undo()
    assert [batch["x"] for batch in loader] == [["a", "b"], ["c"]]

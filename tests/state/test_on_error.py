"""on_error=: bad samples are replaced by good ones, the same for any number of workers, and written down once."""

from __future__ import annotations

import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.carriers_under_test import options
from tests.data import Numbers, Order, Stream, Whole, tensor_files
from tests.same import assert_same

ALL = penstock.Replace(max_share=1.0)


METHODS = ("caller", "threads, 1", "threads, 2", "processes, 1", "processes, 2")


def numbers(*bad: int) -> Numbers:
    return Numbers(bad, 40)


def replacing(dataset: Any, size: int | None = 5, **options: Any) -> Any:
    """Return a loader that replaces any share of bad samples, where nothing else is said."""
    return penstock.DataLoader(dataset, size, **{"on_error": ALL, **options})


class Wholes(Numbers, Whole):
    """Numbers that are fetched a batch at a time."""


def lines(manifest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tensor_files(tmp_path / "tensors", 40, (3, 4))
    (root / "05.pt").write_bytes(b"")
    (root / "06.pt").unlink()
    os.truncate(root / "07.pt", (root / "07.pt").stat().st_size // 2)
    torch.save(torch.zeros(9, 9), root / "08.pt")
    return root


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "bad.jsonl"


def tensors(folder: Path) -> penstock.TensorFolder:
    names = [f"{i:02}" for i in range(40)]
    return penstock.TensorFolder(folder, names, {name: i for i, name in enumerate(names)})


@pytest.mark.native
@pytest.mark.parametrize("seed", [None, 3])
def test_bad_files_are_replaced_the_same_for_any_number_of_workers(folder: Path, seed: int | None) -> None:
    runs = []
    for workers in (0, 1, 2, 8):
        torch.manual_seed(0)
        loader = replacing(tensors(folder), 8, shuffle=True, num_workers=workers, seed=seed)
        runs.append([list(loader), list(loader)])
        assert "4 bad samples" in loader.explain()
        assert_same(runs[-1], runs[0])
    for epoch in runs[0]:
        assert [len(x) for x, _ in epoch] == [8] * 5
        for x, y in epoch:
            assert torch.equal(x, y[:, None, None].float().expand(-1, 3, 4))  # each sample has its own label
        assert set(torch.cat([y for _, y in epoch]).tolist()) == set(range(40)) - {5, 6, 7, 8}


@pytest.mark.native
def test_the_manifest_has_each_once_and_a_later_run_skips_them(folder: Path, manifest: Path) -> None:
    options: dict[str, Any] = {"seed": 1, "shuffle": True, "on_error": penstock.Replace(0.1, manifest)}
    loader = replacing(tensors(folder), 8, **options)
    first = [list(loader), list(loader)]
    entries = {line["id"]: line for line in lines(manifest)}
    assert len(lines(manifest)) == 4
    kinds = {"05": "Corrupt", "06": "Missing", "07": "Corrupt", "08": "Shape"}
    assert {id: entry["error"].startswith(kinds[id]) for id, entry in entries.items()} == dict.fromkeys(kinds, True)
    assert entries["06"]["path"] == str(folder / "06.pt") and entries["06"]["size"] is None
    assert entries["05"]["size"] == 0
    for i in range(5, 9):  # good again, but the manifest still says otherwise
        torch.save(torch.full((3, 4), float(i)), folder / f"{i:02}.pt")
    again = replacing(tensors(folder), 8, **options)
    assert_same([list(again), list(again)], first)
    names = [f"{i:02}" for i in reversed(range(40))]  # an order in which the manifest's positions are not theirs
    turned = replacing(penstock.TensorFolder(folder, names), 8, on_error=options["on_error"])
    assert not {int(x[0, 0]) for batch in turned for x in batch} & {5, 6, 7, 8}
    assert len(lines(manifest)) == 4


@options(*METHODS[:3])
def test_a_stand_in_is_one_that_the_sampler_could_have_drawn(options: dict[str, Any]) -> None:
    def given(dataset: Any, size: int = 5, **order: Any) -> list[Any]:
        return list(replacing(dataset, size, **order, **options))

    batches = given(numbers(8, 12), sampler=tud.SubsetRandomSampler(range(0, 40, 4)))
    assert all(i % 4 == 0 for i in torch.cat(batches).tolist())
    for weights in ([float(i % 4 == 0) for i in range(40)], [1.0] * 4 + [0.0] * 36):
        sampler = penstock.Weighted(weights)
        drawn = torch.cat(given(numbers(0, 8), 2, sampler=sampler, seed=1))
        assert set(drawn.tolist()) <= set(sampler.drawn_from()) - {0, 8}
    parts: Any = {"a": (tud.Subset(numbers(8, 12), range(20)), 1), "b": (numbers(3), 2)}
    assert {len(batch) for batch in given(penstock.Mix(parts, length=30), shuffle=True, seed=1)} == {5}
    own: list[list[int]] = [[1, 2, 3], [20, 21, 22]]  # of a sampler nobody knows: from the same batch
    got = [set(batch.tolist()) for batch in given(numbers(2, 22), 1, batch_sampler=own)]
    assert got == [{1, 3}, {20, 21}]
    with pytest.raises(ValueError, match="number 2 is bad"):  # where there is no other, the error is raised
        given(numbers(2), 1, batch_sampler=[[2]])


@options(*METHODS)
def test_datasets_that_fetch_whole_batches(options: dict[str, Any]) -> None:
    got = list(replacing(Wholes({3, 30}, 40), seed=1, **options))
    assert_same(got, list(replacing(numbers(3, 30), seed=1)))


def test_what_cannot_be_replaced_is_refused() -> None:
    class Endless(tud.Dataset[int]):
        """It has no length."""

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (Stream(3), {"on_error": "replace"}, "map-style"),
        (numbers(), {"on_error": "skip"}, "on_error='skip'"),
        (Endless(), {"on_error": "replace", "sampler": [1, 2]}, "Endless has none"),
    ]
    for dataset, given, words in wrong:
        with pytest.raises(penstock.InvalidOption, match=words):
            penstock.DataLoader(dataset, **given)


def test_where_no_sample_can_stand_in_the_error_is_raised() -> None:
    with pytest.raises(ValueError, match="is bad"):
        list(replacing(numbers(*range(40))))
    with pytest.raises(ValueError, match="number 4 is bad"):
        list(replacing(numbers(4), None, sampler=Order(range(9, 0, -1))))


@options(*METHODS)
def test_too_many_stays_too_many(options: dict[str, Any], manifest: Path) -> None:
    loader = replacing(numbers(1, 2, 3, 4, 5), 8, on_error=penstock.Replace(0.05, manifest), **options)
    batches = iter(loader)
    for again in (batches, batches, loader):
        with pytest.raises(penstock.TooManyBadSamples):
            next(iter(again))
    assert len(lines(manifest)) == 5


@options("threads, persistent", "processes, persistent")
def test_a_sample_that_several_workers_find_counts_once(options: dict[str, Any], manifest: Path) -> None:
    on_error = penstock.Replace(0.03, manifest)
    loader = replacing(numbers(3), shuffle=True, seed=1, **{**options, "on_error": on_error})
    for _ in range(5):  # another worker reads it in another epoch
        list(loader)
    assert [line["id"] for line in lines(manifest)] == ["3"]


def test_memory_that_runs_out_is_no_bad_sample() -> None:
    with pytest.raises(MemoryError):
        list(replacing(Numbers({3}, error=MemoryError)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [3, 100, 999])
def test_one_bad_sample_of_a_small_dataset_is_replaced(size: int, workers: int) -> None:
    loader = replacing(Numbers({1}, size, OSError), 64, num_workers=workers, on_error="replace", seed=1)
    for _ in range(2):
        values = torch.cat(list(loader)).tolist()
        assert len(values) == size and 1 not in values
        assert values[:1] + values[2:] == [index for index in range(size) if index != 1]


def test_the_error_of_a_small_dataset_says_how_many_are_allowed() -> None:
    words = r"2 of 100 samples are bad \(2.000%\), and .*max_share=0.001\) allows 1, as any share above 0 does:"
    with pytest.raises(penstock.TooManyBadSamples, match=words):
        list(replacing(Numbers({1, 5}, 100, OSError), 64, on_error="replace"))
    with pytest.raises(penstock.TooManyBadSamples, match=r"1 of 100 .* allows 0:"):
        list(replacing(Numbers({1}, 100, OSError), 64, on_error=penstock.Replace(0)))


def test_a_manifest_of_another_dataset_is_warned_of(folder: Path, manifest: Path, tmp_path: Path) -> None:
    how = penstock.Replace(1.0, manifest)
    list(replacing(tensors(folder), 8, on_error=how))
    replacing(tensors(folder), 8, on_error=how)  # the dataset that it belongs to
    replacing(tud.Subset(tensors(folder), range(8)), 4, on_error=how)  # three of its four are in it
    with pytest.warns(UserWarning, match=r"bad\.jsonl' seems to belong to another dataset: it names 4 bad samples"):
        replacing(tud.Subset(tensors(folder), range(20, 30)), 4, on_error=how)
    folder.rename(tmp_path / "moved")
    replacing(tensors(tmp_path / "moved"), 8, on_error=how)  # a dataset may be moved
    shutil.copytree(tmp_path / "moved", folder)
    words = r"sample '0.' is the file '.*/tensors/0..pt', and in this dataset '.*/moved/0"
    with pytest.warns(UserWarning, match=words):
        loader = replacing(tensors(tmp_path / "moved"), 8, on_error=how)
    assert "bad      4 bad samples, replaced by good ones; more than 40 end" in loader.explain()


def test_one_bad_sample_is_not_plural() -> None:
    loader = replacing(numbers(3))
    list(loader)
    assert "bad      1 bad sample, replaced by good ones; more than 40 end the run" in loader.explain()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1}, {"worker_method": "thread"}], ids=str)
def test_a_run_that_replaces_says_so_when_it_begins_and_at_its_end(
    caplog: pytest.LogCaptureFixture, manifest: Path, options: Any
) -> None:
    def run(*bad: int) -> list[str]:
        gc.collect()  # loaders of other tests speak at their end
        caplog.clear()
        loader = replacing(numbers(*bad), 8, on_error=penstock.Replace(1.0, manifest), **options)
        loader.silence_verdict()
        list(loader), list(loader)
        assert len(caplog.records) == bool(bad), "once, and not at each sample or pass"
        del loader
        gc.collect()
        return [record.getMessage() for record in caplog.records]

    assert run() == []
    begins, ends = run(17, 3)
    assert begins.startswith("on_error='replace': good samples replace bad ones from here on, beginning with '3' (")
    assert ends.startswith("on_error='replace': good samples replaced 2 bad samples of 40; they are listed in ")
    begins, ends = run(17, 3)
    assert "beginning with 2 samples of the manifest" in begins and "replaced 2 bad samples of 40" in ends

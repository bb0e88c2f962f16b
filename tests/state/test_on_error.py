"""on_error=: bad samples are replaced by good ones, the same for any number of workers, and written down once."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image
from torchvision import transforms as v1

import penstock
from tests.executors_under_test import options
from tests.same import assert_same
from tests.sample_datasets import Numbers, Stream, tensor_files

ALL = penstock.Replace(max_share=1.0)


METHODS = ("caller", "threads, 1", "threads, 2", "processes, 1", "processes, 2")


def numbers(*bad: int) -> Numbers:
    return Numbers(bad, 40)


class Wholes(Numbers):
    """Numbers that are fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def lines(manifest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tensor_files(tmp_path / "tensors", 40, (3, 4))
    (root / "05.pt").write_bytes(b"")
    (root / "06.pt").unlink()
    whole = (root / "07.pt").read_bytes()
    (root / "07.pt").write_bytes(whole[: len(whole) // 2])
    torch.save(torch.zeros(9, 9), root / "08.pt")
    return root


def tensors(folder: Path) -> penstock.TensorFolder:
    names = [f"{i:02}" for i in range(40)]
    return penstock.TensorFolder(folder, names, {name: i for i, name in enumerate(names)})


@pytest.mark.native
@pytest.mark.parametrize("seed", [None, 3])
def test_bad_files_are_replaced_the_same_for_any_number_of_workers(folder: Path, seed: int | None) -> None:
    runs = []
    for workers in (0, 1, 2, 8):
        torch.manual_seed(0)
        loader = penstock.DataLoader(tensors(folder), 8, shuffle=True, num_workers=workers, seed=seed, on_error=ALL)
        runs.append([list(loader), list(loader)])
        assert "4 bad samples" in loader.explain()
    for run in runs[1:]:
        assert_same(run, runs[0])
    for epoch in runs[0]:
        assert [len(x) for x, _ in epoch] == [8] * 5
        seen = torch.cat([y for _, y in epoch])
        for x, y in epoch:
            assert torch.equal(x, y[:, None, None].float().expand(-1, 3, 4))  # each sample has its own label
        assert not set(seen.tolist()) & {5, 6, 7, 8}
        assert set(seen.tolist()) == set(range(40)) - {5, 6, 7, 8}


@pytest.mark.native
def test_the_manifest_has_each_once_and_a_later_run_skips_them(folder: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "bad.jsonl"
    how = penstock.Replace(max_share=0.1, manifest=manifest)
    loader = penstock.DataLoader(tensors(folder), 8, seed=1, shuffle=True, on_error=how)
    first = [list(loader), list(loader)]
    entries = {line["id"]: line for line in lines(manifest)}
    assert len(lines(manifest)) == len(entries) == 4
    assert set(entries) == {"05", "06", "07", "08"}
    assert entries["06"]["path"] == str(folder / "06.pt") and entries["06"]["size"] is None
    assert entries["06"]["error"].startswith("MissingSample: ")
    assert entries["05"]["size"] == 0 and entries["05"]["error"].startswith("CorruptSample: ")
    assert entries["08"]["error"].startswith("ShapeMismatch: ")
    for i in range(5, 9):  # good again, but the manifest still says otherwise
        torch.save(torch.full((3, 4), float(i)), folder / f"{i:02}.pt")
    again = penstock.DataLoader(tensors(folder), 8, seed=1, shuffle=True, on_error=how)
    assert_same([list(again), list(again)], first)
    names = [f"{i:02}" for i in reversed(range(40))]  # an order in which the manifest's positions are not theirs
    turned = penstock.DataLoader(penstock.TensorFolder(folder, names), 8, on_error=how)
    assert not {int(x[0, 0]) for batch in turned for x in batch} & {5, 6, 7, 8}
    assert len(lines(manifest)) == 4


@pytest.mark.native
def test_images(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"c{i % 2}").mkdir(exist_ok=True)
        Image.new("RGB", (20, 20), (20 * i, 0, 0)).save(tmp_path / f"c{i % 2}" / f"{i:02}.jpg")
    (tmp_path / "c1" / "05.jpg").write_bytes(b"no image")
    dataset = torchvision.datasets.ImageFolder(str(tmp_path), v1.Compose([v1.Resize(8), v1.ToTensor()]))
    loader = penstock.DataLoader(dataset, 4, on_error=ALL)
    assert [len(y) for _, y in loader] == [4, 4, 4]
    with pytest.raises(penstock.CorruptSample):
        list(penstock.DataLoader(dataset, 4))


def test_more_than_the_share_aborts_with_the_list(folder: Path, tmp_path: Path) -> None:
    how = penstock.Replace(max_share=0.05, manifest=tmp_path / "bad.jsonl")
    with pytest.raises(penstock.TooManyBadSamples, match="05") as raised:
        list(penstock.DataLoader(tensors(folder), 8, on_error=how))
    assert "max_share" in str(raised.value)
    with pytest.raises(penstock.TooManyBadSamples):  # by default one in a thousand
        list(penstock.DataLoader(tensors(folder), 8, on_error="replace"))


@options(*METHODS)
def test_python_datasets(options: dict[str, Any], tmp_path: Path) -> None:
    bad = {3, 17, 18}
    reference = penstock.DataLoader(numbers(*bad), 5, shuffle=True, seed=2, num_workers=0, on_error=ALL)
    manifest = tmp_path / "bad.jsonl"
    how = penstock.Replace(max_share=0.1, manifest=manifest)
    loader = penstock.DataLoader(numbers(*bad), 5, shuffle=True, seed=2, on_error=how, **options)
    assert_same(list(loader), list(reference))
    second = list(loader)
    assert_same(second, list(reference))
    assert len(second) == 8 and not set(torch.cat(second).tolist()) & bad
    assert sorted(line["id"] for line in lines(manifest)) == ["17", "18", "3"]
    assert lines(manifest)[0]["error"] == f"ValueError: number {lines(manifest)[0]['id']} is bad"
    with pytest.raises(penstock.TooManyBadSamples, match="number"):
        list(penstock.DataLoader(numbers(*bad), 5, on_error=penstock.Replace(max_share=0.05), **options))


@options(*METHODS[:3])
def test_a_stand_in_is_one_that_the_sampler_could_have_drawn(options: dict[str, Any]) -> None:
    sampler = tud.SubsetRandomSampler(range(0, 40, 4))
    batches = list(penstock.DataLoader(numbers(8, 12), 5, sampler=sampler, on_error=ALL, **options))
    assert all(i % 4 == 0 for i in torch.cat(batches).tolist())
    for weights in (
        penstock.Weighted([float(i % 4 == 0) for i in range(40)]),
        penstock.Weighted([1.0] * 4 + [0.0] * 36),
    ):
        drawn = torch.cat(list(penstock.DataLoader(numbers(0, 8), 2, sampler=weights, seed=1, on_error=ALL, **options)))
        assert set(drawn.tolist()) <= set(weights.drawn_from()) - {0, 8}
    parts: Any = {"a": (tud.Subset(numbers(8, 12), range(20)), 1), "b": (numbers(3), 2)}
    mixed = penstock.DataLoader(penstock.Mix(parts, length=30), 5, shuffle=True, seed=1, on_error=ALL, **options)
    assert {len(batch) for batch in mixed} == {5}
    own: list[list[int]] = [[1, 2, 3], [20, 21, 22]]  # of a sampler nobody knows: from the same batch
    got = [
        set(batch.tolist()) for batch in penstock.DataLoader(numbers(2, 22), batch_sampler=own, on_error=ALL, **options)
    ]
    assert got == [{1, 3}, {20, 21}]
    with pytest.raises(ValueError, match="number 2 is bad"):  # where there is no other, the error is raised
        list(penstock.DataLoader(numbers(2), batch_sampler=[[2]], on_error=ALL, **options))


@options(*METHODS)
def test_datasets_that_fetch_whole_batches(options: dict[str, Any]) -> None:
    got = list(penstock.DataLoader(Wholes({3, 30}, 40), 5, seed=1, on_error=ALL, **options))
    assert_same(got, list(penstock.DataLoader(numbers(3, 30), 5, seed=1, on_error=ALL)))


def test_what_cannot_be_replaced_is_refused() -> None:
    with pytest.raises(penstock.InvalidOption, match="map-style"):
        penstock.DataLoader(Stream(3), on_error="replace")
    with pytest.raises(penstock.InvalidOption, match="on_error='skip'"):
        penstock.DataLoader(numbers(), on_error="skip")  # type: ignore[arg-type]

    class Endless(tud.Dataset[int]):
        """It has no length."""

    with pytest.raises(penstock.InvalidOption, match="Endless has no __len__"):
        penstock.DataLoader(Endless(), sampler=[1, 2], on_error="replace")


def test_a_dataset_without_a_good_sample_raises_its_error() -> None:
    with pytest.raises(ValueError, match="is bad"):
        list(penstock.DataLoader(numbers(*range(40)), 5, on_error=ALL))


@options(*METHODS)
def test_too_many_stays_too_many(options: dict[str, Any], tmp_path: Path) -> None:
    how = penstock.Replace(max_share=0.05, manifest=tmp_path / "bad.jsonl")
    loader = penstock.DataLoader(numbers(1, 2, 3, 4, 5), 8, on_error=how, **options)
    batches = iter(loader)
    for _ in range(2):
        with pytest.raises(penstock.TooManyBadSamples):
            next(batches)
    with pytest.raises(penstock.TooManyBadSamples):
        next(iter(loader))
    assert len(lines(tmp_path / "bad.jsonl")) == 5


def test_memory_that_runs_out_is_no_bad_sample() -> None:
    class Hungry(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise MemoryError
            return index

    with pytest.raises(MemoryError):
        list(penstock.DataLoader(Hungry(), 5, on_error=ALL))


def test_single_samples_of_a_users_sampler_raise_their_own_error() -> None:
    class Backwards(tud.Sampler[int]):
        def __iter__(self) -> Any:
            return iter(range(9, 0, -1))

    with pytest.raises(ValueError, match="number 4 is bad"):
        list(penstock.DataLoader(numbers(4), batch_size=None, sampler=Backwards(), on_error=ALL))


# --- small datasets: one bad sample is always allowed -----------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [3, 100, 999])
def test_one_bad_sample_of_a_small_dataset_is_replaced(size: int, workers: int) -> None:
    loader = penstock.DataLoader(Numbers({1}, size, OSError), 64, num_workers=workers, on_error="replace", seed=1)
    for _ in range(2):
        values = torch.cat(list(loader)).tolist()
        assert len(values) == size
        assert 1.0 not in values
        assert values[:1] + values[2:] == [float(index) for index in range(size) if index != 1]


def test_the_error_of_a_small_dataset_says_how_many_are_allowed() -> None:
    loader = penstock.DataLoader(Numbers({1, 5}, 100, OSError), 64, on_error="replace")
    with pytest.raises(
        penstock.TooManyBadSamples,
        match=r"2 of 100 samples are bad \(2.000%\), and .*max_share=0.001\) allows 1, as any share above 0 does:",
    ):
        list(loader)
    with pytest.raises(penstock.TooManyBadSamples, match=r"1 of 100 .* allows 0:"):
        list(penstock.DataLoader(Numbers({1}, 100, OSError), 64, on_error=penstock.Replace(0)))


# --- a manifest of another dataset ------------------------------------------------------------------------------------


def test_a_manifest_of_another_dataset_is_warned_of(folder: Path, tmp_path: Path) -> None:
    how = penstock.Replace(max_share=1.0, manifest=tmp_path / "bad.jsonl")
    list(penstock.DataLoader(tensors(folder), 8, on_error=how))
    penstock.DataLoader(tensors(folder), 8, on_error=how)  # the dataset that it belongs to
    penstock.DataLoader(tud.Subset(tensors(folder), range(8)), 4, on_error=how)  # three of its four are in it
    with pytest.warns(UserWarning, match=r"bad\.jsonl' seems to belong to another dataset: it names 4 bad samples"):
        penstock.DataLoader(tud.Subset(tensors(folder), range(20, 30)), 4, on_error=how)
    folder.rename(tmp_path / "moved")
    penstock.DataLoader(tensors(tmp_path / "moved"), 8, on_error=how)  # a dataset may be moved
    shutil.copytree(tmp_path / "moved", folder)
    with pytest.warns(
        UserWarning, match=r"sample '0.' is the file '.*/tensors/0..pt', and in this dataset '.*/moved/0"
    ):
        loader = penstock.DataLoader(tensors(tmp_path / "moved"), 8, on_error=how)
    assert "bad      4 bad samples, good ones stand in for them; more than 40 end" in loader.explain()


def test_one_bad_sample_is_not_plural() -> None:
    loader = penstock.DataLoader(numbers(3), 5, on_error=ALL)
    list(loader)
    assert "bad      1 bad sample, a good one stands in for it; more than 40 end the run" in loader.explain()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1}, {"worker_method": "thread"}], ids=str)
def test_a_run_that_replaces_says_so_when_it_begins_and_at_its_end(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, options: Any
) -> None:
    manifest = tmp_path / "bad.jsonl"

    def run(*bad: int) -> list[str]:
        gc.collect()  # loaders of other tests speak at their end
        caplog.clear()
        loader: Any = penstock.DataLoader(numbers(*bad), 8, on_error=penstock.Replace(1.0, manifest), **options)
        loader.log_nothing()
        list(loader)
        list(loader)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == bool(bad), "once, and not at each sample or pass"
        del loader
        gc.collect()
        return [record.getMessage() for record in caplog.records]

    assert run() == []
    begins, ends = run(17, 3)
    assert begins.startswith("on_error='replace': from here on good samples stand in for bad ones, first for '3' (")
    assert ends.startswith("on_error='replace': good samples stood in for 2 bad samples of 40; they are listed in ")
    begins, ends = run(17, 3)
    assert "first for 2 samples of the manifest" in begins and "for 2 bad samples of 40" in ends

"""Every executor gives what torch's loader gives: samples of every kind, every option, iterable datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.carriers_under_test import PYTHON, Executor, executors
from tests.data import Made, Stream, Whole, rows
from tests.same import assert_passes, assert_same, assert_same_outcome
from tests.samples import SAMPLES, image
from tests.values import resumed


def assert_as_torch(dataset: Any, executor: Executor, make_options: Any = dict, passes: int = 1) -> None:
    """Assert that batches, lengths and torch's generator afterwards (or the error) are those of torch's loader."""

    def outcome(kind: Any, own: dict[str, Any]) -> Any:
        torch.manual_seed(0)
        loader = kind(dataset, **make_options(), **own)
        if kind is penstock.DataLoader:
            assert executor.says in loader.explain().splitlines()[0]
        found = []
        for _ in range(passes):
            batches = iter(loader)
            assert len(batches) == len(loader)
            found.append(list(batches))
        return found, len(loader), torch.rand(1)

    assert_same_outcome(
        lambda: outcome(penstock.DataLoader, executor.options), lambda: outcome(tud.DataLoader, executor.torchs)
    )


@executors("caller", "threads, caller", "threads, 1", "threads, 2", "threads, 5")
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_every_kind(name: str, executor: Executor) -> None:
    assert_as_torch(Made(SAMPLES[name], 23), executor, lambda: {"batch_size": 4, "shuffle": name == "dict"})


class Backwards(Whole):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[::-1]


@executors("caller", "threads, caller", "threads, 2", "processes, 2")
def test_getitems_is_called_for_whole_batches(executor: Executor) -> None:
    assert_as_torch(Backwards(image, 23), executor, lambda: {"batch_size": 4})


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


#: Made anew for each loader: samplers and generators have a state.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "single samples": lambda: {"batch_size": None},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "shuffled single samples": lambda: {"batch_size": None, "shuffle": True},
    "shuffled by a generator": lambda: {"batch_size": 4, "shuffle": True, "generator": generator(3)},
    "drop_last": lambda: {"batch_size": 5, "drop_last": True},
    "one exact batch": lambda: {"batch_size": 23},
    "a larger batch": lambda: {"batch_size": 100},
    "sampler": lambda: {"sampler": [5, 3, -1, 3, 0, 22], "batch_size": 4},
    "SubsetRandomSampler": lambda: {"sampler": tud.SubsetRandomSampler(range(20), generator(0)), "batch_size": 3},
    "odd indices": lambda: {"sampler": [torch.tensor(4), np.int64(2), 1], "batch_size": 2},
    "batch_sampler": lambda: {"batch_sampler": [[3, 1], [22, 0, 0], [-1], [2]]},
    "empty batch": lambda: {"batch_sampler": [[3, 1], [], [-1]]},  # an error: default_collate refuses it
    "BatchSampler": lambda: {"batch_sampler": tud.BatchSampler(tud.SequentialSampler(range(23)), 5, True)},
}  # fmt: skip


@executors("native, caller", "native, 2", "native, fed")
@pytest.mark.parametrize("name", [name for name in OPTIONS if "single" not in name])
def test_options_of_native_plans(name: str, executor: Executor) -> None:
    assert_as_torch(rows(23), executor, OPTIONS[name], passes=2)
    if name == "shuffled":
        for size in (1, 2, 5000):
            assert_as_torch(rows(size), executor, OPTIONS[name], passes=2)


@executors("caller", "caller, torch's", "caller, fed", "threads, caller", "threads, 1", "threads, 2", "threads, 5")
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_python_plans(name: str, executor: Executor) -> None:
    assert_as_torch(Made(SAMPLES["tensor and label"], 23), executor, OPTIONS[name], passes=2)


@executors("processes, 2")
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("odd indices", "empty batch")])
def test_options_of_worker_processes(name: str, executor: Executor) -> None:
    assert_as_torch(Made(SAMPLES["tensor and label"], 23), executor, OPTIONS[name])


@executors("native, caller", "caller", "threads, caller", "threads, 2", "processes, 2")
def test_a_collate_fn(executor: Executor) -> None:
    dataset: Any = rows(23) if executor.native else Made(float, 23)
    torchs = tud.DataLoader(dataset, 4, collate_fn=tuple, **executor.torchs)
    assert_same(list(penstock.DataLoader(dataset, 4, collate_fn=tuple, **executor.options)), list(torchs))


@executors("native, 2", "threads, 1", "threads, 2", "processes, 1")
@pytest.mark.parametrize("prefetch", [1, 5])
def test_prefetch_factor(prefetch: int, executor: Executor) -> None:
    dataset: Any = rows(23) if executor.native else Made(image, 23)
    assert_as_torch(dataset, executor._replace(options={**executor.options, "prefetch_factor": prefetch}))


@executors("caller", "threads, caller", "threads, 2", "processes, 2", "processes, persistent")
@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}], ids=str
)
def test_iterable_datasets(options: dict[str, Any], executor: Executor) -> None:
    """Worker processes go through it where threads are asked for, too."""
    for size in [17] if executor.options.get("num_workers") else [0, 1, 17]:
        dataset = Stream(size)
        wanted = list(tud.DataLoader(dataset, **options, num_workers=executor.options["num_workers"]))
        loader = penstock.DataLoader(dataset, **options, **executor.options)
        assert_passes(loader, wanted)


class Unbounded(tud.Dataset[Any]):
    """Samples of any index, as of a stream of cuts; a list of samples that is not all of them."""

    samples = (("a.wav", 0), ("b.wav", 1))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 2 * index])


class Refusing(Unbounded):
    def __len__(self) -> int:
        raise NotImplementedError("the number of samples is not known")


class Broken(Unbounded):
    def __len__(self) -> int:
        raise TypeError("no length")


BATCHES = [[5, 3], [9, 1, 7], [2]]


@executors(*(name for name in PYTHON if name != "processes, out of order"))
@pytest.mark.parametrize("kind", [Unbounded, Refusing, Broken])
def test_map_style_datasets_without_a_length(kind: Any, executor: Executor) -> None:
    """They are read by their sampler, and a stopped epoch goes on."""
    for chosen in ({"batch_sampler": BATCHES}, {"sampler": [5, 3, 9, 1, 7, 2]}):
        first, second = (penstock.DataLoader(kind(), **chosen, **executor.options) for _ in range(2))
        expected = list(tud.DataLoader(kind(), **chosen))
        before, after = resumed(first, second, 1)
        assert_same([*before, *after], expected)
        assert second.state_dict()["data"] == {} and second.explain()


def test_states_of_datasets_with_and_without_a_length() -> None:
    class Sized(Unbounded):
        def __len__(self) -> int:
            return 10

    sized, loader = (penstock.DataLoader(kind(), batch_sampler=BATCHES) for kind in (Sized, Unbounded))
    next(iter(sized))
    loader.load_state_dict(sized.state_dict())
    assert_same(list(loader), list(tud.DataLoader(Unbounded(), batch_sampler=BATCHES))[1:])
    sized.load_state_dict(loader.state_dict())
    parts = [tud.Subset(Refusing(), chosen) for chosen in ([1, 2], [1, 2], [2, 1])]
    states = [penstock.DataLoader(part).state_dict()["data"] for part in parts]
    assert states[0] == states[1] != states[2] and states[0]["size"] == 2
    with pytest.raises(penstock.InvalidOption, match="needs a dataset with a length: Refusing has none"):
        penstock.DataLoader(Refusing(), sampler=[1], on_error="replace")

"""Accelerate's save_state and load_state save and restore where a loader is, prepared or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.errors import DatasetChanged, InvalidOption
from penstock.frameworks import keep_loaders

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
from functools import partial

import accelerate
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration

from tests.data import Stream
from tests.frameworks.launching import found_in, launched
from tests.frameworks.run_accelerate_state import BATCH, CASES, EPOCH, EPOCHS, SAMPLES, STEPS, Case, Seen, numbers
from tests.made_once import made_once
from tests.values import stored

pytestmark = pytest.mark.timeout(600)  # see launching.run

SEEDED = CASES["seeded"]
UNPREPARED = [name for name, case in CASES.items() if not case.prepared]


def flat(steps: Any) -> list[int]:
    return list(chain.from_iterable(steps))


def alone(size: int = SAMPLES, **options: Any) -> Any:
    """Return a loader that no accelerator has prepared."""
    return penstock.DataLoader(tud.TensorDataset(torch.arange(size)), **options)


SHUFFLED: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5}


def prepared_alone(**options: Any) -> Any:
    return keep_loaders(accelerate.Accelerator(cpu=True)).prepare(alone(**options))


def going_on(folder: Path, case: Case = SEEDED) -> tuple[Any, Any]:
    """Return an accelerator that has loaded a state of the third step of an epoch, and its loader."""
    case.saved(folder, 1, (3,))
    accelerator, loader, _ = case.begin()
    accelerator.load_state(str(folder / "3"))
    return accelerator, loader


def remainder(uninterrupted: Seen, step: int, case: Case = SEEDED) -> Seen:
    """Return what comes after so many steps of the epoch."""
    rest, after = uninterrupted[EPOCH][step:], uninterrupted[EPOCH + 1]
    # With its last batch a prepared epoch has ended; one of a loader alone ends when the next one is asked for.
    return [rest, after] if rest or not case.prepared else [after]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """What two ranks saw and saved, and what two others saw that went on."""
    folder = made_once(tmp_path_factory, "accelerate-state", partial(launched, "run_accelerate_state", save=2, load=2))
    return folder, found_in(folder, "save"), found_in(folder, "load")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_go_on_where_two_stopped(two: Any, name: str, step: int) -> None:
    _, before, after = two
    everything: list[int] = []
    for rank in (0, 1):
        uninterrupted, seen = before[rank][name]
        rest, read = after[rank][name][str(step)]
        assert seen == [uninterrupted[0], uninterrupted[EPOCH][: STEPS[-1]]]
        expected = remainder(uninterrupted, step)
        if "dispatched" in name and rank == 1:
            # Its last step is filled up with a sample of the first one that it saw, which is another one now.
            assert len(expected[0][-1]) == len(rest[0][-1]) > 1
            expected[0][-1][-1] = rest[0][-1][-1]
        assert rest[: len(expected)] == expected
        if "stream" in name:
            in_a_step = BATCH if "split" in name else 2 * BATCH
            assert read == ([] if rank else list(range(step * in_a_step, SAMPLES)))
        elif "dispatched" not in name:
            assert read == (flat(rest[0]) if CASES[name].dataset else [])
        everything += flat(uninterrupted[EPOCH][:step]) + flat(expected[0] if len(expected) > 1 else [])
    if "drop_last" not in name and name != "weighted":
        assert set(everything) == set(range(SAMPLES))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", UNPREPARED)
def test_one_rank_goes_on_where_two_stopped(two: Any, name: str, step: int) -> None:
    folder, before, _ = two
    rest, read = CASES[name].gone_on(folder / name / str(step))
    seen = flat(chain.from_iterable(rank[name][1][EPOCH][:step] for rank in before))
    assert sorted(seen + flat(rest[0])) == list(range(SAMPLES))
    assert read == (flat(rest[0]) if CASES[name].dataset else [])
    assert sorted(flat(rest[1])) == list(range(SAMPLES)), "the epoch after is whole"


def test_a_prepared_loader_refuses_other_processes(two: Any) -> None:
    said = r"a state of processes=2, .* cannot continue with processes=1, .*shard='auto'"
    with pytest.raises(InvalidOption, match=said):
        SEEDED.gone_on(two[0] / "seeded" / str(STEPS[0]))


@pytest.mark.parametrize("name", CASES)
def test_one_process_goes_on_exactly(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    uninterrupted = case.whole()
    last = len(uninterrupted[EPOCH])
    steps = (0, 1, 7, last - 1, last)
    assert case.saved(tmp_path, EPOCH, steps) == uninterrupted[: EPOCH + 1]
    for step in steps:
        rest, read = case.gone_on(tmp_path / str(step), 2)
        expected = remainder(uninterrupted, step, case)
        assert rest[: len(expected)] == expected, step
        assert read == (flat(rest[0]) if case.dataset else []), "samples that were skipped are not read"


def test_epochs_of_a_seed_are_those_of_the_loader_itself() -> None:
    loader = alone(**SHUFFLED)
    assert SEEDED.whole() == [numbers(loader) for _ in range(EPOCHS)]


def test_set_epoch_reaches_the_order_and_what_is_saved(tmp_path: Path) -> None:
    uninterrupted = SEEDED.whole()
    accelerator, loader, _ = SEEDED.begin()
    loader.set_epoch(2)
    accelerator.save_state(str(tmp_path))
    assert numbers(loader) == uninterrupted[2] and SEEDED.gone_on(tmp_path)[0][0] == uninterrupted[2]
    # Another epoch than that of the state begins at its start.
    accelerator, loader = going_on(tmp_path)
    loader.set_epoch(1)
    assert numbers(loader) == uninterrupted[1][3:]
    accelerator.load_state(str(tmp_path / "3"))
    loader.set_epoch(0)
    assert numbers(loader) == uninterrupted[0]


def test_a_state_that_was_loaded_is_saved_as_it_is(tmp_path: Path) -> None:
    accelerator, loader = going_on(tmp_path)
    accelerator.save_state(str(tmp_path / "again"))
    assert SEEDED.gone_on(tmp_path / "again") == SEEDED.gone_on(tmp_path / "3")
    assert json.dumps(stored(loader.state_dict())) == json.dumps(loader.state_dict())


def test_the_epoch_after_skipped_batches_is_another() -> None:
    uninterrupted = SEEDED.whole()
    accelerator, loader, _ = SEEDED.begin()
    assert numbers(loader) == uninterrupted[0]
    skipped = accelerator.skip_first_batches(loader, 3)
    assert numbers(skipped) == uninterrupted[1][3:]
    with pytest.raises(InvalidOption, match="what skip_first_batches made"):
        skipped.state_dict()
    loader.set_epoch(2)
    assert numbers(loader) == uninterrupted[2]


@pytest.mark.parametrize("name", ["seeded", "not prepared"])
def test_skipping_what_a_state_skips_is_refused(tmp_path: Path, name: str) -> None:
    accelerator, loader = going_on(tmp_path, CASES[name])
    with pytest.raises(InvalidOption, match="iterate over the loader itself, without skip_first_batches"):
        keep_loaders(accelerator).skip_first_batches(loader, 3)


def test_a_stream_that_does_not_say_where_it_is_is_read_again(tmp_path: Path) -> None:
    forgetful: Any = partial(Stream, SAMPLES, lambda number: (torch.tensor(number),), shared=False)
    case = Case(forgetful)
    uninterrupted = case.whole()
    case.saved(tmp_path, EPOCH, (3,))
    with pytest.warns(UserWarning, match="3 batches will be read and dropped"):
        rest, _ = case.gone_on(tmp_path / "3")
    assert rest == remainder(uninterrupted, 3)


@pytest.mark.parametrize("own", [tud.RandomSampler(range(SAMPLES)), penstock.Weighted([1.0] * SAMPLES), None])
def test_an_order_that_is_drawn_anew_is_not_registered(own: Any) -> None:
    accelerator = keep_loaders(accelerate.Accelerator(cpu=True))
    prepared = accelerator.prepare(alone(shuffle=own is None, sampler=own))
    for ask in (prepared.state_dict, lambda: accelerator.register_for_checkpointing(prepared)):
        with pytest.raises(InvalidOption, match=r"draws another order each time\. Give the loader seed="):
            ask()
    assert accelerator._custom_objects == []


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: alone(**SHUFFLED), InvalidOption, "format None"),
        (
            lambda: prepared_alone(**{**SHUFFLED, "batch_size": 3}),
            InvalidOption,
            r"batch_size=4.* cannot continue with .*batch_size=3",
        ),
        (lambda: prepared_alone(**{**SHUFFLED, "seed": 6}), InvalidOption, "seed=5 cannot continue with seed=6"),
        (lambda: prepared_alone(size=9, **SHUFFLED), DatasetChanged, None),
    ],
)
def test_states_of_other_loaders_are_refused(make: Any, error: Any, said: str | None) -> None:
    _, prepared, _ = SEEDED.begin()
    with pytest.raises(InvalidOption, match="not the state of a loader that an Accelerator prepared"):
        prepared.load_state_dict(alone(**SHUFFLED).state_dict())
    with pytest.raises(error, match=said):
        make().load_state_dict(prepared.state_dict())


def test_a_shard_is_not_cut_twice() -> None:
    with pytest.raises(InvalidOption, match=r"shard='auto' does: give shard=None, or leave the loader unprepared"):
        prepared_alone(shard="auto")


def test_uneven_processes_are_not_saved() -> None:
    config = DataLoaderConfiguration(even_batches=False)
    accelerator: Any = keep_loaders(accelerate.Accelerator(cpu=True, dataloader_config=config))
    accelerator.state._shared_state["num_processes"] = 2
    even, uneven = (accelerator.prepare(alone(batch_size=4, seed=5, drop_last=drop)) for drop in (True, False))
    assert even.state_dict()["cut"]["processes"] == 2
    with pytest.raises(InvalidOption, match="even_batches=False some processes have a batch more"):
        uneven.state_dict()

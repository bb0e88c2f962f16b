"""num_workers=None: passes are tuned while they run, and nothing that comes of them is another."""

from __future__ import annotations

import copy
import gc
import itertools
import logging
import pickle
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.executors.buffers import Buffers, Field
from penstock.executors.filler import IN_FLIGHT, Setting
from penstock.executors.tuning import Autotune, Controller, State, TuningObserver
from penstock.stats import Tuning, TuningStep
from tests.accelerator import replaced_by_late_streams
from tests.forking import assert_in_child
from tests.same import assert_same
from tests.sample_datasets import Made, Numbers, Stream, tensor_files

CPUS = 3
ROWS = TensorDataset(torch.arange(600.0).reshape(200, 3), torch.arange(200))


@pytest.fixture(autouse=True)
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have as many CPUs wherever the tests run."""
    for module in ("selection", "tuning"):
        monkeypatch.setattr(f"penstock.executors.{module}.usable_cpus", lambda: CPUS)
    monkeypatch.setattr("penstock.executors.selection.SMALL_BATCH", 0)  # threads fill the smallest batch too


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("files"), 120, (5,), "{:03}")


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """Make controllers choose another setting at each batch; returns those that they chose."""
    drawn, chosen = random.Random(0), []

    def look(self: Controller, *given: Any) -> None:
        self.setting = Setting(drawn.randint(1, CPUS), drawn.choice([None, 1, 3, 20]))
        chosen.append(self.setting)

    monkeypatch.setattr(Controller, "look", look)
    monkeypatch.setattr("penstock.executors.tuning.LOOK_SECONDS", 0.0)
    return chosen


def doubled(index: int) -> Any:
    return {"x": torch.full((3,), float(index)), "name": f"n{index}"}


def autotune_of(loader: Any) -> Autotune:
    found: Autotune = loader._executors.autotune
    return found


LOADERS: dict[str, Any] = {
    "files": {},
    "files, shuffled": {"shuffle": True, "seed": 3},
    "rows": {},
    "rows, persistent": {"persistent_workers": True},
    "threads": {"worker_method": "thread"},
    "threads, persistent": {"worker_method": "thread", "persistent_workers": True},
    "threads, shared": {"worker_method": "thread", "share_dataset": True},
}


@pytest.mark.parametrize("name", LOADERS)
def test_settings_that_change_all_the_time_change_no_batch(name: str, files: Path, restless: list[Setting]) -> None:
    dataset = {"f": penstock.TensorFolder(str(files)), "r": ROWS, "t": Made(doubled, 90)}[name[0]]
    options = LOADERS[name]
    tuned = penstock.DataLoader(dataset, 4, **options)
    fixed = penstock.DataLoader(dataset, 4, num_workers=2, **options)
    for _ in range(3):
        assert_same(list(tuned), list(fixed))
    assert len(restless) == 3 * len(tuned)
    tuning = tuned.stats().tuning
    assert tuning is not None and (tuning.threads, tuning.of) == (restless[-1].threads, CPUS)
    assert fixed.stats().tuning is None


def test_a_pass_that_is_resumed(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4, shuffle=True, seed=1)
    whole = list(loader)
    begun = penstock.DataLoader(penstock.TensorFolder(str(files)), 4, shuffle=True, seed=1)
    first = list(itertools.islice(begun, 9))
    rest = penstock.DataLoader(penstock.TensorFolder(str(files)), 4, shuffle=True, seed=1)
    rest.load_state_dict(begun.state_dict())
    assert_same([*first, *rest], whole)
    assert len(restless) == 30 + 9 + 21


def test_batches_that_go_to_a_device(files: Path, restless: list[Setting], monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_late_streams(monkeypatch)
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4, device="cuda")
    theirs = list(penstock.DataLoader(penstock.TensorFolder(str(files)), 4, num_workers=0))
    for _ in range(2):
        assert_same([tuple(batch) for batch in loader], [tuple(batch) for batch in theirs])
    assert len(restless) == 2 * len(loader)


def test_a_pass_goes_on_with_the_setting_of_the_one_before(files: Path) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    list(loader)
    controller = autotune_of(loader)._controller
    assert controller is not None
    controller.setting = Setting(1, 5)
    batches: Any = iter(loader)
    next(batches)
    assert batches.filler._pool.active == 1 and batches.filler._target == 5
    assert loader.stats().tuning == Tuning(1, CPUS, 5, False, ())


def test_the_depth_of_python_threads() -> None:
    rows: Any = iter(penstock.DataLoader(Made(doubled, 90), 4, worker_method="thread"))
    objects: Any = iter(penstock.DataLoader(Made(doubled, 90), 4, worker_method="thread", collate_fn=list))
    for batches, depth in ((rows, IN_FLIGHT), (objects, 2 * CPUS + 1)):
        for _ in range(2):
            next(batches)
        assert batches.knobs().in_flight == depth == len(batches._queue)
        batches.tune(Setting(2, 12))
        next(batches)
        assert len(batches._queue) == (12 if batches is rows else depth)
        assert (batches.knobs().batch_bytes > 0) == (batches is rows)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (ROWS, {"num_workers": 2}),
        (ROWS, {"num_workers": 0}),
        (Numbers(), {}),
        (Numbers(), {"num_workers": 1}),
        (Numbers(), {"num_workers": 2, "worker_method": "thread"}),
        (Stream(10), {"worker_method": "thread"}),
    ],
)
def test_what_is_not_tuned(dataset: Any, options: dict[str, Any], restless: list[Setting]) -> None:
    loader = penstock.DataLoader(dataset, 4, **options)
    list(loader)
    assert restless == [] and loader.stats().tuning is None
    assert "tuned" not in loader.explain()


def test_a_number_that_a_program_sets_is_kept(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    list(loader)
    seen = len(restless)
    loader.num_workers = 2
    batches: Any = iter(loader)
    list(batches)
    assert len(restless) == seen and "tuned" not in loader.explain()


def test_prefetch_factor_is_kept(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4, prefetch_factor=4)
    batches: Any = iter(loader)
    for _ in range(20):
        next(batches)
        assert batches.filler._target == 4 * CPUS
    assert batches.knobs().batch_bytes == 0


def test_explain_gives_the_latest_reason() -> None:
    loader = penstock.DataLoader(ROWS, 4)
    assert "tuned" not in loader.explain()
    list(loader)
    assert "tuned" not in loader.explain(), "nothing has been measured yet"
    controller = autotune_of(loader)._controller
    assert controller is not None
    controller.state = State.FROZEN
    frozen = "tuned    3 of 3 threads at work, 1 batch in flight, as there was nothing to gain from another number"
    assert frozen in loader.explain().splitlines()
    controller._steps = (TuningStep(1.0, 2, 1, "it had to be"), TuningStep(2.0, 1, 1, "the loop waited"))
    controller.setting = Setting(1)
    assert "tuned    1 of 3 threads at work, 1 batch in flight, because the loop waited" in loader.explain()


def test_of_two_passes_at_once_the_later_one_is_tuned(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    first, second = iter(loader), iter(loader)
    both = [(one[0].tolist(), other[0].tolist()) for one, other in zip(first, second, strict=True)]
    assert all(one == other for one, other in both)
    assert len(restless) == len(loader)


def test_an_abandoned_pass_is_freed_at_once(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    gc.collect()
    gc.disable()
    try:
        batches: Any = iter(loader)
        next(batches)
        made = weakref.ref(batches)
        del batches
        assert made() is None
    finally:
        gc.enable()
    assert len(list(loader)) == 30


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_is_tuned_anew(again: Any, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(ROWS, 4)
    list(loader)
    twin = again(loader)
    assert twin.stats().tuning is None and loader.stats().tuning is not None
    assert_same(list(twin), list(loader))
    assert autotune_of(twin) is not autotune_of(loader)


def test_a_fault_of_the_controller_ends_the_tuning_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(*given: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Controller, "look", look)
    loader = penstock.DataLoader(ROWS, 4)
    with caplog.at_level(logging.ERROR):
        assert len(list(loader)) == 50
    assert len(caplog.records) == 1


def test_in_a_forked_child(files: Path, restless: list[Setting]) -> None:
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    batches = iter(loader)
    first = next(batches)
    expected = list(penstock.DataLoader(penstock.TensorFolder(str(files)), 4, num_workers=1))

    def check() -> None:
        assert_same(list(loader), expected)

    autotune_of(loader)._lock.acquire()  # as by a thread that the child does not have
    assert_in_child(check)
    autotune_of(loader)._lock.release()
    assert_in_child(check)
    assert_same([first, *batches], expected)


def test_the_controller_is_asked_now_and_then(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(Controller, "look", lambda *given: looked.append(given))
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 4)
    now = itertools.count(0, 0.03)  # a reading for each batch
    autotune_of(loader)._clock = lambda: next(now)
    list(loader)
    assert len(loader) == 30 and len(looked) == 8  # once in four batches


def test_readings_of_the_real_clocks(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller whose windows are short goes through its states with the times of real passes."""
    monkeypatch.setattr("penstock.executors.tuning.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("penstock.executors.tuning.WINDOWS", dict.fromkeys(State, (0.0, 2)))
    loader = penstock.DataLoader(penstock.TensorFolder(str(files)), 2)
    whole = list(penstock.DataLoader(penstock.TensorFolder(str(files)), 2, num_workers=0))
    for _ in range(6):
        assert_same(list(loader), whole)
    tuning = loader.stats().tuning
    assert tuning is not None and 1 <= tuning.threads <= tuning.of == CPUS and tuning.in_flight >= IN_FLIGHT
    assert tuning.steps or tuning.frozen
    assert all(step.why and step.seconds >= 0 for step in tuning.steps)
    times = [step.seconds for step in tuning.steps]
    assert times == sorted(times)
    assert "\ntuned    " in loader.explain()


def test_an_observer_whose_pass_is_gone() -> None:
    loader = penstock.DataLoader(ROWS, 4)
    batches: Any = iter(loader)
    observer = TuningObserver(autotune_of(loader), batches, lambda: 1.0)
    del batches
    observer.delivered(penstock.observe.Delivery(None, 1))


def test_buffers_keep_what_a_deeper_setting_needs() -> None:
    buffers = Buffers(pinned=False, keep=4)
    field = Field(penstock._native.Spec("uint8", [1 << 17]))

    def kept() -> int:
        lent = [buffers.rows(1, field) for _ in range(12)]
        del lent
        return buffers.counts()[1]

    assert kept() == 4
    buffers.keep_times(2.5)
    assert kept() == 10
    buffers.keep_times(0.5)
    assert kept() == 4

"""penstock.install() and loaders derived from torch's: the same batches and draws as torch's passes, by ours."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import os
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

import penstock
from penstock.insight import record
from tests.commands import command, named
from tests.data import Drawing, Made, Stream, rows
from tests.differential.values import seeded
from tests.forking import assert_in_child
from tests.frameworks import derived_loaders as kinds, run_stateful
from tests.resources import run_script
from tests.same import assert_same
from tests.values import flat, listed
from tests.waiting import run_in_threads, wait_until

WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
OURS = [kinds.Infinite, kinds.Lazy, kinds.Graphs, kinds.Nodes, kinds.Seeding, kinds.Buffered]
OURS += [kinds.Guarded, kinds.Explicit, kinds.Mixed, kinds.Plain]
TORCHS = {
    kinds.OwnIterators: "its own code makes the iterators: _get_iterator() of OwnIterators",
    kinds.OwnLoop: "its own code makes the iterators: __iter__() of OwnLoop",
    kinds.OwnSampler: "torch makes the batches: it overrides _index_sampler",
    kinds.Duck: "torch makes the batches: 'Duck' object has no attribute 'batch_size'",
}


#: The attribute of a loader by which its passes are found.
BESIDE = "_penstock_beside"


def is_ours(batches: Any) -> bool:
    """Return whether a pass is Penstock's."""
    return type(batches).__module__.startswith("penstock.")


DATASETS: dict[str, Callable[[], Any]] = {
    "rows": lambda: rows(11),
    "draws": lambda: Drawing(11),
    "randomizable": lambda: kinds.Randomizable(11),
    "stream": lambda: Stream(7, lambda number: (number, torch.rand(1))),
}


def passes(kind: Any, dataset: Any, options: dict[str, Any]) -> list[Any]:
    """Return the batches of three epochs, which of torch's classes gave them, and what is drawn behind them."""
    seeded()
    loader = kind(dataset, 4, **({} if isinstance(dataset, Stream) else {"shuffle": True}), **options)
    found: list[Any] = []
    for epoch in range(1 if isinstance(dataset, Stream) else 3):
        if epoch == 2 and hasattr(loader, "reset"):
            loader.reset()
        found.append(list(loader))
    return [*found, random.random(), float(np.random.rand()), torch.rand(2)]


CASES = [(kind, dataset) for kind in OURS for dataset in ("rows", "draws")]
CASES += [(kinds.Seeding, "randomizable"), (kinds.Nodes, "stream"), (kinds.Plain, "stream")]


@pytest.mark.parametrize(("kind", "dataset"), CASES)
@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_passes_give_what_torchs_give(kind: Any, options: dict[str, Any], dataset: str) -> None:
    if kind is kinds.Buffered and dataset == "draws" and not options:
        pytest.skip("with torch's loader, too, its thread draws when it likes")
    wanted = passes(kind, DATASETS[dataset](), options)
    with penstock.install() as installed:
        found = passes(kind, DATASETS[dataset](), options)
        assert installed.explain() == f"tests.frameworks.derived_loaders.{kind.__name__}: Penstock makes the batches"
    assert_same(found, wanted)


class Eager:
    """A batch sampler that draws its batches when it begins."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size).tolist()
        return iter([order[:4], order[4:]])


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("dataset", ["rows", "draws"])
@pytest.mark.parametrize("endless", [False, True])
def test_samplers_draw_when_they_would_draw_for_torchs_iterators(
    dataset: str, options: dict[str, Any], endless: bool
) -> None:
    def found() -> Any:
        seeded()
        loader = kinds.Plain(
            DATASETS[dataset](), batch_sampler=kinds.Endless(Eager(11)) if endless else Eager(11), **options
        )
        return [
            [(batch, torch.rand(1)) for batch in (itertools.islice(loader, 5) if endless else loader)] for _ in range(3)
        ]

    wanted = found()
    with penstock.install():
        assert_same(found(), wanted)


@pytest.mark.parametrize("kind", TORCHS)
def test_what_makes_its_own_batches_stays_torchs(kind: Any, installed: Any) -> None:
    loader = kind(rows(3)) if kind is kinds.Duck else kind(rows(3), 2)
    found, again = list(loader), list(loader)
    assert_same(found, again)
    assert found and (kind is kinds.OwnLoop or type(iter(loader)).__module__ == "torch.utils.data.dataloader")
    if kind is not kinds.Duck or "Duck" in installed.explain():
        assert installed.explain() == f"tests.frameworks.derived_loaders.{kind.__name__}: {TORCHS[kind]}"


def test_explain_has_a_line_for_each_class(installed: Any) -> None:
    assert installed.explain() == "no loader was made since install()"
    kept = kinds.Plain(rows(3)), tud.DataLoader(rows(3)), kinds.OwnIterators(rows(3))
    with penstock.install() as inner:
        list(kinds.Nodes(rows(3)))
    assert [line.partition(": ")[::2] for line in installed.explain().splitlines()] == [
        ("penstock.loader.DataLoader", "each is a penstock.DataLoader, with an explain() of its own"),
        ("tests.frameworks.derived_loaders.Nodes", "Penstock makes the batches"),
        (
            "tests.frameworks.derived_loaders.OwnIterators",
            "its own code makes the iterators: _get_iterator() of OwnIterators",
        ),
        ("tests.frameworks.derived_loaders.Plain", "no pass has begun"),
    ]
    assert inner.explain() == installed.explain() and len(kept) == 3


# --- the loader stays what it is -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_class_attributes_length_and_references_stay() -> None:
    loader = kinds.Plain(rows(5), 2)
    before = set(vars(loader))
    batches = iter(loader)
    assert is_ours(batches) and isinstance(batches, _BaseDataLoaderIter)
    assert type(loader) is kinds.Plain and len(loader) == len(batches) == 3
    assert {name for name in set(vars(loader)) - before if not name.startswith("_")} == set()
    with pytest.raises(ValueError, match="batch_size attribute should not be set after Plain is initialized"):
        loader.batch_size = 3
    assert weakref.ref(loader)() is loader


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_passes_of_their_own(duplicate: Any) -> None:
    loader = kinds.Infinite(rows(5), 2) if duplicate is copy.copy else kinds.Plain(rows(5), 2)
    wanted = listed(loader)
    other = duplicate(loader)
    assert type(other) is type(loader)
    theirs, ours = kinds.Plain.__iter__(other), kinds.Plain.__iter__(loader)
    assert vars(other)[BESIDE] is not vars(loader)[BESIDE]
    assert listed([next(theirs), next(ours)]) == [wanted[0]] * 2


def test_a_pickled_loader_needs_no_penstock() -> None:
    with penstock.install():
        loader = kinds.Plain(rows(5), 2)
        wanted = listed(loader)
        stored = pickle.dumps(loader)
    assert b"penstock." not in stored
    assert listed(pickle.loads(stored)) == wanted


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [kinds.Plain, kinds.Nodes])
def test_nothing_keeps_a_loader(kind: Any) -> None:
    loader = kind(rows(5), 2)
    list(loader)
    gone, beside = weakref.ref(loader), weakref.ref(vars(loader)[BESIDE])
    if kind is kinds.Nodes:  # its collate_fn holds it, as with torch's passes
        del loader
        gc.collect()
    else:
        gc.disable()
        del loader
        gc.enable()
    assert gone() is None and beside() is None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [kinds.Infinite, kinds.Lazy, kinds.Plain, kinds.Nodes])
def test_workers_end_with_the_loader(kind: Any) -> None:
    loader = kind(Made(size=8), 2, num_workers=2, persistent_workers=True)
    list(loader)
    held = loader.iterator if kind in (kinds.Infinite, kinds.Lazy) else loader._iterator
    workers = list((held.batches if kind is kinds.Nodes else held)._workers)
    assert len(workers) == 2 and all(worker.is_alive() for worker in workers)
    gc.disable()
    try:
        del loader, held
        if kind is kinds.Nodes:  # which its collate_fn holds
            gc.collect()
        wait_until(lambda: not any(worker.is_alive() for worker in workers))
    finally:
        gc.enable()


# --- passes ----------------------------------------------------------------------------------------------------------


def pids(dataset: Any = None) -> Any:
    return Made(lambda index: os.getpid(), 4)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [kinds.Plain, kinds.Nodes])
def test_workers_that_persist_make_all_passes(kind: Any) -> None:
    loader = kind(pids(), 2, num_workers=1, persistent_workers=True)
    seen, iterators = [], set()
    for _ in range(3):
        iterators.add(id(batches := iter(loader)))
        seen.append({int(pid) for pid in flat(batch[1] if kind is kinds.Nodes else batch for batch in batches)})
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 1 and len(iterators) == 1
    fresh = set(flat(tud.DataLoader._get_iterator(loader)))
    assert fresh.isdisjoint(seen[0])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [kinds.Plain, kinds.Nodes])
def test_workers_that_persist_may_become_native_threads(kind: Any) -> None:
    """The iterator that the loader, or one around it, holds gives the batches of whoever makes them now."""
    loader = kind(rows(6), 2, num_workers=1, persistent_workers=True)
    loader.collate_fn = tud.default_collate
    wanted = listed(batch[1] if kind is kinds.Nodes else batch for batch in loader)
    batches = loader._iterator.batches if kind is kinds.Nodes else loader._iterator
    assert not hasattr(batches, "_workers")
    changes = [lambda one: tud.default_collate(one), tud.default_collate, lambda one: tud.default_collate(one)]
    for collate_fn in changes:
        loader.collate_fn = collate_fn
        object.__setattr__(loader, "dataset", Made(loader.dataset.__getitem__, 6))
        assert listed(batch[1] if kind is kinds.Nodes else batch for batch in loader) == wanted
    assert (loader._iterator.batches if kind is kinds.Nodes else loader._iterator) is batches
    assert hasattr(batches, "_workers")


@pytest.mark.usefixtures("installed")
def test_attributes_count_as_they_are_when_a_pass_begins() -> None:
    loader: Any = kinds.Plain(rows(6), 2, num_workers=1)
    assert [len(batch[0]) for batch in loader] == [2, 2, 2]
    object.__setattr__(loader, "batch_sampler", [[5, 4, 3], [0]])
    assert listed(loader) == [[[5, 4, 3]], [[0]]]
    object.__setattr__(loader, "dataset", tud.TensorDataset(torch.arange(6) * 10))
    loader.num_workers, loader.collate_fn = 0, len
    assert list(loader) == [3, 1]
    object.__setattr__(loader, "batch_sampler", None)
    loader.collate_fn = tud.default_convert
    assert listed(loader) == [[0], [10], [20], [30], [40], [50]]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_two_iterators_at_once(options: dict[str, Any]) -> None:
    loader = kinds.Plain(Made(size=6), 2, **options)
    one, other = loader._get_iterator(), loader._get_iterator()
    assert listed(next(batches) for batches in (one, other, one, other)) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert listed(one) == listed(other) == [[4, 5]]


def test_a_pass_goes_on_after_uninstall() -> None:
    with penstock.install():
        loader = kinds.Plain(pids(), 1, num_workers=1, persistent_workers=True)
        other = kinds.Plain(rows(6), 2)
        batches, theirs = iter(loader), iter(other)
        worker = int(next(batches))
    assert flat([*batches, *iter(loader)]) == [worker] * 7
    assert [len(batch[0]) for batch in theirs] == [2, 2, 2]
    assert type(iter(other)).__module__ == "torch.utils.data.dataloader"
    with penstock.install():
        assert is_ours(iter(other))


def test_a_loader_of_before_keeps_its_class_and_its_iterator() -> None:
    before: Any = kinds.Infinite(Made(size=4), 2, num_workers=1)
    torchs: Any = _MultiProcessingDataLoaderIter
    plain: Any = tud.DataLoader(rows(4), 2)
    with penstock.install():
        assert type(before.iterator) is torchs and listed(before) == [[0, 1], [2, 3]]
        before.reset()
        assert is_ours(before.iterator) and listed(before) == [[0, 1], [2, 3]]
        assert type(plain) is tud.DataLoader and is_ours(iter(plain))


@pytest.mark.usefixtures("installed")
def test_errors_and_warnings_are_torchs() -> None:
    def failing(index: int) -> int:
        raise ValueError(f"sample {index}")

    batches = iter(kinds.Plain(Made(failing, 4), 2))
    with pytest.raises(ValueError, match="sample 0"):
        next(batches)
    with pytest.raises(ValueError, match="sampler option is mutually exclusive"):
        kinds.Plain(rows(3), shuffle=True, sampler=[1])

    class Warned(kinds.Plain):
        def check_worker_number_rationality(self) -> None:
            asked.append(self)

    asked: list[Any] = []
    loader = Warned(Made(size=4), num_workers=1)
    asked.clear()
    list(loader)
    assert asked == [loader]


@pytest.mark.usefixtures("installed")
def test_threads_and_children_may_begin_passes() -> None:
    loader = kinds.Plain(Made(size=6), 2, num_workers=1)
    found: list[Any] = []
    run_in_threads(4, lambda thread: found.append(listed(kinds.Plain(Made(size=6), 2))))
    assert found == [[[0, 1], [2, 3], [4, 5]]] * 4

    def check() -> None:
        assert listed(loader) == [[0, 1], [2, 3], [4, 5]]

    check()
    assert_in_child(check)


# --- subclasses of ours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kinds.Infinite, kinds.Lazy])
@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_the_same_over_our_loader(kind: Any, options: dict[str, Any]) -> None:
    """`self._get_iterator()` and `super().__iter__()` in methods of a class derived from penstock.DataLoader."""
    body = {name: value for one in (kinds.Infinite, kind) for name, value in vars(one).items() if callable(value)}

    class Ours(penstock.DataLoader[Any]):
        iterator: Any

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            object.__setattr__(self, "batch_sampler", kinds.Endless(self.batch_sampler))
            self.iterator = super().__iter__() if kind is kinds.Infinite else None

    for name in ("__len__", "__iter__", "__del__", "reset"):
        setattr(Ours, name, body[name])
    assert_same(passes(Ours, Drawing(11), {"num_workers": 0, **options}), passes(kind, Drawing(11), options))


# --- frameworks over these -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # which torchdata calls
@pytest.mark.parametrize("kind", [tud.DataLoader, kinds.Graphs])
def test_accelerates_shard_with_states(kind: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata")
    utils = importlib.import_module("accelerate.utils")

    def prepared() -> Any:
        seeded()
        config = utils.DataLoaderConfiguration(use_stateful_dataloader=True)
        return accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(kind(rows(11), 2, shuffle=True))

    wanted = [listed(loader) for loader in [prepared()] * 2]
    with penstock.install():
        loader = prepared()
        assert isinstance(loader.base_dataloader, penstock.DataLoader) and listed(loader) == wanted[0]
        batches = iter(loader)
        assert listed([next(batches), next(batches)]) == wanted[1][:2]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        assert listed(batches) == wanted[1][2:]
        other = prepared()
        other.load_state_dict(state)
        assert listed(other) == wanted[1][2:]


# --- what says so ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_recordings_name_the_loader_that_was_made() -> None:
    with record() as recording:
        list(kinds.Plain(Made(size=8), 2))
    (loop,) = recording.loops()
    facts = loop.loader
    assert (facts.name, facts.dataset, facts.batching, facts.method) == ("Plain", "Made", "batch_size=2", "Penstock")
    assert facts.place.startswith("tests/frameworks/test_derived.py:") and loop.times.batches == 4


TAKEN = "under it the passes of a {} are Penstock's"
NOT_TAKEN = "it leaves the passes of a {} as they are: "
OWN_CODE = f"{NOT_TAKEN}its own code makes the iterators: _get_iterator() of OwnIterators"
THREADS = f"{NOT_TAKEN}the workers of its multiprocessing_context=_ThreadedContext are not processes"


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (kinds.Plain, {}, TAKEN),
        (kinds.Plain, {"num_workers": 1, "multiprocessing_context": "spawn"}, TAKEN),
        (kinds.OwnIterators, {}, OWN_CODE),
        (kinds.Threaded, {"num_workers": 1}, THREADS),
        (tud.DataLoader, {}, None),
    ],
)
def test_doctor_says_who_makes_the_batches(kind: Any, options: dict[str, Any], words: str | None) -> None:
    lines = command("doctor", "--no-measure", named(kind(Made(size=4), **options)), code=None).splitlines()
    said = [line.split(maxsplit=1) for line in lines if "penstock.install()" in line]
    assert len(said) == (words is not None)
    for state, line in said:
        assert (state == "ok") is (words is TAKEN) and words and line.endswith(words.format(kind.__name__))


# --- torchdata's -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("module", ["tests.frameworks.stateful_stand_in", run_stateful.MODULE])
def test_torchdatas_loader(module: str, when: str) -> None:
    if module == run_stateful.MODULE:
        pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata")
    script = f"from tests.frameworks import run_stateful\nrun_stateful.main({module!r}, {when!r})"
    ended = run_script(script)
    assert ended.returncode == 0, ended.stderr

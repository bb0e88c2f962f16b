"""Accelerate, which builds a torch loader in the place of each it prepares: ours is kept when asked, else never lost
unsaid."""

from __future__ import annotations

import copy
import gc
import importlib.util
import inspect
import pickle
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud
from torchvision import transforms

import penstock
from penstock.errors import InvalidOption
from penstock.frameworks import keep_loaders

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
import accelerate
from accelerate import skip_first_batches  # a name of this module, as transformers.Trainer has it
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration

from tests.data import photo_files
from tests.frameworks.launching import found_in, launched
from tests.frameworks.run_accelerate import CASES, OWN
from tests.made_once import made_once
from tests.resources import run_script
from tests.same import assert_same
from tests.values import flat, listed

pytestmark = pytest.mark.timeout(600)  # see launching.run

NUMBERS = tud.TensorDataset(torch.arange(22))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_in(made_once(tmp_path_factory, "accelerate", partial(launched, "run_accelerate", found=2)))


@pytest.mark.parametrize("case", CASES)
def test_a_training_script_sees_what_it_sees_with_torchs_loader(ranks: list[dict[str, Any]], case: str) -> None:
    made: Any = penstock.DataLoader(NUMBERS, **OWN)
    own = {name: repr(getattr(made, name)) for name in OWN if (case, name) != ("stream", "on_error")}
    who = "2 native threads fill" if case in ("threads", "shuffled", "split") else "the caller's thread fills"
    for rank in ranks:
        found = rank[case]
        assert found["ours"]["seen"] == found["theirs"]["seen"]
        assert all(found["ours"]["seen"]["epochs"]), "an empty comparison proves nothing"
        for each in found["with own"]["what"]:
            assert each["ours"] and each["as given"] and each["own"] == own
        if case not in ("Python", "stream"):
            assert [who in each["plan"] for each in found["ours"]["what"]] == [True, True]


def test_ranks_share_a_shuffled_epoch_of_our_seed(ranks: list[dict[str, Any]]) -> None:
    for epoch in (0, 1):
        gathered = [rank["shuffled"]["with own"]["seen"]["gathered"][epoch] for rank in ranks]
        assert sorted(gathered[0]) == list(range(27)) and gathered[0] == gathered[1] != sorted(gathered[0])


def ours(**options: Any) -> Any:
    return penstock.DataLoader(NUMBERS, batch_size=4, **options)


def forget() -> None:
    """Forget the passes that other tests have left open: Accelerate holds them in a state of the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def accelerator() -> Iterator[Any]:
    forget()
    yield accelerate.Accelerator(cpu=True)
    forget()


def test_our_arguments_are_kept_without_being_told(accelerator: Any) -> None:
    options: dict[str, Any] = {"seed": 3, "shuffle": True}
    loader = ours(worker_method="thread", **options)
    for prepared in (accelerator.prepare(loader), accelerator.prepare_data_loader(loader)):
        kept = prepared.base_dataloader
        assert (type(kept), kept.seed, kept.worker_method) == (penstock.DataLoader, 3, "thread")
    assert_same(list(prepared), list(ours(**options)))


def test_a_drop_in_reads_natively(accelerator: Any) -> None:
    prepared = accelerator.prepare(ours())  # warnings are errors
    assert type(prepared.base_dataloader) is penstock.DataLoader and "native   gather" in prepared.explain()
    assert listed(prepared)[-1] == [[20, 21]]


class Derived(penstock.DataLoader[Any]):
    """Somebody's own."""


def test_a_derived_class_is_not_built_anew(accelerator: Any) -> None:
    with pytest.raises(InvalidOption, match=r"in the place of a Derived, without seed=3"):
        accelerator.prepare(Derived(NUMBERS, batch_size=4, seed=3))
    prepared = accelerator.prepare(Derived(NUMBERS, batch_size=4))
    assert type(prepared.base_dataloader) is tud.DataLoader
    assert prepared.num_workers == 0, "torch's default, and not a process for each native thread"


def test_unasked_a_dataset_that_python_reads_loses_nothing(accelerator: Any) -> None:
    numbers: Any = list(range(5))
    assert listed(accelerator.prepare(penstock.DataLoader(numbers, batch_size=2))) == [[0, 1], [2, 3], [4]]


def test_workers_that_the_loader_chose_stay_its_choice(accelerator: Any) -> None:
    dataset = tud.TensorDataset(torch.zeros(22, 8192))  # not so small that the caller's thread gathers the rows
    loader: Any = penstock.DataLoader(dataset, batch_size=4)
    prepared = keep_loaders(accelerator).prepare(loader)
    plan = loader.explain().splitlines()[0].replace("batches of 4", "batches by batch_sampler")
    assert prepared.explain().splitlines()[0] == plan
    dataset.tensors = ()  # which only Python can read
    workers = prepared.num_workers
    assert prepared.explain().startswith("plan     Python reads the dataset in the caller's thread")
    assert prepared.num_workers == workers  # until a pass begins


def test_random_transforms_follow_our_seed(tmp_path: Path, accelerator: Any) -> None:
    photo_files(tmp_path, 6, (16, 17), ("png",))
    dataset = penstock.ImageFolder(tmp_path, transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))
    plain: Any = penstock.DataLoader(dataset, batch_size=2, seed=7)
    prepared = keep_loaders(accelerator).prepare(penstock.DataLoader(dataset, batch_size=2, seed=7))
    first, second = ([torch.cat([x for x, _ in loader]) for _ in range(2)] for loader in (plain, prepared))
    assert_same(second, first)
    assert not torch.equal(second[0], second[1])
    # A third epoch from its second batch on.
    assert_same(list(accelerator.skip_first_batches(prepared, 1)), list(plain)[1:])


def test_asking_twice_changes_nothing(accelerator: Any) -> None:
    assert keep_loaders(keep_loaders(accelerator)) is accelerator
    prepared = accelerator.prepare(ours(seed=3))
    assert accelerator.prepare(prepared) is prepared and accelerator._dataloaders == [prepared]


def test_other_loaders_are_treated_as_before(accelerator: Any) -> None:
    prepared = keep_loaders(accelerator).prepare(tud.DataLoader(NUMBERS, batch_size=4))
    assert type(prepared.base_dataloader) is tud.DataLoader
    skipped = accelerator.skip_first_batches(prepared, 5)
    assert type(skipped.base_dataloader) is tud.DataLoader and flat(skipped) == [20, 21]


@pytest.mark.parametrize("asked", [False, True])
def test_the_function_skips_batches_as_the_method_does(accelerator: Any, asked: bool) -> None:
    if asked:
        keep_loaders(accelerator)
    options: dict[str, Any] = {"seed": 3, "shuffle": True}
    whole = list(accelerator.prepare(ours(**options)))
    prepared = accelerator.prepare(ours(**options))
    for skip in (skip_first_batches, accelerator.skip_first_batches, accelerate.data_loader.skip_first_batches):
        for given in (prepared, ours(**options)):  # one that was not prepared too
            skipped = skip(given, num_batches=2)
            kept = skipped if given is not prepared else skipped.base_dataloader
            assert (len(skipped), type(kept), kept.seed) == (len(whole) - 2, penstock.DataLoader, 3)
            assert_same(list(skipped), whole[2:])
    assert_same(list(skip_first_batches(skip_first_batches(prepared, 1), 1)), whole[2:])


def test_the_functions_look_as_they_did() -> None:
    assert list(inspect.signature(accelerate.skip_first_batches).parameters) == ["dataloader", "num_batches"]
    parameters = inspect.signature(accelerate.data_loader.prepare_data_loader).parameters
    assert {"dataloader", "device", "num_processes", "split_batches"} <= parameters.keys()


@pytest.mark.parametrize("make", [penstock.DataLoader, tud.DataLoader])
def test_arguments_come_by_position_or_by_name(accelerator: Any, make: Any) -> None:
    keep_loaders(accelerator)
    prepare = accelerate.data_loader.prepare_data_loader
    by_name = prepare(dataloader=make(NUMBERS, batch_size=4), num_processes=2, process_index=1)
    by_position = prepare(make(NUMBERS, batch_size=4), None, 2, 1)
    assert flat(by_name) == flat(by_position) == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 0, 1]
    assert flat(skip_first_batches(dataloader=by_name, num_batches=2)) == [20, 21, 0, 1]
    if make is penstock.DataLoader:
        assert by_name.state_dict()["cut"] == by_position.state_dict()["cut"]
        by_position.load_state_dict(state_dict=by_name.state_dict())
    with pytest.raises(TypeError, match="dataloader"):
        prepare()


def test_a_dataset_without_a_length_is_prepared(accelerator: Any) -> None:
    class Endless(tud.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    prepared = accelerator.prepare(penstock.DataLoader(Endless(), batch_sampler=[[5, 3], [9]]))
    assert flat(prepared) == [5, 3, 9] and prepared.state_dict()["loader"]["data"] == {}


@pytest.mark.usefixtures("installed")
def test_loaders_that_accelerate_builds_itself_are_torchs(accelerator: Any) -> None:
    shard = accelerate.data_loader.DataLoaderShard(NUMBERS, batch_size=4)
    assert type(shard.base_dataloader) is tud.DataLoader
    skipped = accelerate.skip_first_batches(shard, 2)
    assert listed(skipped)[-1] == [[20, 21]] and len(skipped) == 4
    bare = accelerate.skip_first_batches(tud.DataLoader(NUMBERS, batch_size=4), 2)
    assert type(bare) is penstock.DataLoader and len(bare) == 4


SENT = """
import pickle, sys, warnings
loader = pickle.loads(bytes.fromhex(sys.argv[1]))
warnings.simplefilter("ignore")  # of Accelerate's imports
import accelerate
print(type(accelerate.Accelerator(cpu=True).prepare(loader).base_dataloader).__module__)
"""


def test_a_loader_from_another_process_is_kept() -> None:
    """pickle finds its class by the name of its module, and reads no attribute of the package."""
    done = run_script(SENT, pickle.dumps(penstock.DataLoader(NUMBERS, 4)).hex())
    assert done.stdout == "penstock.loader\n", done.stderr


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dispatch", [False, True])
def test_prepared_loaders_are_pickled_and_copied(accelerator: Any, dispatch: bool) -> None:
    accelerator.dataloader_config.dispatch_batches = dispatch
    prepared = accelerator.prepare(tud.DataLoader(NUMBERS, batch_size=4))
    for other in (pickle.loads(pickle.dumps(prepared)), copy.deepcopy(prepared)):
        assert type(other.base_dataloader) is penstock.DataLoader
        assert next(iter(other))[0].tolist() == [0, 1, 2, 3] and other.state_dict()["loader"]["batches"] == 1
        assert prepared.state_dict()["loader"]["batches"] == 0, "a state of its own"


def test_a_prepared_loader_ends_with_its_last_name(accelerator: Any) -> None:
    prepared = accelerator.prepare(ours())
    ended = weakref.ref(prepared)
    accelerator._dataloaders.clear()
    gc.disable()
    try:
        del prepared
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.skipif(importlib.util.find_spec("torchdata") is not None, reason="torchdata is installed")
def test_a_stateful_loader_is_refused(accelerator: Any) -> None:
    accelerator.dataloader_config = DataLoaderConfiguration()
    accelerator.dataloader_config.use_stateful_dataloader = True
    with pytest.raises(InvalidOption, match="use_stateful_dataloader=True replaces a Penstock loader by torchdata's"):
        keep_loaders(accelerator)


def test_an_adapter_of_another_kind_is_refused(accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapper:
        pass

    keep_loaders(accelerator)
    other: Any = lambda loader, *args, **kwargs: Wrapper()  # noqa: E731  # of another Accelerate
    monkeypatch.setattr(accelerate.data_loader, "prepare_data_loader", other)
    monkeypatch.setattr(accelerate.accelerator, "prepare_data_loader", other)
    with pytest.raises(InvalidOption, match=r"cannot be kept inside .*Wrapper: Accelerate 1\.8"):
        accelerator.prepare_data_loader(penstock.DataLoader(NUMBERS, seed=3))
    assert isinstance(accelerator.prepare_data_loader(penstock.DataLoader(NUMBERS)), Wrapper), "nothing is lost"

"""Every draw is a function of (seed, epoch, sample, position): on every route, at every position, after every stop."""

from __future__ import annotations

import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.data import Drawing, Made, Numbers, Order, photo_files
from tests.in_workers import in_samples
from tests.same import assert_same, nothing_drawn
from tests.values import flat, loaded, resumed, stopped

PL = penstock.DataLoader


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of seven photos, of which Pillow decodes two."""
    return photo_files(tmp_path_factory.mktemp("photos"), 7, (50, 80), ("jpg", "jpg", "png"))


def itself(value: Any) -> Any:
    return value


class Wrapped(Made):
    """A dataset of the user's around another."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.__getitem__, len(inner))


class Single(tud.Dataset[Any]):
    """A dataset that calls the parts of a Compose one by one."""

    def __init__(self, folder: Any) -> None:
        self.samples, self.steps = folder.samples, folder.transform.transforms

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image: Any = Image.open(path).convert("RGB")
        for step in self.steps:
            image = step(image)
        return image, label


def folder(root: Path, *steps: Any, t: Any = v1) -> Any:
    steps = steps or (t.RandomResizedCrop(24), t.RandomHorizontalFlip(), t.ToTensor())
    return torchvision.datasets.ImageFolder(str(root), t.Compose([*steps]))


ROUTES: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "native 0": (itself, {"num_workers": 0}),
    "native 1": (itself, {"num_workers": 1}),
    "native 2": (itself, {"num_workers": 2}),
    "collate_fn 0": (itself, {"num_workers": 0, "collate_fn": lambda samples: tud.default_collate(samples)}),
    "collate_fn 2": (itself, {"num_workers": 2, "collate_fn": lambda samples: tud.default_collate(samples)}),
    "wrapped 0": (Wrapped, {"num_workers": 0}),
    "wrapped 2": (Wrapped, {"num_workers": 2}),
    "one by one 0": (Single, {"num_workers": 0}),
    "processes": (Wrapped, {"num_workers": 2, "worker_method": "process"}),
    "one by one, processes": (Single, {"num_workers": 2, "worker_method": "process"}),
    "threads": (Wrapped, {"num_workers": 2, "worker_method": "thread"}),
    "threads 0": (Wrapped, {"num_workers": 0, "worker_method": "thread"}),
    "one by one, threads": (Single, {"num_workers": 2, "worker_method": "thread"}),
}


def views(batches: Any) -> int:
    return len({image.numpy().tobytes() for images, _ in batches for image in images})


def augmented(t: Any) -> tuple[Any, list[Any]]:
    jitter = t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1), t.RandomGrayscale(0.5)], 0.8)
    before = [t.RandomResizedCrop(24), t.TrivialAugmentWide(), jitter, t.RandomHorizontalFlip()]
    return t, [*before, t.PILToTensor(), t.ConvertImageDtype(torch.float32), t.RandomErasing(0.5)]


PIPELINES: list[tuple[Any, list[Any]]] = [
    (v1, [v1.RandomVerticalFlip(0.4), v1.RandomCrop((30, 31), padding=3), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    (v1, [v1.RandomCrop(64, pad_if_needed=True), v1.RandomResizedCrop((20, 30), (0.3, 0.9)), v1.PILToTensor()]),
    (v1, [v1.Resize(40), v1.RandomCrop(40), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.RandomVerticalFlip()]),
    (v2, [v2.RandomCrop((30, 31), padding=3), v2.RandomVerticalFlip(0.4), v2.RandomHorizontalFlip(), v2.PILToTensor()]),
    (v2, [v2.ToImage(), v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(), v2.ToPureTensor()]),
    (v2, [v2.RandomCrop(64, padding=(1, 2, 3, 4), pad_if_needed=True), v2.RandomResizedCrop(20), v2.PILToTensor()]),
    augmented(v1),
    augmented(v2),
]


@pytest.mark.parametrize(("t", "steps"), PIPELINES, ids=str)
def test_pipelines_draw_the_same_on_every_route_and_after_a_stop(root: Path, t: Any, steps: list[Any]) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5}
    dataset = folder(root, *steps, t=t)
    before = torch.get_rng_state()
    wanted = [list(loader) for loader in [PL(dataset, **options)] for _ in range(2)]
    for wrap, how in ROUTES.values():
        loader = PL(wrap(dataset), **options, **how)
        assert_same([list(loader) for _ in range(2)], wanted)
    assert torch.equal(torch.get_rng_state(), before)
    begun, again = (PL(dataset, num_workers=2, **options) for _ in range(2))
    _, after = resumed(begun, again, 1)
    assert_same(list(after), wanted[0][1:])


def test_a_native_prefix_and_its_rest_draw_as_the_whole(root: Path) -> None:
    steps = [v1.RandomResizedCrop(30), v1.RandomHorizontalFlip(), v1.RandomCrop(24), v1.RandomVerticalFlip()]
    whole = list(PL(folder(root, *steps, v1.ToTensor()), batch_size=3, seed=4, num_workers=2))
    for at, workers in [*((at, 0) for at in range(5)), (2, 2)]:
        cut = folder(root, *steps[:at], v1.Lambda(itself), *steps[at:], v1.ToTensor())
        loader = PL(cut, batch_size=3, seed=4, num_workers=workers)
        assert_same(list(loader), whole)


#: Batches of different sizes, in which samples come more than once.
UNEVEN = [[0, 0, 1], [2], [0, 3, 3, 6], [6, 5], [0, 0], [4, 4, 4]]


def drawn_by(name: str, root: Path, **options: Any) -> Any:
    """Return a loader in whose epoch samples come more than once, with a seed."""
    dataset = options.pop("wrap", itself)(options.pop("dataset", None) or folder(root))
    given: dict[str, Any] = {"batch_size": 4, "seed": 3, **options}
    if name == "batch sampler":
        return PL(dataset, batch_sampler=Order(UNEVEN), **{**given, "batch_size": 1})
    if name == "mix":
        parts: Any = {"a": (tud.Subset(dataset, [0, 1]), 3), "b": (tud.Subset(dataset, [6, 2, 3]), 1)}
        return PL(penstock.Mix(parts, length=23), shuffle=True, **given)
    sampler = {
        "repeating": lambda: Order([i for i in range(7) for _ in range(3)]),
        "replacement": lambda: tud.RandomSampler(dataset, replacement=True, num_samples=23),
        "subset": lambda: tud.SubsetRandomSampler([5, 5, 5, 1, 1, 0, 2] * 3),
        "weighted of torch": lambda: tud.WeightedRandomSampler([5.0] + [1.0] * 6, 23),
        "weighted": lambda: penstock.Weighted([5.0] + [1.0] * 6, 23),
    }[name]()
    return PL(dataset, sampler=sampler, **given)


ORDERS = ["repeating", "replacement", "subset", "weighted of torch", "weighted", "mix", "batch sampler"]


@pytest.mark.parametrize("name", ORDERS)
def test_orders_that_repeat_samples_draw_anew_and_can_be_stopped(root: Path, name: str) -> None:
    wanted, unseeded = (list(drawn_by(name, root, num_workers=0, **more)) for more in ({}, {"seed": None}))
    for batches in (wanted, unseeded):
        assert views(batches) == sum(len(labels) for _, labels in batches)
    for route in ROUTES if name == "repeating" else ("native 2", "wrapped 0", "threads"):
        wrap, how = ROUTES[route]
        assert_same(list(drawn_by(name, root, wrap=wrap, **how)), wanted)
    stops: list[dict[str, Any]] = [{"num_workers": 1}, {"num_workers": 2, "worker_method": "process"}]
    if name != "mix":  # whose parts are Subsets of a folder
        stops.append({"num_workers": 0, "wrap": Single})
    for options, stop in itertools.product(stops, (1, 3)):
        after = drawn_by(name, root, **{**options, "num_workers": 0})
        _, after = resumed(drawn_by(name, root, **options), after, stop)
        assert_same(list(after), wanted[stop:])


@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": penstock.Weighted([5.0] + [1.0] * 6, 20)}])
def test_without_a_seed_a_stopped_pass_goes_on_with_its_draws(root: Path, order: Any) -> None:
    _, state, batches = stopped(PL(folder(root), batch_size=2, num_workers=1, **order), 1)
    rest = list(batches)
    assert_same(list(loaded(PL(folder(root), batch_size=2, num_workers=0, **order), state)), rest)


@pytest.mark.parametrize("name", ["weighted", "mix"])
@pytest.mark.parametrize("wrap", [itself, Wrapped])
def test_any_number_of_ranks_draws_the_same(root: Path, name: str, wrap: Any) -> None:
    def loader(**options: Any) -> Any:
        return drawn_by(name, root, wrap=wrap, num_workers=0, **options)

    def images(batches: Any) -> list[torch.Tensor]:
        return [image for batch in batches for image in batch[0]]

    whole = images(loader())
    for world, full in ((2, 16), (3, 12)):
        ranks = [loader(shard=(rank, world)) for rank in range(world)]
        together = images(batch for step in zip(*ranks, strict=True) for batch in step)
        assert_same(together[:full], whole[:full])
    assert_same(images(loader()), whole)
    _, alone = resumed(loader(shard=(0, 2)), loader(), 1)
    assert_same(images(alone), whole[8:])
    padded = images(loader(shard=(1, 2)))
    assert len({image.numpy().tobytes() for image in padded}) == len(padded)


@pytest.mark.parametrize("wrap", [itself, Wrapped])
def test_a_distributed_sampler_draws_the_same_for_any_number_of_ranks(root: Path, wrap: Any) -> None:
    def rank(number: int, world: int) -> list[torch.Tensor]:
        sampler: Any = tud.DistributedSampler(folder(root), world, number, shuffle=True, seed=2)
        loader = PL(wrap(folder(root)), 2, sampler=sampler, seed=1, num_workers=0)
        return [image for images, _ in loader for image in images]

    for world in (2, 3):
        assert_same(rank(1, world)[:2], rank(0, 1)[1::world][:2])


@pytest.mark.parametrize("wrap", [itself, Wrapped])
@pytest.mark.parametrize("name", ["weighted", "mix"])
def test_any_batch_at_once(root: Path, wrap: Any, name: str) -> None:
    loader = drawn_by(name, root, wrap=wrap, num_workers=0)
    for epoch in range(2):
        batches = list(loader)
        for step in (0, 3, 5):
            assert_same(loader.batch_at(epoch, step), batches[step])


@pytest.mark.filterwarnings("ignore")  # of the bad sample
def test_stand_ins_depend_on_the_position() -> None:
    def go(**options: Any) -> list[int]:
        sampler, how = penstock.Weighted([1000.0] + [1.0] * 30), penstock.Replace(max_share=0.5)
        return flat(PL(Numbers({0}, 31), 8, sampler=sampler, on_error=how, seed=1, **options))

    stands = go(num_workers=0)
    assert len(set(stands)) > 10 and 0 not in stands
    assert go(num_workers=1) == go(num_workers=2, worker_method="thread") == stands


def with_seed(index: int) -> Any:
    return *Drawing().draw(index), torch.initial_seed()


def of_its_thread(index: int) -> Any:
    """Draw from the thread's own generators."""
    rng: Any = tud.get_worker_info().rng  # type: ignore[union-attr]
    seed = rng.torch_generator.initial_seed()
    return index, float(rng.random_generator.random()), float(rng.numpy_generator.random()), seed


def test_the_users_draws_follow_the_position_too() -> None:
    def go(**options: Any) -> list[Any]:
        return list(PL(Made(with_seed, 9), 5, sampler=[0, 1, 0, 0, 8, 8, 0], seed=6, **options))

    wanted = go(num_workers=0)
    assert len({float(x) for batch in wanted for x in batch[1]}) == 7
    assert all((batch[4] >= 0).all() and batch[4].dtype == torch.int64 for batch in wanted)
    assert_same([go(num_workers=2), go(num_workers=0, worker_method="thread")], [wanted] * 2)


def test_the_generators_of_threads_follow_the_position() -> None:
    options: dict[str, Any] = {"sampler": [0] * 9, "seed": 6, "worker_method": "thread"}
    wanted, other = (list(PL(Made(of_its_thread, 9), 4, num_workers=workers, **options)) for workers in (1, 3))
    assert len({float(x) for batch in wanted for x in batch[1]}) == 9
    assert_same(other, wanted)


@pytest.mark.parametrize("wrap", [itself, Wrapped])
def test_accelerates_samplers_keep_positions(root: Path, wrap: Any) -> None:
    cut = pytest.importorskip("accelerate.data_loader")

    def go(batches: Any) -> list[Any]:
        return list(PL(wrap(folder(root)), batch_sampler=batches, seed=3, num_workers=0))

    whole = tud.BatchSampler(tud.WeightedRandomSampler([1] + [0] * 6, 12), 2, False)
    assert_same(go(cut.SkipBatchSampler(whole, 2)), go(whole)[2:])
    ranks = [go(cut.BatchSamplerShard(whole, 2, rank)) for rank in range(2)]
    assert views([*ranks[0], *ranks[1]]) == 12
    assert_same(go(cut.SkipBatchSampler(cut.BatchSamplerShard(whole, 2, 1), 1)), ranks[1][1:])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tud.RandomSampler(range(7), replacement=True, num_samples=20),
        lambda: tud.RandomSampler(range(7)),
        lambda: tud.WeightedRandomSampler([1.0] * 7, 20),
        lambda: tud.SubsetRandomSampler(range(7)),
    ],
)
def test_torchs_samplers_follow_the_seed_and_are_left_as_they_are(make: Any) -> None:
    orders = []
    for seed, salt in ((1, 4), (1, 5), (2, 4)):
        torch.manual_seed(salt)
        sampler = make()
        loader = PL(Drawing(9), batch_sampler=tud.BatchSampler(sampler, 3, False), seed=seed, num_workers=0)
        with nothing_drawn():
            orders.append([flat(loader), flat(loader)])
        assert sampler.generator is None
        assert loader.batch_sampler.sampler is sampler
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][1]


def test_a_samplers_own_generator_is_used() -> None:
    given = torch.Generator().manual_seed(3)
    state = given.get_state()
    list(PL(Drawing(9), sampler=tud.RandomSampler(range(7), generator=given), seed=1, num_workers=0))
    assert not torch.equal(given.get_state(), state)


def told(loader: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12
        for _ in range(2):
            list(loader)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


class Global(Order):
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(9).tolist())


def test_what_threads_cannot_hold_is_told_once(root: Path) -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_method": "thread", "batch_size": 3}
    jitter = folder(root, v1.RandomResizedCrop(8), v1.ElasticTransform(sigma=1.0), v1.ToTensor())
    (said,) = told(PL(Drawing(9), seed=1, **options))
    assert "global generators of random and numpy.random and torch" in said and "get_worker_info().rng" in said
    assert "of torch:" in told(PL(Single(jitter), seed=1, **options))[0]
    for silent in (
        PL(Drawing(9), **options),
        PL(Drawing(9), seed=1, num_workers=2, batch_size=3),
        PL(Single(folder(root)), seed=1, **options),  # known transforms only
        PL(Made(of_its_thread, 9), seed=1, **options),
    ):
        assert told(silent) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_from_the_global_generator_is_told_once(workers: int) -> None:
    (said,) = told(PL(Drawing(9), 3, sampler=Global(range(9)), seed=1, num_workers=workers))
    assert "the order of Global" in said
    assert told(PL(Drawing(9), 3, sampler=Global(range(9)), num_workers=workers)) == []


def test_generators_that_a_dataset_keeps_are_told_once() -> None:
    def keeping(kept: Any) -> Any:
        dataset: Any = Drawing(9)
        dataset.nested = [{"rng": kept}]
        return dataset

    for kept in (random.Random(1), np.random.default_rng(1), np.random.RandomState(1), torch.Generator()):
        (said,) = told(PL(tud.Subset(keeping(kept), range(4)), seed=1, num_workers=0))
        assert "dataset.dataset.nested[0]['rng']" in said
    own = PL(keeping(random.Random(1)), seed=1, num_workers=0)
    assert "seed= does not reach dataset.nested[0]['rng']" in own.explain()
    loop = keeping(None)
    loop.nested.append({"loop": loop})
    assert told(PL(loop, seed=1, num_workers=0)) == []


class Albumentation:
    """Keeps generators as the pipelines of Albumentations do."""

    def __init__(self) -> None:
        self.set_random_seed(None)

    def set_random_seed(self, seed: int | None) -> None:
        self.random_generator, self.py_random = np.random.default_rng(seed), random.Random(seed)

    def __call__(self) -> tuple[float, float]:
        return float(self.random_generator.random()), self.py_random.random()


class Stateful(Albumentation):
    def set_random_state(self, random_generator: np.random.Generator, py_random: random.Random) -> None:
        self.random_generator, self.py_random = random_generator, py_random


@pytest.mark.parametrize("kind", [Albumentation, Stateful])
def test_pipelines_of_albumentations_follow(kind: Any) -> None:
    class Augmented(Made):
        def __init__(self) -> None:
            super().__init__(self.augment, 9)
            self.transform = kind()

        def augment(self, index: int) -> Any:
            return index, self.transform()

    def go(workers: int, method: Any = None) -> list[Any]:
        options: Any = {"num_workers": workers, "worker_method": method}
        return list(PL(Augmented(), 4, sampler=[0, 0, 3, 3, 8, 0], seed=2, **options))

    wanted = go(0)
    assert len({float(x) for batch in wanted for x in batch[1][0]}) == 6
    assert_same([go(0), go(2), go(1, "process"), go(2, "thread")], [wanted] * 4)
    assert told(PL(Augmented(), seed=2, num_workers=2, worker_method="thread")) == []
    (said,) = told(PL(Augmented(), seed=2, num_workers=2, worker_method="thread", share_dataset=True))
    assert "dataset.transform" in said


def test_outside_of_a_seeded_sample_transforms_are_what_they_were(root: Path) -> None:
    crops = (v1.RandomCrop(30), v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor())
    dataset = Single(folder(root, *crops))
    list(PL(dataset, seed=1, num_workers=0))  # hooks are in place
    runs = []
    for kind in (tud.DataLoader, PL):
        torch.manual_seed(3)
        runs.append(list(kind(dataset, batch_size=2, shuffle=True, num_workers=0)))
    assert_same(runs[1], runs[0])
    image = Image.new("RGB", (40, 40))
    before = torch.get_rng_state()
    v1.RandomCrop(8)(image), v2.RandomHorizontalFlip()(image)
    assert not torch.equal(torch.get_rng_state(), before)
    assert list(inspect.signature(v1.RandomCrop.get_params).parameters) == ["img", "output_size"]
    assert "torch.randint" in inspect.getsource(v1.RandomCrop.get_params)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "transform", [v1.RandomCrop(4), v1.RandomResizedCrop(4), v1.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
)
def test_hooked_transforms_can_be_scripted(transform: Any) -> None:
    (found,) = in_samples(lambda _: torch.jit.script(transform)(torch.zeros(3, 8, 8)), seed=1)
    assert found.shape[0] == 3


def test_what_a_program_puts_in_place_is_called(root: Path) -> None:
    class Own(v1.RandomCrop):
        @staticmethod
        def get_params(img: Any, output_size: Any) -> Any:
            return 1, 2, *output_size

    class OwnFlip(v2.RandomHorizontalFlip):
        def forward(self, *inputs: Any) -> Any:
            return inputs[0]

    def first(*steps: Any) -> torch.Tensor:
        image: torch.Tensor = next(iter(PL(Single(folder(root, *steps)), seed=1, num_workers=0)))[0][0]
        return image

    crop = v1.Lambda(lambda image: v1.functional.crop(image, 1, 2, 24, 24))
    wanted = first(crop, v1.PILToTensor())
    assert torch.equal(first(Own(24), OwnFlip(), v1.PILToTensor()), wanted)
    with mock.patch.object(v1.RandomCrop, "get_params", staticmethod(lambda img, output_size: (1, 2, 24, 24))):
        assert torch.equal(first(v1.RandomCrop(24), v1.PILToTensor()), wanted)
    assert not torch.equal(first(v1.RandomCrop(24), v1.PILToTensor()), wanted)


def test_a_subclass_draws_as_its_class(root: Path) -> None:
    own = type("Own", (v2.RandomCrop,), {})
    loaders = (PL(folder(root, kind(24), v2.PILToTensor(), t=v2), seed=1) for kind in (v2.RandomCrop, own))
    assert_same(*map(list, loaders))


def test_one_draw_for_image_and_mask() -> None:
    image = torchvision.tv_tensors.Image(torch.arange(48).view(3, 4, 4))
    mask = torchvision.tv_tensors.Mask(torch.arange(16).view(4, 4))
    pairs = in_samples(lambda _: v2.RandomHorizontalFlip()(image, mask), 12, seed=1)
    assert {(bool(one[0, 0, 0] == 3), bool(other[0, 0] == 3)) for one, other in pairs} == {(False, False), (True, True)}


def test_explain_says_the_rule(root: Path) -> None:
    rule = "are functions of (seed, epoch, sample, position)"
    assert rule in PL(Drawing(9), seed=1, num_workers=0).explain()
    threads = PL(Drawing(9), seed=1, num_workers=2, worker_method="thread").explain()
    assert "depend on timing" in threads and "the global generators are functions" not in threads
    assert "(seed, epoch, sample" not in PL(Drawing(9), num_workers=0).explain()
    assert rule in PL(folder(root), seed=1).explain()
    assert "(a seed drawn for the pass, epoch, sample, position)" in PL(folder(root)).explain()
    assert "random " not in PL(tud.TensorDataset(torch.arange(3)), seed=1).explain()

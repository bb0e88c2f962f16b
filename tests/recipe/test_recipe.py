"""Recipes against torchvision: the same bytes for the same parameters, the same distribution of parameters."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

import penstock
import penstock._native as _native
from penstock.recipe import keyed_methods
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe
from tests.data import in_memory, noise_image
from tests.recipe.against_torchvision import GENERATIONS, MEAN, MODES, STD, of_sample, recipe_of, refusal_of

pytestmark = pytest.mark.native

# (height, width); the last are smaller than the crops below in one or both directions
SIZES = [(48, 64), (64, 48), (40, 40), (7, 90), (90, 7), (1, 1)]


def picture(height, width, mode="RGB"):
    """Return an image of noise, whose bytes depend on its size only."""
    image = noise_image(1000 * height + width, height, width)
    return image if mode == "RGB" else image.getchannel(0)


def run(recipe, image, *, seed=0, epoch=0, sample=0):
    """Return what the native core makes of the image."""
    return of_sample(recipe, image, seed, epoch, sample, 0)


def assert_same(actual, expected):
    """Compare bytes, shape, dtype, and the layout after collating."""
    collated = default_collate([expected])
    assert type(collated) is torch.Tensor and actual.dtype == collated.dtype
    assert (actual.shape, actual.stride()) == (collated.shape[1:], collated.stride()[1:])
    assert torch.equal(actual.contiguous().view(torch.uint8), collated[0].contiguous().view(torch.uint8))


def check(transform, mode="RGB", sizes=SIZES):
    """Compare a transform without randomness on images of several sizes, where torchvision gives a result."""
    recipe = recipe_of(transform, mode)
    results = 0
    for height, width in sizes:
        image = picture(height, width, mode)
        try:
            expected = transform(image)
        except Exception:  # whatever torchvision raises, Python is to raise it: the native core must not give pixels
            with pytest.raises(ValueError, match=r"."):
                run(recipe, image)
            continue
        try:
            actual = run(recipe, image)
        except ValueError as left_to_python:
            # numpy reflects again and again where the padding is wider than the image; its versions differ in how
            assert min(height, width) < 8 and "repeats a reflection" in str(left_to_python)
            continue
        assert_same(actual, expected)
        results += 1
        assert recipe.shape in (None, expected.shape)
        assert _native.output_spec(recipe.native, width, height)[0] == expected.shape
    assert results > 0


CONVERSIONS = [
    v1.ToTensor(),
    v1.PILToTensor(),
    v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)]),
    v1.Compose([v1.Compose([v1.PILToTensor()]), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]),
    *(v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(d)]) for d in (torch.float64, torch.float16, torch.int16)),
    v1.Compose([v1.ToTensor(), v1.ConvertImageDtype(torch.uint8)]),
    v2.PILToTensor(),
    v2.ToImage(),
    v2.Compose([v2.ToImage(), v2.ToPureTensor()]),
    v2.Compose([v2.Identity(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
    *(
        v2.Compose([v2.ToImage(), v2.ToDtype(dtype, scale=scale)])
        for scale in (True, False)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.int32)
    ),
    v2.Compose([v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]),
    v1.Compose([v2.ToDtype(torch.float32), v1.ToTensor()]),  # the first does nothing to a PIL image
]
GREY_CONVERSIONS = [
    v1.ToTensor(),
    v1.PILToTensor(),
    v1.Compose([v1.ToTensor(), v1.Normalize([0.1307], [0.3081])]),
    v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])]),
    v1.Compose([v1.ToTensor(), v1.Grayscale(1)]),
]


@pytest.mark.parametrize(
    ("mode", "conversion"), [*(("RGB", one) for one in CONVERSIONS), *(("L", one) for one in GREY_CONVERSIONS)], ids=str
)
def test_a_conversion_gives_torchvisions_elements(mode, conversion):
    check(conversion, mode, sizes=[(48, 64), (28, 28), (5, 3), (1, 1)])


def geometric(t):
    """Return every transform without randomness, in many forms."""
    modes, pads = [InterpolationMode(name) for name in ("bilinear", "bicubic", "nearest")], [3, (2, 5), (1, 2, 3, 0)]
    padding = [t.Pad(p, fill=7, padding_mode=m) for p in pads for m in ("constant", "edge", "reflect", "symmetric")]
    resizes = [t.Resize(size, interpolation=mode) for size in ((20, 31), (60, 31)) for mode in modes]
    resizes += [t.Resize(24), t.Resize([33], max_size=40), t.Resize((40, 40))]
    flips = [t.RandomHorizontalFlip(1.0), t.RandomVerticalFlip(1.0), t.RandomHorizontalFlip(0.0)]
    return [*resizes, t.CenterCrop(32), t.CenterCrop((17, 50)), *flips, *padding]


@GENERATIONS
@MODES
@pytest.mark.parametrize("tensors", [False, True])
def test_geometry(t, mode, tensors):
    for transform in geometric(t):
        if tensors and isinstance(transform, v1.Resize) and transform.interpolation is not InterpolationMode.NEAREST:
            continue  # through float32, whose order of additions is not known: refused, see below
        check(t.Compose([t.PILToTensor(), transform] if tensors else [transform, t.PILToTensor()]), mode)


def test_what_only_version_two_knows():
    for mode in ("bilinear", "bicubic"):
        resize = v2.Resize((20, 31), interpolation=InterpolationMode(mode), antialias=False)
        check(v2.Compose([v2.ToImage(), resize]))
    check(v2.Compose([v2.ToImage(), v2.Resize((20, 31), interpolation="bilinear")]))
    check_drawn([v2.ToImage(), v2.RandomResizedCrop([24, 60], interpolation="bicubic"), v2.CenterCrop(20)], "RGB")
    check(v2.Compose([v2.Resize(None, max_size=33), v2.ToImage()]))


@GENERATIONS
def test_chains_on_images_in_colour(t):
    for mode in ("lanczos", "nearest-exact"):
        for size in [(20, 31), (60, 31)]:
            check(t.Compose([t.Resize(size, interpolation=InterpolationMode(mode)), t.PILToTensor()]))
    normalise, mirrored = t.Normalize(MEAN, STD), t.RandomHorizontalFlip(1.0)
    pads = [t.Pad((1, 3), padding_mode="edge"), *(t.Pad(2, padding_mode=mode) for mode in ("symmetric", "reflect"))]
    for moved in [t.CenterCrop(50), mirrored, t.Pad(4, fill=0.25), *pads]:
        check(t.Compose([v1.ToTensor(), normalise, moved]))
        check(t.Compose([v1.ToTensor(), moved, normalise]))
    # paddings of different colours lie on one another
    colours = [t.Pad((3, 1), fill=10), t.CenterCrop(60), t.Pad((0, 2, 5, 0), fill=(200, 100, 50))]
    colours.append(t.RandomVerticalFlip(1.0))
    check(t.Compose([*colours, v1.ToTensor(), t.Pad(1, fill=0.5), normalise]))
    check(t.Compose([*colours, t.Pad((4, 2), padding_mode="edge"), t.CenterCrop((80, 41)), t.PILToTensor()]))
    # a crop may fall into the padding only
    check(t.Compose([t.Pad((50, 0, 0, 0), fill=9), mirrored, t.CenterCrop((5, 4)), t.PILToTensor()]))
    steps = [t.Pad((90, 90, 0, 0), fill=9), t.CenterCrop((5, 4)), t.Resize((8, 9)), mirrored, t.PILToTensor()]
    check(t.Compose(steps), sizes=[(10, 10), (3, 40)])


@GENERATIONS
@MODES
def test_chains(t, mode):
    for greys in (1, 3):
        check(t.Compose([t.Grayscale(greys), v1.ToTensor()]), mode)
        check(t.Compose([t.Pad(2, fill=77), t.Grayscale(greys), t.Pad(1, fill=5), t.PILToTensor()]), mode)
        check(t.Compose([t.Resize((30, 20)), t.Grayscale(greys), t.CenterCrop(17), v1.ToTensor()]), mode)
        check(t.Compose([t.CenterCrop(33), t.Grayscale(greys), t.Resize((30, 20)), v1.ToTensor()]), mode)
    mirrored, turned, resized = t.RandomHorizontalFlip(1.0), t.RandomVerticalFlip(1.0), t.Resize((33, 21))
    check(t.Compose([t.Resize(40), t.CenterCrop(32), v1.ToTensor()]), mode)
    check(t.Compose([mirrored, resized, t.CenterCrop((16, 40)), t.PILToTensor()]), mode)
    check(t.Compose([t.Pad(5, padding_mode="reflect"), resized, t.Resize(12), t.PILToTensor()]), mode)
    check(t.Compose([resized, turned, t.Pad(3), t.Resize((64, 48)), t.PILToTensor()]), mode)
    check(t.Compose([t.CenterCrop(20), t.Resize((7, 90)), t.CenterCrop((5, 5)), t.PILToTensor()]), mode)


def check_drawn(transforms, mode="RGB", sizes=((48, 64), (33, 20)), samples=8):
    """Compare with what torchvision's own code makes of what it draws for the same samples."""
    compose = v1.Compose(transforms)
    recipe, seen = recipe_of(compose, mode), set()
    for height, width in sizes:
        image = picture(height, width, mode)
        for sample in range(samples):
            found = run(recipe, image, seed=5, epoch=2, sample=sample)
            seen.add(found.numpy().tobytes())
            with keyed_methods.of_sample(5, 2, sample, 0):
                assert_same(found, compose(image))
    assert len(seen) > 1


@GENERATIONS
@MODES
def test_random_resized_crop_with_the_drawn_box(t, mode):
    normalise = t.Normalize(MEAN, STD) if mode == "RGB" else t.Normalize([0.5], [0.5])
    check_drawn([t.RandomResizedCrop(24), t.RandomHorizontalFlip(), v1.ToTensor(), normalise], mode)
    check_drawn([t.RandomResizedCrop((50, 20), ratio=(0.2, 9)), t.RandomVerticalFlip(0.3), t.PILToTensor()], mode)
    small, modes = t.CenterCrop(20), InterpolationMode
    check_drawn([t.RandomHorizontalFlip(), t.RandomResizedCrop(24, interpolation=3), small, t.PILToTensor()], mode)
    check_drawn([t.PILToTensor(), t.RandomResizedCrop(24, interpolation=modes.NEAREST)], mode)
    if t is v2:
        check_drawn([t.PILToTensor(), t.RandomResizedCrop(24), t.RandomHorizontalFlip()], mode)
        check_drawn([t.ToImage(), t.RandomResizedCrop([24, 60], interpolation=modes.BICUBIC), small], mode)
        check_drawn([t.ToImage(), t.RandomResizedCrop(90, antialias=False)], mode)


@GENERATIONS
@MODES
def test_random_crop_with_the_drawn_offset(t, mode):
    small = ((32, 32), (28, 40))
    check_drawn([t.RandomCrop(32, padding=4), t.RandomHorizontalFlip(), v1.ToTensor()], mode, ((32, 32), (40, 50)))
    check_drawn([t.RandomCrop(32, padding=4), t.RandomHorizontalFlip(), t.PILToTensor()], mode, ((32, 32),))
    filled = [t.PILToTensor(), t.RandomCrop((30, 44), padding=(1, 6), fill=3), t.RandomVerticalFlip()]
    check_drawn(filled, mode, ((32, 43), (28, 50)))
    for pad_mode in ("constant", "edge", "reflect", "symmetric"):
        crop = t.RandomCrop((34, 44), padding=(1, 6, 3, 2), fill=3, padding_mode=pad_mode, pad_if_needed=True)
        check_drawn([crop, t.RandomHorizontalFlip(), v1.ToTensor()], mode, small)
    check_drawn([t.RandomCrop((20, 19)), t.Resize((40, 40)), v1.ToTensor()], mode)
    check_drawn([t.RandomCrop(8, padding=30, fill=200), t.PILToTensor()], mode, ((10, 10), (3, 5)), samples=30)


def test_random_crop_of_every_width_up_to_vectors_and_beyond():
    for width in range(1, 70):
        moved = [v1.RandomCrop((3, width), padding=2), v1.RandomHorizontalFlip()]
        check_drawn([*moved, v1.PILToTensor()], sizes=((4, width),))
        check_drawn([*moved, v1.ToTensor(), v1.Normalize(MEAN, STD)], sizes=((4, width),))


@pytest.mark.parametrize(
    ("transform", "image", "words"),
    [
        (v1.Compose([v1.RandomCrop(32), v1.ToTensor()]), picture(31, 40), "RandomCrop is larger than the image"),
        (v2.Compose([v2.RandomCrop(32), v1.ToTensor()]), picture(31, 40), "RandomCrop is larger than the image"),
        (v1.ToTensor(), picture(5, 5, "L"), "channels"),
    ],
    ids=["v1", "v2", "L"],
)
def test_images_that_are_pythons(transform, image, words):
    with pytest.raises(ValueError, match=words):
        run(recipe_of(transform), image)


AUGMENTATION = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.ToTensor()])


def test_draws_are_a_function_of_seed_epoch_sample_and_position():
    recipe = recipe_of(AUGMENTATION)

    def draw(seed, epoch, sample, position=0):
        return str(_native.draw(recipe.native, seed, epoch, sample, position, 500, 400))

    assert draw(1, 2, 3) == draw(1, 2, 3)
    large = 2**63 + 5
    keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (3, 2, 1), (2, 1, 3)]
    for much in (large, 2**32):
        keys += [(1 + much, 2, 3), (1, 2 + much, 3), (1, 2, 3 + much)]
    places = [(1, 2, 3, position) for position in (1, 2**32, large)]
    assert len({draw(*key) for key in [*keys, *places]}) == len(keys) + len(places)
    image = picture(50, 40)
    assert torch.equal(run(recipe, image, seed=1, sample=9), run(recipe, image, seed=1, sample=9))
    assert not torch.equal(run(recipe, image, seed=1, sample=9), run(recipe, image, seed=1, sample=8))


def drawn_table(transform, count, width, height):
    """Return the parameters of the first operation for `count` samples."""
    native = recipe_of(v1.Compose([transform, v1.ToTensor()])).native
    return np.array([_native.draw(native, 11, 0, sample, 0, width, height)[0] for sample in range(count)])


def test_flips_come_as_often_as_asked_for():
    for p in (0.0, 0.2, 0.5, 1.0):
        flips = int(drawn_table(v1.RandomHorizontalFlip(p), 20_000, 8, 8).sum())
        assert stats.binomtest(flips, 20_000, p).pvalue > 1e-3


def test_flips_of_one_sample_are_independent():
    native = recipe_of(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomHorizontalFlip(), v2.ToImage()])).native
    pairs = np.array([_native.draw(native, 0, 0, sample, 0, 8, 8) for sample in range(20_000)])
    counts = np.array([[np.sum((pairs == [a, b]).all(axis=1)) for b in (False, True)] for a in (False, True)])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_crop_offsets_are_uniform():
    boxes = drawn_table(v1.RandomCrop((30, 32), padding=4), 20_000, 32, 32)
    assert (boxes[:, 2:] == [30, 32]).all()
    counts = np.zeros((11, 9))
    np.add.at(counts, (boxes[:, 0], boxes[:, 1]), 1)
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio"),
    [
        (500, 375, (0.08, 1.0), (3 / 4, 4 / 3)),
        (375, 500, (0.5, 1.0), (3 / 4, 4 / 3)),
        (2000, 300, (0.3, 0.9), (0.5, 2.0)),  # most tries fail, many samples fall back to the centre
        (300, 2000, (0.9, 1.0), (0.5, 2.0)),
    ],
)
def test_boxes_follow_torchvisions_distribution(width, height, scale, ratio):
    count = 4_000
    ours = drawn_table(v1.RandomResizedCrop(8, scale=scale, ratio=ratio), count, width, height)
    torch.manual_seed(3)
    image = torch.empty(1, height, width, dtype=torch.uint8)
    theirs = np.array([v1.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(count)])
    assert (ours[:, :2] + ours[:, 2:] <= [height, width]).all()
    seen = [(*boxes.T, boxes[:, 2] * boxes[:, 3], boxes[:, 2] / boxes[:, 3]) for boxes in (ours, theirs)]
    assert all(stats.ks_2samp(*pair).pvalue > 1e-3 for pair in zip(*seen, strict=True))


@pytest.mark.parametrize("scale", [True, False])
@GENERATIONS
def test_many_normalisations_are_exact(t, scale):
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(1, 256).repeat(3, 0)).convert("RGB")
    numbers = np.random.default_rng(5)
    for mean, std in zip(numbers.uniform(-1, 2, (60, 3)), numbers.uniform(0.01, 3, (60, 3)), strict=True):
        conversion = [v1.ToTensor()] if t is v1 and scale else [v2.ToImage(), v2.ToDtype(torch.float32, scale=scale)]
        transform = v1.Compose([*conversion, t.Normalize(mean.tolist(), std.tolist())])
        assert_same(run(recipe_of(transform), ramp), transform(ramp))


class OwnToTensor(v1.ToTensor):
    pass


def hooked():
    transform = v1.Resize(8)
    transform.register_forward_hook(lambda *_: None)
    return transform


def replaced():
    transform = v1.Resize(8)
    transform.forward = lambda image: image
    return transform


def reversed_range():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return v1.RandomResizedCrop(8, scale=(1.0, 0.5))


FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32)]
REFUSED: dict[str, tuple[Any, ...]] = {
    "normalise that adds channels": (v2.Compose([*FLOATS, v2.Normalize(MEAN, STD)]), "number of channels", "L"),
    "reversed range": (v1.Compose([reversed_range(), v1.ToTensor()]), ""),
    "no transform": (None, "PIL images cannot be collated"),
    "a function": (lambda image: image, "Penstock has no native form of it"),
    "a subclass": (OwnToTensor(), "a subclass of ToTensor"),
    "unknown": (v1.Compose([v1.ElasticTransform(), v1.ToTensor()]), "Penstock has no native form of it"),
    "not a tensor": (v2.Compose([v2.Resize(8)]), "ends in a PIL image"),
    "hooks": (v1.Compose([hooked(), v1.ToTensor()]), "hooks"),
    "replaced": (v1.Compose([replaced(), v1.ToTensor()]), "replaced"),
    "resize of floats": (v1.Compose([v1.ToTensor(), v1.Resize(8)]), "converted before"),
    "resize of tensors": (v1.Compose([v1.PILToTensor(), v1.Resize(8)]), "does not reproduce"),
    "name of a filter": (v1.Compose([v1.Resize(8, "bilinear"), v1.ToTensor()]), "interpolation='bilinear'"),
    "grey of tensors": (v1.Compose([v1.ToTensor(), v1.Grayscale()]), "Pillow's grey"),
    "filter of tensors": (v2.Compose([v2.ToImage(), v2.Resize(8, InterpolationMode.LANCZOS)]), "does not reproduce"),
    "normalise bytes": (v1.Compose([v1.PILToTensor(), v1.Normalize(MEAN, STD)]), "raises TypeError"),
    "normalise one of three": (v1.Compose([v1.ToTensor(), v1.Normalize(MEAN[:2], STD[:2])]), "raises RuntimeError"),
    "normalise an image": (v2.Compose([*FLOATS, v2.Normalize(torch.zeros(3, 1, 256), STD)]), ""),
    "std of zero": (v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, [1, 0, 1])]), "raises ValueError"),
    "fill dict": (v2.Compose([v2.Pad(1, fill={Image.Image: 3, "others": 0}), v2.ToImage()]), "a fill for types"),
    "fill of two": (v1.Compose([v1.Pad(1, fill=(1, 2)), v1.ToTensor()]), "raises ValueError"),
    "negative padding": (v1.Compose([v1.Pad(-1), v1.ToTensor()]), "padding=-1"),
    "padding of halves": (v1.Compose([v1.Pad(1.5), v1.ToTensor()]), "padding=1.5"),
    "tensor twice": (v1.Compose([v1.ToTensor(), v1.ToTensor()]), "raises TypeError"),
    "max_size": (v1.Compose([v1.Resize(8, max_size=8), v1.ToTensor()]), "max_size"),
    "size zero": (v1.Compose([v1.CenterCrop(0), v1.ToTensor()]), "size="),
    "size huge": (v1.Compose([v1.CenterCrop(2**21), v1.ToTensor()]), "out of range"),
}


@GENERATIONS
@pytest.mark.parametrize("interpolation", ["box", "hamming"])
def test_filters_that_are_left_to_pillow(t, interpolation):
    resize = t.Compose([t.Resize((20, 31), interpolation=InterpolationMode(interpolation)), t.PILToTensor()])
    assert "LANCZOS" in str(refusal_of(resize))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_left_to_python_is_named(case):
    transform, why, *mode = REFUSED[case]
    refusal = refusal_of(transform, *mode)
    assert why in refusal.why and refusal.what and refusal.remedy


def test_the_mode_is_checked():
    with pytest.raises(ValueError, match="mode 'CMYK'"):
        read(v1.ToTensor(), mode="CMYK")


def test_steps_name_each_transform_and_who_does_it():
    recipe = recipe_of(AUGMENTATION)
    assert (recipe.shape, recipe.dtype) == ((3, 24, 24), torch.float32)
    assert [step.who for step in recipe.steps] == ["native"] * 4
    assert [step.what.split()[0] for step in recipe.steps] == ["resize", "flip", "flip", "convert"]
    assert "RandomResizedCrop" in recipe.steps[0].what and "ToTensor" in recipe.steps[3].what


def test_the_shape_is_known_where_it_can_be():
    assert recipe_of(v1.ToTensor()).shape is None
    assert recipe_of(v1.Compose([v1.Resize(8), v1.ToTensor()])).shape is None
    sized = read(v1.Compose([v1.Pad(2), v1.ToTensor()]), mode="L", size=(28, 30))
    assert isinstance(sized, Recipe) and sized.shape == (1, 32, 34)


IDENTITY = {"channels": 3, "operations": [], "dtype": "uint8", "layout": "chw", "table": None, "fills": []}
RESIZE = {"op": "Resize", "size": (4, 4), "shorter": 0, "longest": 0, "filter": "bilinear", "arithmetic": "pillow"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2}, "1 or 3 channels"),
        ({"dtype": "complex128"}, "cannot give dtype"),
        ({"dtype": "float32"}, "without a table"),
        ({"table": b"\0" * 767}, "does not hold"),
        ({"layout": "nchw"}, "layout 'nchw'"),
        ({"operations": [{"op": "Rotate"}]}, "operation 'Rotate'"),
        ({"operations": [{"op": "CenterCrop", "size": (3, 3), "fill": 0}]}, "a fill that is not there"),
        ({"operations": [{"op": "CenterCrop", "size": (3, 0), "fill": 0}]}, "out of range"),
        ({"operations": [RESIZE | {"antialias": True, "filter": "cubic"}]}, "filter 'cubic'"),
        ({"operations": [RESIZE | {"antialias": True, "size": None}]}, "no size"),
        ({"fills": [(b"1234", b"")]}, "too many channels"),
    ],
)
def test_a_wrong_description_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        _native.Recipe(**(IDENTITY | change))


def test_torchvision_is_not_imported_here():
    assert "torchvision" not in vars(sys.modules["penstock.recipe.reader"])


@pytest.mark.parametrize("layout", ["grey", "interleaved", "planar"])
def test_small_pictures_in_memory(layout: str) -> None:
    """Narrow planes of bytes have a way of their own: every width around its blocks, all edges, both flips."""
    rng = np.random.default_rng(7)
    for width in (1, 15, 16, 17, 31, 32, 33, 48, 100, 127, 128, 129):
        height = int(rng.integers(1, 9))
        pad = [int(n) for n in rng.integers(0, 20, 4)]
        size = (int(rng.integers(1, height + pad[1] + pad[3] + 1)), int(rng.integers(1, width + pad[0] + pad[2] + 1)))
        crop = v1.RandomCrop(size, padding=pad, fill=int(rng.integers(0, 256)))
        steps = v1.Compose([crop, v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.PILToTensor()])
        dataset = in_memory("MNIST" if layout == "grey" else "CIFAR10", steps, 6)
        pixels = rng.integers(0, 256, (6, height, width, 3), dtype=np.uint8)
        planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        dataset.data = planes.transpose(0, 2, 3, 1) if layout == "planar" else pixels
        if layout == "grey":
            dataset.data = torch.from_numpy(planes[:, 0].copy())
        loader = penstock.DataLoader(dataset, 6, seed=3, num_workers=0)
        assert "gather" in loader.explain()
        ((images, _),) = loader
        for i in range(6):
            with keyed_methods.of_sample(3, 0, i, i):
                assert torch.equal(images[i], dataset[i][0]), (width, i)

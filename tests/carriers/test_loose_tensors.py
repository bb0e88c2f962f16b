"""Batches of tensors that have sizes of their own, from worker processes: torch's, in memory that is used again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from PIL import Image
from torchvision.transforms import v2

import penstock
from tests.data import Made, Stream
from tests.same import assert_passes
from tests.values import listed

SIZE, BATCH = 48, 4
CONVERT = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])


def picture(index: int) -> Image.Image:
    sides = 60 + 7 * (index % 5), 80 + 3 * (index % 3)
    return Image.fromarray(np.full((*sides, 3), index, dtype=np.uint8))


def pictures(make: Callable[[Any, int], Any] = lambda image, index: (image, index), size: int = SIZE) -> Made:
    return Made(lambda index: make(CONVERT(picture(index)), index), size)


def as_columns(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def loader(dataset: Any, cls: Any = penstock.DataLoader, **options: Any) -> Any:
    given = {"batch_size": BATCH, "num_workers": 2, "collate_fn": as_columns, "persistent_workers": True}
    return cls(dataset, **{**given, **options})


def blocks(ours: Any) -> list[Any]:
    return list(ours._pass_factory.shared._blocks)


def is_in(tensor: torch.Tensor, block: Any) -> bool:
    return block.address <= tensor.data_ptr() < block.address + block.nbytes


MAKERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "as made": lambda image, i: (image, i),
    "with mask": lambda image, i: (image, {"mask": image[0] > 0.1, "boxes": torch.ones(i % 4, 4)}, str(i)),
    "copied": lambda image, i: (image * 2, i),
    "with crop": lambda image, i: (image, image[:, :50], image),
}


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize(
    "options", [{}, {"collate_fn": lambda samples: samples, "batch_size": 11}, {"seed": 3}], ids=["", "list", "seed"]
)
def test_batches_are_torchs(made: str, options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name != "seed"}
    theirs = list(loader(pictures(MAKERS[made]), tud.DataLoader, **given))
    ours = loader(pictures(MAKERS[made]), **options)
    assert_passes(ours, theirs, 3)


@pytest.mark.parametrize("made", ["as made", "copied"])
def test_memory_is_used_again_and_each_tensor_has_a_storage(made: str) -> None:
    ours, inside = loader(pictures(MAKERS[made])), 0
    for epoch in range(4):
        for images, _ in ours:
            for image in images:
                assert image.untyped_storage().nbytes() == image.nbytes and image.storage_offset() == 0
                assert image.is_leaf and image._base is None
            inside += epoch > 1 and any(is_in(images[0], one) for one in blocks(ours))
            del images, image
    assert 0 < len(blocks(ours)) < 12, "this torch does not tell whether a part of a block is in use"
    assert inside == 2 * SIZE // BATCH


def test_a_program_that_keeps_an_image_of_each_batch_keeps_little_else() -> None:
    ours = loader(pictures(size=160))
    kept = [images[0] for images, _ in itertools.chain(ours, ours)]
    held = sum(any(is_in(image, one) for image in kept) for one in blocks(ours))
    assert len(kept) == 80 and 0 < held <= 4 + 6  # which are kept
    assert all(torch.equal(image, CONVERT(picture(BATCH * (n % 40)))) for n, image in enumerate(kept))


@pytest.mark.parametrize("fails", [None, 30])
def test_what_a_dataset_keeps_is_its_own_also_of_a_batch_that_failed(fails: int | None) -> None:
    kept: dict[int, torch.Tensor] = {}  # in each worker

    def keep(index: int) -> Any:
        for known, image in kept.items():
            assert torch.equal(image, CONVERT(picture(known))), f"picture {known} has changed"
        kept.setdefault(index, CONVERT(picture(index)))
        if index == fails:
            raise OSError(f"picture {index} cannot be read")
        return kept[index], index

    ours = loader(Made(keep, SIZE), timeout=60)
    for _ in range(4):
        batches = iter(ours)
        for number in range(SIZE // BATCH):
            if fails is not None and number == fails // BATCH:
                with pytest.raises(OSError, match=f"picture {fails} cannot be read"):
                    next(batches)
                continue
            images, labels = next(batches)
            for image, label in zip(images, labels, strict=True):
                assert torch.equal(image, CONVERT(picture(label)))
                image.fill_(-1)


def test_batches_that_grow() -> None:
    ours = loader(Made(lambda index: (torch.full((100 * (index + 60),), float(index)), index), SIZE))
    for _ in range(3):
        for images, labels in ours:
            assert [image.shape[0] for image in images] == [100 * (index + 60) for index in labels]
            assert [image.unique().tolist() for image in images] == [[index] for index in labels]
    largest = sum(400 * (index + 60) for index in range(SIZE - BATCH, SIZE))
    block_bytes = ours._pass_factory.shared.block_bytes
    assert block_bytes in {block.nbytes for block in blocks(ours)}
    assert block_bytes in range(largest, (largest + 64 * BATCH) * 9 // 8 + 1)


def kept_in_the_worker(samples: list[Any]) -> Any:
    batch = torch.cat([image.reshape(-1) for image, _ in samples])
    kept_in_the_worker.batch = batch  # type: ignore[attr-defined]
    return batch, batch[:100], [index for _, index in samples]


def test_tensors_that_share_memory_do_so_where_they_arrive() -> None:
    ours = loader(pictures(), collate_fn=kept_in_the_worker)
    for _ in range(3):
        for batch, beginning, labels in ours:
            assert beginning.data_ptr() == batch.data_ptr()
            assert torch.equal(batch, torch.cat([CONVERT(picture(index)).reshape(-1) for index in labels]))


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 2, "collate_fn": list}], ids=str)
def test_conjugate_and_negative_views_arrive_with_their_values(kind: str, options: dict[str, Any]) -> None:
    def make(index: int) -> Any:
        values = torch.tensor([complex(index, 1), complex(3, -index)])
        return [values.conj(), (values.conj().imag[1:],), torch.nn.Parameter(values.conj(), False)]

    dataset: Any = Made(make, 4) if kind == "map" else Stream(4, make)
    for method in (None, "process", "thread"):
        loader = penstock.DataLoader(dataset, num_workers=1, worker_method=method, **options)
        assert listed(loader) == listed(tud.DataLoader(dataset, **options))

"""One pass over image folders whose JPEG files are decoded on the device, where crop, resize and flip are done too.

Python threads read files ahead, and leave to Pillow those that a GPU's decoder is not trusted with. The thread that
asks for a batch begins its decoding and its operations, on the copy stream, and waits for neither.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate, pad

import penstock._native as _native
from penstock.device.copy_stream import CopyStream
from penstock.device.decoders import Decoder
from penstock.device.reading import Batch, Encoded, Readers
from penstock.device.stores import send
from penstock.errors import ShapeMismatch, WorkerStuck
from penstock.executors.filler import IN_FLIGHT, Filler, PassInput, PassResources
from penstock.executors.iterator import FillerExecutor
from penstock.executors.job import Job
from penstock.plan import NativePlan, Plan
from penstock.recipe.recipe import Recipe
from penstock.recipe.steps import Refusal
from penstock.sample_notes import torch_batch
from penstock.state.substitutes import Substitutes

#: Batches whose files are read ahead, unless prefetch_factor= says otherwise. Files are small beside their pixels.
AHEAD = 3
#: Bytes of float32 pictures that are resized at once.
_ROOM = 64 << 20
#: torch's antialiased resize runs out of a GPU's shared memory where it reduces too much at once; beyond this scale a
#: picture is averaged down first.
_STEEP = 16


def refusal(plan: Plan) -> Refusal | None:
    """Return why a plan's images cannot be decoded on a device, or None."""
    what, folders = "decode='gpu'", "an ImageFolder with torchvision's transforms"
    if not isinstance(plan, NativePlan):
        return Refusal(what, "Python reads the dataset", folders)
    for leaf in plan.leaves:
        if leaf.images is None or leaf.recipe is None or not leaf.images.encoded:
            return Refusal(what, "the dataset is no folder of image files", folders)
        why = obstacle(leaf.recipe)
        if why is not None:
            return Refusal(
                what, why, "crops, flips, bilinear or bicubic resizes, and a conversion at the transform's end"
            )
    return None


class DecodingFiller(Filler):
    """Makes the batches of one pass over the data of a plan for which `refusal` gives None, made with raw=True.

    A batch is what the host's own pass over that plan gives, its first field on the device: uint8 (samples, channels,
    height, width), with the same parameters drawn for each sample, and pixels close to those. The batch is
    handed over to another stream as a copy of the copy stream is. Errors are those of the host's pass.

    Args:
        plan: what is read.
        resources: how many threads read files, and from whom.
        decoder: of the device.
        device: where batches are made.
        stream: batches are made on it; None: on the calling thread's current one.
        substitutes: how bad samples are replaced; None: their errors are raised.
    """

    def __init__(
        self,
        plan: NativePlan,
        resources: PassResources,
        decoder: Decoder,
        device: torch.device,
        stream: CopyStream | None = None,
        *,
        substitutes: Substitutes | None = None,
    ) -> None:
        super().__init__(resources)
        self._plan, self._decoder, self._device, self._stream = plan, decoder, device, stream
        self._working = contextlib.nullcontext if stream is None else stream.working
        self._substitutes = substitutes
        self._readers: Readers
        self._begun = False

    def open(self, pass_input: PassInput) -> None:
        grey, meter = self._decoder.grey, self.resources.meter
        self._readers = Readers(self._plan, pass_input, self.workers, meter, grey=grey, substitutes=self._substitutes)
        self.ended, self._begun = self._readers.ended, True

    def close(self) -> None:
        if self._begun:
            self._readers.close()

    def __repr__(self) -> str:
        return f"{self.workers} threads, to {self._device} by {self._decoder.name}"

    def new_batch(self) -> Batch:
        return Batch()

    def begin(self, batch: Batch) -> None:
        batch.begin(partial(self._begin, batch))

    def _begin(self, batch: Batch) -> None:
        batch.indices = batch.wanted.copy()  # threads put others in it
        batch.leaves, batch.local = self._plan.root.resolve(batch.wanted)
        self._readers.submit(batch)

    def depth(self, queue: deque[Batch]) -> int:
        if not self.reads_ahead:
            return 1
        if self.resources.in_flight is not None:
            return max(1, min(self.resources.in_flight, IN_FLIGHT))
        if not queue or not self.resources.settled:
            return AHEAD
        return max(AHEAD, self._readers.files.batches_ahead(len(queue[0].indices)))

    def ready(self, queue: deque[Batch]) -> Batch:
        batch = queue[0]
        if not self._readers.wait(batch, self.resources.timeout):
            raise WorkerStuck(
                f"DataLoader timed out after {self.resources.timeout} seconds: {self.workers} threads read image "
                "files. Raise timeout= if they may take as long, else look at the file system they lie on."
            )
        return batch

    # --- the batch on its device --------------------------------------------------------------------------------------

    def assemble(self, batch: Batch) -> Any:
        plan = self._plan
        if batch.other is not None:
            return torch_batch(plan.dataset, batch.other)
        with torch.no_grad(), self._working():
            rows = self._decoded(batch)
            undone: defaultdict[int, list[int]] = defaultdict(list)  # by leaf, the positions that a recipe is for
            for i, sample in enumerate(batch.samples):
                if sample.drawn is not None:
                    undone[sample.leaf].append(i)
            for leaf, positions in undone.items():
                recipe = plan.leaves[leaf].recipe
                assert recipe is not None
                pictures = DecodedImages([rows[i] for i in positions])
                made = pictures.run(recipe, [batch.samples[i].drawn or [] for i in positions])
                for i, row in zip(positions, made, strict=True):
                    rows[i] = row
            self._check(batch, rows)
            out = torch.stack(rows)
        if batch.replaced:
            batch.leaves, batch.local = plan.root.resolve(batch.indices)
        labels = plan.labels(batch.leaves, batch.local)
        fields = [out] if labels is None else [out, labels]
        return fields if plan.leaves[0].form.pair else out

    def _decoded(self, batch: Batch) -> list[torch.Tensor]:
        """Return the pixels of the samples on the device. Where the decoder fails Pillow decodes, here and now."""
        files = {i: one.content for i, one in enumerate(batch.samples) if isinstance(one.content, Encoded)}
        pixels: dict[int, torch.Tensor] = {}
        decoded = self._decoder.decode([file.data for file in files.values()]) if files else []
        for (i, file), picture in zip(files.items(), decoded, strict=True):
            if picture is not None and picture.shape == (3, *file.size):
                pixels[i] = picture
                continue
            self._readers.prepare(batch, i, trusted=False)
            batch.rescued.append(f"{self._decoder.name} does not decode it")
            if batch.error is not None:
                batch.raise_error()
        for i, sample in enumerate(batch.samples):
            if isinstance(sample.content, torch.Tensor):
                on_host = sample.content
                pixels[i] = on_host.to(self._device) if self._stream is None else self._stream.copy(on_host)
        return [pixels[i] for i in range(len(pixels))]

    def _check(self, batch: Batch, rows: list[torch.Tensor]) -> None:
        """Raise ShapeMismatch where the results differ in shape."""
        shapes = [tuple(row.shape) for row in rows]
        position = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if position is None:
            return
        (name, path), (other, _) = (
            self._plan.leaves[sample.leaf].identify(sample.local)
            for sample in (batch.samples[position], batch.samples[0])
        )
        raise ShapeMismatch(
            f"sample {name!r} ({path or 'in memory'}) has shape {shapes[position]} of uint8; this batch holds "
            f"shape {shapes[0]} of uint8, as sample {other!r} does. Give collate_fn= to batch samples of different "
            "shapes or dtypes, or a transform that makes them equal",
            sample_id=name,
            path=path,
        )


@dataclass(frozen=True)
class DecodingExecutor(FillerExecutor):
    """Decodes images on the device."""

    decoder: Decoder
    device: torch.device
    stream: CopyStream

    def filler(self, job: Job, held: Filler | None, drawn: Callable[[], PassInput]) -> DecodingFiller:
        assert isinstance(job.plan, NativePlan)
        return DecodingFiller(
            job.plan, job.resources, self.decoder, self.device, self.stream, substitutes=job.substitutes
        )


# --- operations on decoded pictures -----------------------------------------------------------------------------------

# Close to what native/image does on the host: resizes are torch's, in float32 and rounded at their end. Pillow rounds
# between its two passes as well, so that values differ by 1 here and there. All else is exact.


def obstacle(recipe: Recipe) -> str | None:
    """Return why a recipe's operations cannot be done on a device, or None."""
    if recipe.fills is None:
        return "its values are converted in a way that a device cannot take over"
    for operation in recipe.operations:
        if operation["op"] not in _OPERATIONS:
            return f"no device does {operation.get('name', operation['op'])} as torchvision does"
        kind = operation.get("filter", "bilinear")
        if kind not in ("bilinear", "bicubic"):
            return f"no device does a {kind} resize"
        # A CenterCrop of a small picture pads it with black.
        fill = any(recipe.fills[operation["fill"]]) if operation["op"] == "CenterCrop" else False
        if fill or operation.get("pad_if_needed") or any(operation.get("padding", ())):
            return "no device pads"
    return None


class DecodedImages:
    """Pictures at one point of their recipe.

    They lie apart until they are all of one shape: `whole` then holds them, (samples, channels, height, width), and
    `each` is its rows. After a resize they are float32, and are rounded before the next operation that needs pixels.

    Args:
        each: pictures, uint8 (channels, height, width).
    """

    def __init__(self, each: Sequence[torch.Tensor]) -> None:
        self.each = list(each)
        self.whole: torch.Tensor | None = None

    def run(self, recipe: Recipe, drawn: Sequence[Sequence[Any]]) -> list[torch.Tensor]:
        """Do a recipe's operations with what was drawn for each picture, and return the results, uint8."""
        sizes = [_native.sizes(recipe.native, picture.shape[2], picture.shape[1]) for picture in self.each]
        for number, operation in enumerate(recipe.operations):
            asked = [each[number + 1] for each in sizes] if operation["op"] == "Resize" else [d[number] for d in drawn]
            _OPERATIONS[operation["op"]](self, operation, asked)
        self._together()
        self._round()
        self._map(lambda picture: picture.to(torch.uint8))
        return self.each

    # --- operations -------------------------------------------------------------------------------------------------

    def random_resized_crop(self, operation: dict[str, Any], drawn: list[Any]) -> None:
        self._set([_cut(picture, *box) for picture, box in zip(self.each, drawn, strict=True)])
        self._resize([operation["size"]] * len(self.each), operation)

    def resize(self, operation: dict[str, Any], sizes: list[Any]) -> None:
        self._resize(sizes, operation)

    def center_crop(self, operation: dict[str, Any], _: list[Any]) -> None:
        height, width = operation["size"]

        def centre(picture: torch.Tensor) -> torch.Tensor:
            lacking = [max(0, height - picture.shape[-2]), max(0, width - picture.shape[-1])]
            (above, left), (below, right) = ([n // 2 for n in lacking], [(n + 1) // 2 for n in lacking])
            if any(lacking):
                picture = pad(picture, [left, right, above, below])
            top, left = (round((there - to) / 2) for there, to in zip(picture.shape[-2:], (height, width), strict=True))
            return _cut(picture, top, left, height, width)

        self._map(centre)

    def random_crop(self, _: dict[str, Any], drawn: list[Any]) -> None:
        self._set([_cut(picture, *box) for picture, box in zip(self.each, drawn, strict=True)])

    def flip(self, operation: dict[str, Any], drawn: list[Any]) -> None:
        if not any(drawn):
            return
        axis = -1 if operation["horizontal"] else -2
        self._together()
        if self.whole is None:
            self._set([picture.flip(axis) if do else picture for picture, do in zip(self.each, drawn, strict=True)])
        else:
            chosen = send(np.array(drawn, dtype=bool), self.whole.device).view(-1, 1, 1, 1)
            self._set_whole(torch.where(chosen, self.whole.flip(axis), self.whole))

    # --- their parts ------------------------------------------------------------------------------------------------

    def _set(self, each: list[torch.Tensor]) -> None:
        self.each, self.whole = each, None

    def _set_whole(self, whole: torch.Tensor) -> None:
        self.each, self.whole = list(whole.unbind()), whole

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace each picture, or all at once."""
        if self.whole is not None:
            self._set_whole(function(self.whole))
        else:
            self._set([function(picture) for picture in self.each])

    def _together(self) -> None:
        """Put the pictures together, if they are of one shape and dtype."""
        if self.whole is None and len({(picture.shape, picture.dtype) for picture in self.each}) == 1:
            self._set_whole(torch.stack(self.each))

    def _round(self) -> None:
        self._map(lambda picture: picture.round().clamp(0, 255) if picture.is_floating_point() else picture)

    def _resize(self, sizes: list[tuple[int, int]], operation: dict[str, Any]) -> None:
        self._round()
        alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, (picture, size) in enumerate(zip(self.each, sizes, strict=True)):
            if tuple(picture.shape[1:]) != tuple(size):
                alike[(tuple(picture.shape), picture.dtype, tuple(size))].append(number)
        each = list(self.each)
        for (shape, _, size), numbers in alike.items():
            at_once = max(1, _ROOM // (4 * shape[0] * shape[1] * shape[2]))
            for begin in range(0, len(numbers), at_once):
                some = numbers[begin : begin + at_once]
                together = self.each[some[0]][None] if len(some) == 1 else torch.stack([self.each[n] for n in some])
                for number, picture in zip(some, _scaled(together, size, operation).unbind(), strict=True):
                    each[number] = picture
        if alike:
            self._set([picture.to(torch.float32) for picture in each])


_Operation = Callable[[DecodedImages, dict[str, Any], list[Any]], None]
_OPERATIONS: dict[str, _Operation] = {
    "RandomResizedCrop": DecodedImages.random_resized_crop,
    "Resize": DecodedImages.resize,
    "CenterCrop": DecodedImages.center_crop,
    "RandomCrop": DecodedImages.random_crop,
    "RandomFlip": DecodedImages.flip,
}


def _scaled(pictures: torch.Tensor, size: tuple[int, int], operation: dict[str, Any]) -> torch.Tensor:
    """Return pictures of this size, float32, not rounded."""
    # Without a gap in memory: a window of larger pictures, or interleaved ones, would be copied again otherwise.
    values = pictures.to(torch.float32, memory_format=torch.contiguous_format)
    if operation["antialias"]:
        there = values.shape[-2:]
        enough = tuple(
            -(-n // max(1, 2 * n // (_STEEP * to))) if n > _STEEP * to else n for n, to in zip(there, size, strict=True)
        )
        if enough != tuple(there):
            values = interpolate(values, enough, mode="area")
    return interpolate(values, size, mode=operation["filter"], align_corners=False, antialias=operation["antialias"])


def _cut(picture: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    return picture[..., top : top + height, left : left + width]

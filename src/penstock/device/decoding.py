"""One pass over image folders whose JPEG files are decoded on the device, where crop, resize and flip are done too.

Python threads read files ahead, and leave to Pillow those that a GPU's decoder is not trusted with. The thread that
asks for a batch begins its decoding and its operations, on the copy stream, and waits for neither.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import interpolate, pad

import penstock._native as _native
from penstock.device.copy_stream import CopyStream
from penstock.device.decoders import Decoder
from penstock.device.reading import Batch, Encoded, Readers
from penstock.errors import ShapeMismatch, WorkerStuck
from penstock.passes.carrier import Carrier
from penstock.passes.iterator import MakeCarrier
from penstock.passes.job import Job
from penstock.passes.values import IN_FLIGHT, PassInput, PassResources
from penstock.plan import NativePlan, Plan
from penstock.recipe.steps import Recipe, Refusal
from penstock.sample_notes import torch_batch

#: Batches whose files are read ahead, unless prefetch_factor= says otherwise. Files are small beside their pixels.
AHEAD = 3
#: torch's antialiased resize runs out of a GPU's shared memory where it reduces too much at once; beyond this scale a
#: picture is averaged down first.
_STEEP = 16


def refusal(plan: Plan, *, replaces: bool = False) -> Refusal | None:
    """Return why a plan's images cannot be decoded on a device, or None. replaces: bad samples are replaced."""
    what, folders = "decode='gpu'", "an ImageFolder with torchvision's transforms"
    if replaces:
        return Refusal(what, "bad samples are replaced", "on_error='raise'")
    if not isinstance(plan, NativePlan):
        return Refusal(what, "Python reads the dataset", folders)
    for leaf in plan.leaves:
        if leaf.images is None or leaf.recipe is None or not leaf.images.encoded:
            return Refusal(what, "the dataset is not a folder of image files", folders)
        why = obstacle(leaf.recipe)
        if why is not None:
            return Refusal(
                what, why, "crops, flips, bilinear or bicubic resizes, and a conversion at the transform's end"
            )
    return None


class DecodingCarrier(Carrier):
    """Makes the batches of one pass over the data of a plan for which `refusal` gives None, made with raw=True.

    A batch is what the host's own pass over that plan gives, its first field on the device: uint8 (samples, channels,
    height, width), with the same parameters drawn for each sample, and pixels close to those. The batch is
    handed over to another stream as a copy of the copy stream is. Errors are those of the host's pass.

    Args:
        resources: how many threads read files, and from whom.
        stream: batches are made on it; None: on the calling thread's current one.
    """

    def __init__(
        self,
        plan: NativePlan,
        resources: PassResources,
        decoder: Decoder,
        device: torch.device,
        stream: CopyStream | None = None,
    ) -> None:
        super().__init__(resources)
        self._plan, self._decoder, self._device, self._stream = plan, decoder, device, stream
        self._working = contextlib.nullcontext if stream is None else stream.working
        self._readers: Readers
        self._begun = False

    def open(self, pass_input: PassInput) -> None:
        self._readers = Readers(self._plan, pass_input, self.workers)
        self._begun = True

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
        batch.leaves, batch.local = self._plan.root.resolve(batch.wanted)
        self._readers.submit(batch)

    def depth(self, queue: deque[Batch]) -> int:
        if not self.reads_ahead:
            return 1
        if self.resources.in_flight is not None:
            return max(1, min(self.resources.in_flight, IN_FLIGHT))
        return AHEAD

    def ready(self, queue: deque[Batch]) -> Batch:
        batch = queue[0]
        if not self._readers.wait(batch, self.resources.timeout):
            raise WorkerStuck(
                f"DataLoader timed out after {self.resources.timeout} seconds: {self.workers} threads read image "
                "files. Raise timeout= if they may take that long; else check their file system."
            )
        return batch

    # --- the batch on its device --------------------------------------------------------------------------------------

    def assemble(self, batch: Batch) -> Any:
        plan = self._plan
        if batch.other is not None:
            return torch_batch(plan.dataset, batch.other)
        with torch.no_grad(), self._working():
            rows = self._decoded(batch)
            for i, sample in enumerate(batch.samples):
                recipe = plan.leaves[sample.leaf].recipe
                if sample.drawn is not None and recipe is not None:
                    rows[i] = transformed(rows[i], recipe, sample.drawn)
            self._check(batch, rows)
            out = rounded(torch.stack(rows))  # as floats, where some are not rounded yet
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
            batch.read_by_python.append(f"{self._decoder.name} does not decode it")
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


def decoding_carrier(decoder: Decoder, device: torch.device, stream: CopyStream) -> MakeCarrier:
    """Return what makes passes of batches whose images are decoded on the device."""

    def make(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> DecodingCarrier:
        assert isinstance(job.plan, NativePlan)
        return DecodingCarrier(job.plan, job.resources, decoder, device, stream)

    return make


# --- operations on decoded pictures -----------------------------------------------------------------------------------

# Close to what native/image does on the host: resizes are torch's, in float32 and rounded at their end. Pillow rounds
# between its two passes as well, so that values differ by 1 here and there. All else is exact.


def obstacle(recipe: Recipe) -> str | None:
    """Return why a recipe's operations cannot be done on a device, or None."""
    if recipe.fills is None:
        return "its values are converted in a way that a device cannot take over"
    for operation in recipe.operations:
        if operation["op"] not in ("RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop", "RandomFlip"):
            return f"no device does {operation.get('name', operation['op'])} as torchvision does"
        kind = operation.get("filter", "bilinear")
        if kind not in ("bilinear", "bicubic"):
            return f"no device does a {kind} resize"
        # A CenterCrop of a small picture pads it with black.
        fill = any(recipe.fills[operation["fill"]]) if operation["op"] == "CenterCrop" else False
        if fill or operation.get("pad_if_needed") or any(operation.get("padding", ())):
            return "no device pads"
    return None


def transformed(picture: torch.Tensor, recipe: Recipe, drawn: Sequence[Any]) -> torch.Tensor:
    """Return a picture after a recipe's operations: uint8, or after a resize float32 that is not rounded yet.

    picture: uint8 (channels, height, width). recipe: one for which `obstacle` gives None. drawn: for each operation.
    """
    sizes = _native.sizes(recipe.native, picture.shape[2], picture.shape[1])
    for number, operation in enumerate(recipe.operations):
        kind = operation["op"]
        if kind in ("RandomResizedCrop", "RandomCrop"):
            picture = _cut(picture, *drawn[number])
        if kind == "CenterCrop":
            picture = _centre(picture, *operation["size"])
        elif kind == "RandomFlip" and drawn[number]:
            picture = picture.flip(-1 if operation["horizontal"] else -2)
        elif kind in ("RandomResizedCrop", "Resize"):
            height, width = sizes[number + 1]
            picture = _scaled(rounded(picture), (height, width), operation)
    return picture


def rounded(picture: torch.Tensor) -> torch.Tensor:
    return picture.round().clamp(0, 255).to(torch.uint8) if picture.is_floating_point() else picture


def _centre(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    lacking = [max(0, height - picture.shape[-2]), max(0, width - picture.shape[-1])]
    (above, left), (below, right) = ([n // 2 for n in lacking], [(n + 1) // 2 for n in lacking])
    if any(lacking):
        picture = pad(picture, [left, right, above, below])
    top, left = (round((there - to) / 2) for there, to in zip(picture.shape[-2:], (height, width), strict=True))
    return _cut(picture, top, left, height, width)


def _scaled(picture: torch.Tensor, size: tuple[int, int], operation: dict[str, Any]) -> torch.Tensor:
    """Return a picture of this size, float32, not rounded; the picture itself where it has the size."""
    there = tuple(picture.shape[1:])
    if there == size:
        return picture
    # Without a gap in memory: a window of a larger picture, or an interleaved one, would be copied again otherwise.
    values = picture.to(torch.float32, memory_format=torch.contiguous_format)[None]
    if operation["antialias"]:
        enough = tuple(
            -(-n // max(1, 2 * n // (_STEEP * to))) if n > _STEEP * to else n for n, to in zip(there, size, strict=True)
        )
        if enough != there:
            values = interpolate(values, enough, mode="area")
    return interpolate(values, size, mode=operation["filter"], align_corners=False, antialias=operation["antialias"])[0]


def _cut(picture: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    return picture[..., top : top + height, left : left + width]

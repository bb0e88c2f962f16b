"""One pass over image folders whose JPEG files are decoded on the device, where crop, resize and flip are done too.

Python threads read files ahead; what a decoder of a GPU cannot be trusted with, they leave to Pillow. The thread that
asks for a batch begins its decoding and its operations, on the lane's stream, and waits for neither.
"""

from __future__ import annotations

import contextlib
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch

from penstock.device.decoders import Decoder
from penstock.device.lane import Lane
from penstock.device.operations import Pictures, Places, obstacle
from penstock.device.reading import Batch, Encoded, Pixels, Readers, Row, Sample
from penstock.errors import ShapeMismatch, WorkerStuck
from penstock.executors.iterator import IN_FLIGHT, Course, IndexedPass, Means
from penstock.plan import NativePlan, Plan
from penstock.recipe.steps import Refusal
from penstock.sample_notes import torch_batch
from penstock.state.substitutes import Substitutes

#: Batches whose files are read ahead, unless prefetch_factor= says otherwise. Files are small beside their pixels.
AHEAD = 3


def refusal(plan: Plan) -> Refusal | None:
    """Return why a plan's images cannot be decoded on a device, or None."""
    what, folders = "decode='gpu'", "an ImageFolder with torchvision's transforms"
    if not isinstance(plan, NativePlan):
        return Refusal(what, "Python reads the dataset", folders)
    for leaf in plan.leaves:
        if leaf.recipe is None or not leaf.image_files:
            return Refusal(what, "the dataset is no folder of image files", folders)
        why = obstacle(leaf.recipe)
        if why is not None:
            return Refusal(what, why, "bilinear or bicubic resizes, and a conversion at the transform's end")
    return None


class GpuDecoding(IndexedPass):
    """One pass over the data of a plan for which `refusal` gives None, that plan made with raw=True.

    A batch is what the host's own pass over that plan gives, its first field on the device: uint8 (samples, channels,
    height, width), with the same parameters drawn for each sample, and pixels close to those. It is for the lane's
    stream; whoever hands it on does so as for a copy of that lane. Errors are those of the host's pass.

    Args:
        plan: what is read.
        course: the dataset indices of each batch; a list holds what a sampler gave that is none.
        means: how many threads read files, and from whom.
        decoder: of the device.
        device: where batches are made.
        lane: whose stream they are made on; None: on the calling thread's current one.
        substitutes: how bad samples are replaced; None raises their errors.
        eager: start reading now, not when the first batch is asked for.
    """

    def __init__(
        self,
        plan: NativePlan,
        course: Course,
        means: Means,
        decoder: Decoder,
        device: torch.device,
        lane: Lane | None = None,
        *,
        substitutes: Substitutes | None = None,
        eager: bool = False,
    ) -> None:
        super().__init__(means)
        self._decoder = decoder
        self._device = device
        self._substitutes = substitutes
        self.begin(plan, course, lane, eager=eager)

    def begin(self, plan: NativePlan, course: Course, lane: Lane | None = None, *, eager: bool = False) -> None:
        """Begin a pass, with threads of its own."""
        self._crew = Readers(
            plan,
            course.seed,
            course.epoch,
            self._means.workers,
            grey=self._decoder.grey,
            substitutes=self._substitutes,
        )
        self._hold(self._crew)
        self._plan = plan
        self._lane = lane
        self._places = Places(self._device)
        self._start(course, eager=eager)

    def _new_batch(self) -> Batch:
        return Batch()

    def _depth(self, queue: deque[Batch]) -> int:
        if not self._reads_ahead:
            return 1
        return AHEAD if self._means.in_flight is None else max(1, min(self._means.in_flight, IN_FLIGHT))

    def _ready(self, queue: deque[Batch]) -> Batch:
        batch = queue[0]
        if batch.error is None and self._crew.wait(batch, self._timeout) is None:
            raise WorkerStuck(
                f"DataLoader timed out after {self._timeout} seconds: {self._num_workers} threads read image files. "
                "Raise timeout= if they may take as long, else look at the file system they lie on."
            )
        return batch

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return (
            f"<GpuDecoding: {state}, to {self._device} by {self._decoder.name}, {self._num_workers} threads, "
            f"{len(self._queue)} batches in flight>"
        )

    def _begin_indices(self, batch: Batch) -> None:
        batch.indices = batch.wanted.copy()  # threads put others in it
        batch.leaves, batch.local = self._plan.root.resolve(batch.wanted)
        self._crew.submit(batch)

    # --- the batch on its device --------------------------------------------------------------------------------------

    def _assemble(self, batch: Batch) -> Any:
        return self._means.deliver(self._made(batch))

    def _made(self, batch: Batch) -> Any:
        if batch.other is not None:
            return torch_batch(self._plan.dataset, batch.other)
        with torch.no_grad(), self._working():
            pixels = self._decoded(batch)
            rows: dict[int, torch.Tensor] = {}
            for number in sorted({sample.leaf for sample in batch.samples}):
                here = [i for i, sample in enumerate(batch.samples) if sample.leaf == number and i in pixels]
                recipe = self._plan.leaves[number].recipe
                assert recipe is not None
                pictures = Pictures([pixels[i] for i in here], self._places)
                made = pictures.run(recipe, [batch.samples[i].drawn for i in here]) if here else []
                rows.update(zip(here, made, strict=True))
            for i, sample in enumerate(batch.samples):
                if isinstance(sample.content, Row):
                    rows[i] = self._sent(sample.content.pixels)
            self._check(batch, rows)
            out = torch.stack([rows[i] for i in range(len(rows))])
        if batch.replaced:
            batch.leaves, batch.local = self._plan.root.resolve(batch.indices)
        labels = self._plan.labels(batch.leaves, batch.local)
        fields = [out] if labels is None else [out, labels]
        return fields if self._plan.leaves[0].pair else out

    def _working(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._lane is None else self._lane.working()

    def _decoded(self, batch: Batch) -> dict[int, torch.Tensor]:
        """Return the pixels of the samples that are to run through their recipe, by position, on the device."""
        pixels: dict[int, torch.Tensor] = {}
        files = [i for i, sample in enumerate(batch.samples) if isinstance(sample.content, Encoded)]
        if files:
            contents = [batch.samples[i].content for i in files]
            decoded = self._decoder.decode([one.data for one in contents if isinstance(one, Encoded)])
            for i, content, picture in zip(files, contents, decoded, strict=True):
                assert isinstance(content, Encoded)
                if picture is not None and picture.shape == (3, *content.size):
                    pixels[i] = picture
                else:
                    self._rescue(batch, i, f"{self._decoder.name} does not decode it")
        for i, sample in enumerate(batch.samples):
            if isinstance(sample.content, Pixels):
                pixels[i] = self._sent(sample.content.pixels).permute(2, 0, 1)
        return pixels

    def _rescue(self, batch: Batch, position: int, why: str) -> None:
        """Let Pillow decode a sample, here and now. Raises what it raises."""
        self._crew.prepare(batch, position, trusted=False)
        batch.rescued.append(why)
        if batch.error is not None:
            self._fail(batch)

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device) if self._lane is None else self._lane.copy(tensor)

    def _check(self, batch: Batch, rows: dict[int, torch.Tensor]) -> None:
        """Raise ShapeMismatch where the results differ in shape."""
        shapes = [tuple(rows[i].shape) for i in range(len(rows))]
        position = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if position is None:
            return
        (name, path), (other, _) = (_identify(self._plan, batch.samples[i]) for i in (position, 0))
        raise ShapeMismatch(
            f"sample {name!r} ({path or 'in memory'}) has shape {shapes[position]} of uint8; this batch holds "
            f"shape {shapes[0]} of uint8, as sample {other!r} does. Give collate_fn= to batch samples of different "
            "shapes or dtypes, or a transform that makes them equal",
            sample_id=name,
            path=path,
        )


def _identify(plan: NativePlan, sample: Sample) -> tuple[str, str | None]:
    return plan.leaves[sample.leaf].identify(sample.local)


def told(decoder: Decoder) -> str:
    """Return who decodes, for explain()."""
    return f"decode   on the device, by {decoder.name}; crop, resize and flip there too, close to Pillow's pixels"

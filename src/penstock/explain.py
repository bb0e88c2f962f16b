"""The text of explain(): each step of a plan and who does it; last, as advice, what would make the rest native."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe, SequentialSampler, default_collate

from penstock.carriers.choice import PassFactory
from penstock.order.batches import BatchOrder
from penstock.order.permutations import KeyedSampler
from penstock.passes.job import can_pin, reads_ahead
from penstock.plan import NativePlan, Plan, PythonPlan, plan
from penstock.recipe.torchvision import classes
from penstock.recipe.unseeded_generators import missed
from penstock.settings import Method, Settings
from penstock.showing import shown_lines
from penstock.sources.cached import describe_decoded, describe_indexes
from penstock.sources.tree import source_of
from penstock.stats import Stats
from penstock.system.words import and_join, counted
from penstock.workers import indexed
from penstock.workers.collated import gathers_collated, rows_of
from penstock.workers.own_workers import describe_copies
from penstock.workers.rows import gathers_indexed

#: How many datasets of a ConcatDataset are looked at: they are alike as a rule.
_ALIKE = 8
#: What reads the files natively for which a user's dataset calls these functions, and its page.
_SOURCES = {
    "torch.load": ("penstock.TensorFolder", "docs/tensors.md"),
    "numpy.load": ("penstock.TensorFolder with suffix='.npy'", "docs/tensors.md"),
    "PIL.Image": ("penstock.Images or ImageFolder", "docs/images.md"),
    "soundfile": ("penstock.AudioFolder", "docs/audio.md"),
    "torchaudio": ("penstock.AudioFolder", "docs/audio.md"),
    "torchvision.io": ("penstock.Images or ImageFolder", "docs/images.md"),
    "torchcodec.decoders": ("penstock.Images or ImageFolder, without Exif's orientation", "docs/images.md"),
}


@dataclass(frozen=True)
class Explained:
    """A loader now, to be explained. Nothing of it is changed."""

    settings: Settings
    plan: Plan
    executors: PassFactory
    device: tuple[str, ...]
    """What is done on the device, a line each."""
    sends: bool
    """Batches go to an accelerator."""

    def text(self, stats: Stats) -> str:
        """Return the explanation. stats: of the loader so far."""
        chosen = self.plan
        if not isinstance(chosen, PythonPlan):
            lines = self._native(chosen, stats)
        elif gathers_indexed(self.settings, learns=True) and self.executors.register is None:
            lines = self._gathered(stats, self._indexed())
        elif gathers_collated(self.settings) and self.executors.register is None:
            lines = self._gathered(stats, [_collated(self.settings)])
        else:
            lines = self._python(chosen, stats)
        return shown_lines("\n".join(lines))

    def _gathered(self, stats: Stats, how: Iterable[str]) -> Iterator[str]:
        """Yield how the batches of a dataset are gathered in the caller's thread. how: what is said of the dataset."""
        settings = self.settings
        size = "batches by batch_sampler" if settings.batch_size is None else f"batches of {settings.batch_size}"
        idle = f"; num_workers={settings.num_workers} starts no process" if settings.num_workers else ""
        yield f"plan     the caller's thread fills {size}, in order{idle}"
        yield f"order    {self._order_name()}{self._share_name()}"
        yield from how
        yield from self._bad_samples_and_device()
        yield from self._measured(stats)

    def _indexed(self) -> Iterator[str]:
        settings = self.settings
        for kind in dict.fromkeys(type(part.dataset).__name__ for part in source_of(settings.dataset).parts(_ALIKE)):
            yield (
                f"native   gather, as {kind}.__getitem__ indexes: its first batch and one sample in "
                f"{indexed.CHECKED:,} are made by the class, too"
            )
        if settings.num_workers == 0 and settings.seed is None:
            yield f"Python   the first {indexed.LEARNING} samples of a dataset: to read a class takes as long"

    def _python(self, plan: PythonPlan, stats: Stats) -> Iterator[str]:
        threads = self.executors.in_threads(self.settings, plan)
        yield f"plan     {_readers(self.settings, in_threads=threads)}"
        if " within a window of " in (order := self._order_name()):
            yield f"order    {order}{self._share_name()}"
        yield from self._fillers()
        if plan.filled is not None:
            for step in (step for leaf in plan.filled.leaves for step in leaf.steps):
                what = step.what if step.who == "native" else "label   target_transform, on each label"
                yield f"{step.who:<8} {what}"
            yield f"native   each batch in one piece{_given_on(self.settings, unseen=plan.unseen)}"
        what, why = plan.reason.what, plan.reason.why
        if what == type(self.settings.dataset).__name__:
            why = indexed.refusal_of(self.settings.dataset) or why
        collates = self.executors.register is None and rows_of(self.settings) is not None
        if collates:
            yield _collated(self.settings)
            what, why = type(self.settings.collate_fn).__name__, "workers draw for it, or make its large batches"
        yield f"because  {what}: {why}"
        if self.executors.caches is not None and not self._fillers():
            described = self.executors.caches.describe() if plan.filled else None
            yield f"cache    {described or 'nothing is kept: Python reads the files'}"
        yield from self._of_python(plan, threads=bool(self.settings.num_workers) and threads)
        yield from self._bad_samples_and_device()
        yield from self._measured(stats)
        if not collates:
            yield from self._remedy(plan, stats)

    def _native(self, plan: NativePlan, stats: Stats) -> Iterator[str]:
        settings = self.settings
        rows = self.executors.gathers(settings)
        threads = 0 if rows else settings.num_workers
        who = counted(threads, "native thread") if threads else "the caller's thread"
        if self._fillers():
            who = f"{counted(settings.num_workers, 'filler')} of a Ray cluster"
        fill = "fill" if threads > 1 else "fills"
        size = "batches by batch_sampler" if settings.batch_size is None else f"batches of {settings.batch_size}"
        yield f"plan     {who} {fill} {size} in place, in order"
        yield from self._fillers()
        yield f"order    {self._order_name()}{self._share_name()}"
        for number, leaf in enumerate(plan.leaves):
            if len(plan.leaves) > 1:
                yield f"part {number + 1} of {len(plan.leaves)}"
            for step in leaf.steps:
                yield f"{step.who:<8} {step.what}"
        pinned = can_pin(settings, sends=self.sends)
        memory = "page-locked, from torch's host allocator" if pinned else "pageable, reused after you drop the batch"
        memory = "new for each batch, of the rows that torch gathers" if rows else memory
        yield f"buffers  {memory}"
        if (caches := self.executors.caches) is not None and not self._fillers():
            files = any(leaf.files is not None for leaf in plan.leaves)
            yield f"cache    {caches.describe() if files else 'nothing is kept: the dataset has no files'}"
            for line in describe_decoded(plan.leaves, caches):
                yield f"cache    {line}"
        for known in describe_indexes(plan.leaves, self.executors.indexes):
            yield f"index    {known}"
        yield from self._measured(stats)
        for reason, count in sorted(stats.read_by_python.items(), key=lambda item: -item[1]):
            yield f"Python   {counted(count, 'sample')} read by Pillow, torch.load or numpy: {reason}"
        if any(recipe.drawing for leaf in plan.leaves if leaf.images for recipe in leaf.images.recipes):
            key = "seed" if settings.seed is not None else "a seed drawn for the pass"
            yield f"random   the transforms' draws are functions of ({key}, epoch, sample, position)"
        yield from self._bad_samples_and_device()

    def _measured(self, stats: Stats) -> Iterator[str]:
        """Yield what the passes so far have shown."""
        if stats.samples:
            done = f"{counted(stats.samples, 'sample')} in {counted(stats.batches, 'batch', 'batches')}"
            yield f"so far   {done}; your loop waited {stats.wait_seconds:.2f} s for them"
        if stats.verdict:
            yield f"verdict  {stats.verdict}"
        if stats.reading.deepest:
            yield (
                f"reading  up to {counted(stats.reading.deepest, 'reader thread')}, because reads block: "
                f"{counted(stats.reading.ahead + stats.reading.awaited, 'sample')} read ahead of the workers"
            )
        yield from _calls(stats)

    def _fillers(self) -> list[str]:
        """Return where the fillers of a Ray cluster are; nothing where none are asked for."""
        settings = self.settings
        if settings.cluster is None or not settings.num_workers:
            return []
        return self.executors.fillers.lines(settings.cluster, settings.num_workers)

    def _of_python(self, plan: PythonPlan, *, threads: bool) -> Iterator[str]:
        settings, executors = self.settings, self.executors
        if settings.method is Method.AUTO:
            yield f"chosen   {executors.choice(settings, plan).why}"
        composes = settings.method is not Method.PROCESS and plan.filled is None
        if composes and (places := _composes_in(settings.dataset)):
            yield (
                f"native   the known transforms of the Compose at {and_join(places)}, when the dataset calls it on a "
                "PIL image: same pixels, same random draws"
            )
        if threads:
            yield describe_copies(
                executors.worker(settings, plan), settings.worker_init_fn, shared=settings.share_dataset
            )
        seeded = settings.seed is not None and not settings.iterable
        if seeded:
            yield (
                "random   torchvision's RandomResizedCrop, RandomCrop and flips are functions of (seed, epoch, sample, "
                "position), in your own code too"
            )
        if threads and (draws := executors.global_draws(settings, plan)):
            yield (
                f"random   the dataset draws from the global generators of {and_join(draws)}: in threads the draws "
                "depend on timing. torch.random.thread_safe_generator() or get_worker_info().rng draw by sample; so do "
                "worker processes with seed="
            )
        elif seeded and not threads:
            yield "random   the global generators are functions of (seed, epoch, sample, position), set for each sample"
        if seeded and (held := missed(settings.dataset, shared=threads and settings.share_dataset)):
            yield f"random   seed= does not reach {', '.join(held)}, which the dataset keeps"

    def _remedy(self, refused: PythonPlan, stats: Stats) -> Iterator[str]:
        """Yield what would make the plan native, of the arguments and the dataset; else what may make it faster."""
        settings, reasons = self.settings, [refused.reason]
        if refused.filled is not None:  # the native core reads it
            return
        by_itself = plan(settings.dataset, batched=True, collate_fn=None, worker_init_fn=None)
        if isinstance(by_itself, PythonPlan) and by_itself.reason != refused.reason:
            reasons.append(by_itself.reason)
        called = [function for function in _SOURCES if any(one.startswith(function) for one in stats.calls)]
        own = refused.reason.what == "collate_fn" and len(reasons) > 1  # made for what the dataset gives
        if not own and all(reason.remedy for reason in reasons):
            yield f"advice   with {', and '.join(reason.remedy for reason in reasons)}, the native core could read it"
        elif len(called) == 1 and _reads_once(settings.dataset):
            source, page = _SOURCES[called[0]]
            what = f"{reasons[-1].what} calls {called[0]}: where a file is a sample"
            yield f"advice   {what}, the native core reads it by {source} ({page})"
        elif stats.measured is None:  # else the verdict says what would help
            pipe = isinstance(settings.dataset, IterDataPipe | MapDataPipe)
            auto = "" if settings.method is not None or settings.iterable or pipe else " or worker_method='auto'"
            yield f"advice   Python reads it: more workers (num_workers=){auto} may be faster (docs/workers.md)"

    def _bad_samples_and_device(self) -> Iterator[str]:
        if self.executors.register is not None:
            yield self.executors.register.explain()
        yield from self.device

    # --- the order --------------------------------------------------------------------------------------------------

    def _order_name(self) -> str:
        settings = self.settings
        if not BatchOrder(settings).cuts_itself():
            name = type(settings.sampler if settings.batch_size is not None else settings.batch_sampler).__name__
            when = "" if reads_ahead(settings) else ", one batch at a time; num_workers= reads ahead"
            return f"by {name}{when}"
        if isinstance(settings.sampler, KeyedSampler):
            return f"by {type(settings.sampler).__name__}, any position at once"
        if type(settings.sampler) is SequentialSampler:
            return "in sequence"
        blocks = BatchOrder(settings).blocks()
        within = "" if blocks is None or blocks.full else f" within a window of {counted(blocks.window, blocks.noun)}"
        if settings.seed is not None:
            return f"shuffled by (seed {settings.seed}, epoch){within}, any position at once"
        if within:
            return f"shuffled{within} by a seed that torch's generator gives, any position at once"
        return "shuffled in the order that torch's loader would use"

    def _share_name(self) -> str:
        share = BatchOrder(self.settings).share()
        if share is None or share.world == 1:
            return ""
        drop = "the last ones dropped" if self.settings.drop_last else "the last one padded to equal parts"
        return f"; rank {share.rank} of {share.world} gets its part of each global batch, {drop}"


def _collated(settings: Settings) -> str:
    """Return how the batches of a known collator are made."""
    name = getattr(settings.collate_fn, "__name__", type(settings.collate_fn).__name__)
    return f"native   gather, collated as {name} does: the first batch is made by the collator, too, and compared"


def _given_on(settings: Settings, *, unseen: bool) -> str:
    """Return to whom a batch that is filled natively goes."""
    if settings.collate_fn is default_collate:
        return ""
    if not unseen:
        return ", whose samples collate_fn gets"
    return ", which default_collate returns inside collate_fn"


def _calls(stats: Stats) -> Iterator[str]:
    """Yield, for each function that the dataset's own code called, who did the calls, and why."""
    for function, counts in sorted(stats.calls.items()):
        refused = sorted(counts.refused.items(), key=lambda item: -item[1].calls)
        owner = f"{_owner(function)} own"
        said = [f"{one.calls:,} {owner} ({_quoted(one.example)}{reason})" for reason, one in refused]
        yield f"calls    {function}: {'; '.join([f'{counts.answered:,} answered natively', *said])}"


def _owner(function: str) -> str:
    package = re.split(r"[. ]", function)[0]
    return {"PIL": "Pillow", "cv2": "OpenCV"}.get(package, package) + "'s"


def _quoted(example: str) -> str:
    return f'"{example}": ' if example else ""


def _readers(settings: Settings, *, in_threads: bool) -> str:
    if not settings.num_workers:
        how = ", each sample into its row" if in_threads else ""
        return f"Python reads the dataset in the caller's thread{how}"
    if settings.cluster is not None:
        return f"Python reads the dataset in {counted(settings.num_workers, 'filler')} of a Ray cluster"
    if in_threads:
        threads = counted(settings.num_workers, "thread")
        return f"Python reads the dataset in {threads} of this process, each sample into its row"
    processes = counted(settings.num_workers, "worker process", "worker processes")
    return f"Python reads the dataset in {processes}"


def _reads_once(dataset: Any) -> bool:
    """Return whether the source text of a dataset's __getitem__ calls no function that reads a file twice."""
    text = ""
    with contextlib.suppress(Exception):  # there is none
        text = inspect.getsource(type(next(source_of(dataset).parts(1)).dataset).__getitem__)
    reads = re.findall(r"\.(\w*(?:open|read|load)\w*)\(", text)
    return len(reads) == len(set(reads))


def _composes_in(dataset: Any) -> tuple[str, ...]:
    """Return the attributes that are a Compose, such as ".transform", of a dataset, or of those that it is made of."""
    kinds = tuple(classes("Compose"))
    held = (getattr(part.dataset, "__dict__", {}) for part in source_of(dataset).parts(_ALIKE))
    return tuple(dict.fromkeys(f".{name}" for one in held for name, value in one.items() if isinstance(value, kinds)))

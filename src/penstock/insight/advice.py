"""What tutorials advise against a loop that waits, and whether it would help here, by the model of the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loop_model import Cause, Measured
from penstock.verdict import WORTH, best_workers, larger_batches, time_text


@dataclass(frozen=True)
class Advice:
    """A piece of advice, and what it would give here."""

    name: str
    gain: float | None
    """How many times as fast the loop would be, by the model; None: it does not apply here."""
    why: str

    @property
    def helps(self) -> bool:
        """Whether it would make the loop faster by more than can be passed over."""
        return self.gain is not None and self.gain >= WORTH


def advice(found: Measured, *, accelerator: bool) -> list[Advice]:
    """Return what each piece of advice would give here, in the order in which tutorials come to it.

    Args:
        found: of the loop.
        accelerator: there is one that batches could go to.
    """
    workers = best_workers(found)
    nowhere = "there is no accelerator"
    return [
        _without("a faster disk, or a RAM disk", found, Cause.READ),
        _without("fewer transforms", found, Cause.TRANSFORM),
        Advice(
            "more workers",
            found.gain(workers=workers, kind=found.advised_kind),
            f"num_workers={workers} is the best of the model's, on {found.cpus:.3g} CPUs",
        ),
        Advice(
            "a larger batch",
            larger_batches(found),
            f"a batch costs {time_text(found.overhead)} beside the work on its {found.batch_size:.3g} samples",
        ),
        Advice(
            "pin_memory and non_blocking copies",
            None,
            "batches stay on the host" if accelerator else nowhere,
        )
        if not found.device_idle
        else Advice("pin_memory and non_blocking copies", 1.0, "device= copies so already"),
        _without("preprocessing on the GPU", found, Cause.DECODE, Cause.TRANSFORM)
        if accelerator
        else Advice("preprocessing on the GPU", None, nowhere),
    ]


def _without(name: str, found: Measured, *causes: Cause) -> Advice:
    """Return what it would give if some of the workers' time fell away."""
    busy = {cause: seconds for cause, seconds in found.busy.items() if cause not in causes}
    cpu = {cause: seconds for cause, seconds in found.cpu.items() if cause not in causes}
    spent = found.total_busy - sum(busy.values())
    words = " and ".join(causes)
    why = f"{words} takes workers {time_text(spent)} of the {time_text(found.total_busy)} that they spend a step"
    return Advice(name, found.gain(busy=busy, cpu=cpu), why)

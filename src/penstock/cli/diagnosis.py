"""What ``penstock doctor DATASET`` says of a measured loop: its parts, the findings, and what tutorials advise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from penstock.insight.advice import advice
from penstock.insight.check import State
from penstock.insight.diagnosis import Diagnosis
from penstock.loop_model import Cause
from penstock.system.words import size_of
from penstock.verdict import WORTH, time_text

#: A row of a table: the state, a name, and paragraphs.
Row = tuple[State, str, list[str]]


def part_rows(found: Diagnosis) -> list[Row]:
    """Return a row for the loader alone, the step alone, the loop, and each stage."""
    rows: list[Row] = [(State.OK, "loader alone", [f"{found.alone:,.0f} samples/s"])]
    if found.step is not None:
        rows.append((State.OK, "step alone", [f"{time_text(found.step)} a batch, the same one each time"]))
        rows.append((State.OK, "loop", [f"{found.together:,.0f} samples/s"]))
    for name, stage in sorted(found.stages.items(), key=lambda item: -item[1].seconds):
        each = stage.seconds / max(1, stage.samples)
        words = f"{time_text(each)} a sample, {stage.cpu_seconds / max(stage.seconds, 1e-9):.0%} of it on a CPU"
        if stage.bytes:
            words += f"; {size_of(int(stage.bytes / max(stage.seconds, 1e-9)))}/s for a worker"
        rows.append((State.OK, f"stage {name}", [words]))
    return rows


def finding_rows(found: Diagnosis) -> Iterator[Row]:
    """Yield a row for each finding, the one that would help most first."""
    gains = {trial.finding: trial.gain for trial in found.trials}
    for finding in found.findings:
        paragraphs = [finding.evidence]
        if finding.change:
            measured = f"; measured: {gains[finding]:.2f}x" if finding in gains else ""
            paragraphs.append(f"-> {finding.change}: about {finding.gain:.2f}x predicted{measured}")
        elif finding.cause is Cause.COMPUTE:
            paragraphs.append("-> a faster step: no loader makes this loop faster")
        yield State.OK if finding.gain < WORTH else State.LOOK, str(finding.cause), paragraphs


def advice_rows(found: Diagnosis) -> Iterator[Row]:
    """Yield a row for each piece of advice of tutorials."""
    for one in advice(found.measured, accelerator=torch.accelerator.is_available()):
        if one.gain is None:
            said = f"does not apply: {one.why}"
        elif one.helps:
            said = f"would help, about {one.gain:.2f}x: {one.why}"
        else:
            said = f"would not help: {one.why}"
        yield State.LOOK if one.helps else State.OK, one.name, [said]


def as_dict(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as values that JSON has."""
    gains = {trial.finding: trial.gain for trial in found.trials}
    return {
        "verdict": found.verdict,
        "loader_samples_per_second": found.alone,
        "step_seconds": found.step,
        "loop_samples_per_second": found.together,
        "stages": {name: stage._asdict() for name, stage in found.stages.items()},
        "findings": [
            {
                "cause": str(finding.cause),
                "evidence": finding.evidence,
                "change": finding.change,
                "predicted_gain": finding.gain,
                "measured_gain": gains.get(finding),
                "options": dict(finding.options),
            }
            for finding in found.findings
        ],
        "advice": [asdict(one) for one in advice(found.measured, accelerator=torch.accelerator.is_available())],
    }

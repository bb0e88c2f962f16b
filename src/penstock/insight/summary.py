"""A recorded loader in one plain sentence."""

from __future__ import annotations

from collections.abc import Callable

from penstock.insight.batch_rows import column
from penstock.insight.recording import LoaderRecording
from penstock.system.words import compact, counted

#: Returns what a report says of a loader in one sentence.
Verdict = Callable[[LoaderRecording], str]

#: Stages that the sentence names, at the most.
_MOST_STAGES = 3


def plain_verdict(recorded: LoaderRecording) -> str:
    """Return how long the loop waited, and in which stages the workers spent most of their time."""
    if recorded.stats is not None and recorded.stats.verdict:
        return recorded.stats.verdict
    table = recorded.rows.table()
    if not len(table):
        return "No batch was handed out."
    first = column(table, "first_waited").sum()
    waited, worked = column(table, "waited").sum() - first, column(table, "worked").sum()
    batches = int(column(table, "batches").sum())
    steps = max(batches - recorded.passes, 1)
    share = waited / (waited + worked) if waited + worked > 0 else 0.0
    said = f"The loop waited {share:.0%} of the time ({compact(waited / steps * 1e3)} ms a step)"
    said += f" for {counted(batches, 'batch', 'batches')}"
    if first > 0.05 * (first + waited + worked):
        said += f", and {compact(first)} s for the first batch of each pass, in which workers start"
    if stages := _stages(recorded):
        said += f"; of the workers' time {stages}"
    return f"{said}."


def _stages(recorded: LoaderRecording) -> str:
    found = stage_seconds(recorded)
    total = sum(seconds for seconds, _ in found.values())
    if total <= 0:
        return ""
    most = sorted(found.items(), key=lambda item: -item[1][0])[:_MOST_STAGES]
    return ", ".join(f"{name} took {seconds / total:.0%}" for name, (seconds, _) in most)


def stage_seconds(recorded: LoaderRecording) -> dict[str, tuple[float, int]]:
    """Return the seconds and samples of each stage while the loader was recorded."""
    if not recorded.readings:
        return {}
    before, after = recorded.readings[0].stages, recorded.readings[-1].stages
    found = {}
    for name, time in after.items():
        old = before.get(name)
        seconds, samples = time.seconds, time.samples
        if old is not None:
            seconds, samples = seconds - old.seconds, samples - old.samples
        if samples > 0:
            found[name] = (max(0.0, seconds), samples)
    return found

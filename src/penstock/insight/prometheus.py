"""Metrics for Prometheus: its text format, and a file of it for node_exporter's textfile collector. No port is opened.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format, version 0.0.4.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping

from penstock.errors import InvalidOption
from penstock.system.output_files import write_whole

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def text_format(metrics: Mapping[str, float], labels: Mapping[str, str] | None = None) -> str:
    """Return metrics in the text format of Prometheus: "penstock/stage/read/seconds" is penstock_stage_read_seconds.

    Args:
        metrics: of `Stats.metrics()`, or any numbers by name.
        labels: given to each of them, such as {"rank": "0"}.

    Raises:
        InvalidOption: the name of a label is not one of letters, digits and _; or two metrics get one name.
    """
    for name in labels or {}:
        if not _LABEL.fullmatch(name):
            raise InvalidOption(
                f"{name!r} is no name of a label: it is letters, digits and _, and begins with no digit"
            )
    given = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in (labels or {}).items())
    lines: dict[str, str] = {}
    for key, value in metrics.items():
        name = re.sub(r"[^a-zA-Z0-9_:]|^(?=\d)|^$", "_", key)
        if name in lines:
            raise InvalidOption(f"two metrics have the name {name!r} in Prometheus; {key!r} is one of them")
        lines[name] = f"# TYPE {name} untyped\n{name}{f'{{{given}}}' if given else ''} {_number(float(value))}\n"
    return "".join(lines.values())


def write_textfile(
    path: str | os.PathLike[str], metrics: Mapping[str, float], labels: Mapping[str, str] | None = None
) -> None:
    """Write metrics to a file for the textfile collector, which reads files by names that end in .prom.

    The file is replaced as a whole: a reader sees either the metrics of before or these.
    Raises InvalidOption as `text_format`, and OSError.
    """
    write_whole(path, text_format(metrics, labels).encode())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"

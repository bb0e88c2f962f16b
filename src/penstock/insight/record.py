"""Recordings of a block of code, written as a trace and a report when the block ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import InvalidOption
from penstock.insight.files import OutputFile
from penstock.insight.publishing import program_name
from penstock.insight.recording import LoaderRecord, Recording
from penstock.showing import shown

_log = logging.getLogger("penstock")


@contextmanager
def record(
    trace: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    *,
    verdict: Callable[[LoaderRecord], str] | None = None,
) -> Iterator[Recording]:
    """Record the loaders of this process while a block of code runs: a context manager, which gives the Recording.

    Passes that begin in the block are recorded; no sample, ID or file name is. The files are written when the block
    ends, also by an exception or Ctrl-C; one that cannot be written then is logged, and nothing is raised.

    Args:
        trace: a file for ui.perfetto.dev; gzip compresses it where its name ends in .gz.
        report: a file for one HTML page. In both "{rank}" is the RANK of torchrun, or 0.
        verdict: returns the sentence that the report begins with for each loader; None: a plain one.

    Raises:
        InvalidOption: a file that cannot be written, or the same one for both.
    """
    # When they are asked for: `import penstock` does not load them.
    from penstock.insight import report as reports  # noqa: PLC0415
    from penstock.insight import trace as traces  # noqa: PLC0415

    trace_file = None if trace is None else OutputFile(trace, "trace")
    report_file = None if report is None else OutputFile(report, "report")
    if trace_file is not None and report_file is not None and trace_file.path == report_file.path:
        raise InvalidOption(f"trace and report are the same file, {trace_file.path}: give each its own")
    recording = Recording()
    recording.begin()
    try:
        yield recording
    finally:
        recording.end()
        if recording.pid == os.getpid():  # not in a child that was forked off in the block
            facts = {"program": program_name(), "host": os.uname().nodename, "process": str(recording.pid)}
            if trace_file is not None:
                with _logged(trace_file):
                    traces.write_trace(recording, trace_file, facts)
            if report_file is not None:
                with _logged(report_file):
                    reports.write_report(recording, report_file, facts, verdict or reports.plain_verdict)


@contextmanager
def _logged(file: OutputFile) -> Iterator[None]:
    """Log what writing a file raises: the run is over, and its own result counts."""
    try:
        yield
    except Exception as error:
        _log.error("%s could not be written: %s", shown(file.path), shown(str(error)))

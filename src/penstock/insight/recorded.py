"""A block of code whose loops over loaders are recorded, and the trace and the report that are written when it ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.insight.live_files import program_name
from penstock.insight.recording import Recording
from penstock.insight.report import write_report
from penstock.insight.trace import write_trace
from penstock.showing import shown
from penstock.system.output_files import OutputFile, output_files

_log = logging.getLogger("penstock")


@contextmanager
def record(
    trace: str | os.PathLike[str] | None = None, report: str | os.PathLike[str] | None = None
) -> Iterator[Recording]:
    """Record the loops over DataLoaders, torch's and Penstock's, while a block of code runs: a context manager.

    Passes that begin in the block are recorded; no sample, ID or file name is. The files are written when the block
    ends, also by an exception or Ctrl-C; one that cannot be written then is logged, and nothing is raised.

    Args:
        trace: a file for ui.perfetto.dev; gzip compresses it where its name ends in .gz.
        report: a file for one HTML page. In both "{rank}" is the RANK of torchrun, or 0.

    Raises:
        InvalidOption: a file that cannot be written, or the same one for both.
    """
    with recorded(Recording(), output_files(trace=trace, report=report)) as recording:
        yield recording


@contextmanager
def recorded(recording: Recording, files: Mapping[str, OutputFile]) -> Iterator[Recording]:
    """Record by a given recording, and write its "trace" and "report" at the end: see `record`."""
    writers = {"trace": write_trace, "report": write_report}
    recording.begin()
    try:
        yield recording
    finally:
        recording.end()
        if recording.pid == os.getpid():  # not in a child that was forked off in the block
            facts = {"program": program_name(), "host": os.uname().nodename, "process": str(recording.pid)}
            for what in writers.keys() & files.keys():
                file = files[what]
                try:
                    writers[what](recording, file, facts)
                except Exception as error:  # the run is over, and its own result counts
                    _log.error("%s could not be written: %s", shown(file.path), shown(str(error)))

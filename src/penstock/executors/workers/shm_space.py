"""/dev/shm, where batches of worker processes lie that come torch's way: in new files of shared memory.

Where it is full a worker fails: "No space left on device". Containers often have 64 MiB of it. Batches in blocks of
SharedBuffers need none.
"""

from __future__ import annotations

import contextlib
import os

from penstock.system.words import size_of

FOLDER = "/dev/shm"
#: Batches that a loop may hold beside those in flight: the one in use, and the one before it.
HELD = 2
#: What to do where that space is too small.
REMEDY = (
    f"Give {FOLDER} more space (docker run --shm-size=..., or --ipc=host), lower num_workers=, prefetch_factor= or "
    "batch_size=, or read with worker_method='thread', which needs none."
)
#: What torch's error says where a file could not be given its size.
_FAILED = "shared memory(shm)"


def note_space(error: Exception) -> None:
    """Add a note to torch's error of a full /dev/shm: its space, and what to do."""
    if isinstance(error, RuntimeError) and _FAILED in str(error):
        with contextlib.suppress(OSError):  # there is no such folder
            found = os.statvfs(FOLDER)
            error.add_note(f"{FOLDER} has {size_of(found.f_bavail * found.f_frsize)} free. {REMEDY}")

"""The memory that this process's malloc keeps for itself."""

from __future__ import annotations

from functools import cache

import numpy as np

#: Bytes: just less than the largest block whose release malloc takes for a sign.
_BLOCK = 31 << 20


@cache
def keep_freed_memory() -> None:
    """Let malloc keep what samples and batches free for those that come next.

    glibc gives the top of its heap back to the system where more is free there than twice the largest block that was
    mapped by itself and freed (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). That was a batch, and the samples that
    it is made of are as much again: where nothing happens to lie above them, each batch would come in new pages, which
    takes as long as making it. One larger block, never written to, is freed here. Other mallocs take no notice.
    """
    np.empty(_BLOCK, dtype=np.uint8)

"""torch's thread pool in a forked process. `import penstock` loads this: a fork before the first pass is to be seen."""

from __future__ import annotations

import os

import torch

_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def ready_for_threads() -> None:
    """Call before threads are started: in a forked child torch makes its thread pool anew at its first use.

    Each thread's first operation uses it, and two at once may find none ("Invalid thread pool!").
    """
    global _forked
    if _forked:
        _forked = False
        torch.set_num_threads(torch.get_num_threads())

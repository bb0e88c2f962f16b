"""Checks of a loader for a user's own tests: each sample once, the same for any workers, exact after any stop.

assert_same_as_torch takes a dataset; each other check takes `make`, a function that returns a new DataLoader of the
user's dataset for ``num_workers=`` and ``shard=``: (rank, ranks), or None for a single rank. Ranks are played one
after the other in this process, step by step, without torch.distributed. The checks keep whole epochs in memory: give
them a small dataset. What fails is an AssertionError that says epoch, step, rank and sample.
"""

from penstock.testing.checks import assert_each_sample_once, assert_resume_exact, assert_worker_invariant
from penstock.testing.ranks import Ranks, simulate
from penstock.testing.same_as_torch import assert_same_as_torch

__all__ = [
    "Ranks",
    "assert_each_sample_once",
    "assert_resume_exact",
    "assert_same_as_torch",
    "assert_worker_invariant",
    "simulate",
]

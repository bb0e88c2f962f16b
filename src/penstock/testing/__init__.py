"""Checks of a loader for a user's own tests: each sample once, the same for any workers, exact after any stop.

Each check takes `make`, a function that returns a new penstock.DataLoader of the user's dataset. It is called with
``num_workers=`` and ``shard=``, which is (rank, ranks), or None where one rank plays alone. Ranks are played one after
the other in this process, step by step, without torch.distributed::

    from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_worker_invariant

    def make(**options):
        return penstock.DataLoader(dataset, batch_size=4, shuffle=True, seed=7, **options)

    def test_loading():
        assert_each_sample_once(make)
        assert_worker_invariant(make)
        assert_resume_exact(make, batch_sizes=(3, 4))

The checks read the dataset many times, and keep whole epochs in memory: give them a small one. What fails is an
AssertionError that says epoch, step, rank and sample.

assert_same_as_torch takes the dataset itself, and compares penstock.DataLoader with torch's::

    def test_my_dataset():
        assert_same_as_torch(MyDataset())
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

"""Looks at a dataset of the user's own for what costs time or memory, or fails, in workers; none of its code runs."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from penstock.insight.check import State
from penstock.insight.lint.functions import methods, reached, sample_functions
from penstock.insight.lint.name_rules import cuda_calls, global_random, opencv_threads
from penstock.insight.lint.objects import held_objects
from penstock.insight.lint.ownership import Ownership
from penstock.insight.lint.remark import Remark
from penstock.insight.lint.source_rules import open_images, reads_all
from penstock.insight.lint.state_rules import open_handles, python_objects

__all__ = ["Remark", "lint"]


def lint(dataset: Any) -> list[Remark]:
    """Return remarks on a dataset's state and code: what fails first, then what costs.

    The user's own classes and functions are looked at, also as transforms, in a Subset, ConcatDataset or any other
    object that the dataset holds; those of libraries are not. Nothing of the dataset's code is called.

    Args:
        dataset: a map-style or iterable dataset, or a loader of one.
    """
    root = dataset.dataset if issubclass(type(dataset), DataLoader) else dataset
    own = Ownership(root)
    held = list(held_objects(root, own))
    sampled = sample_functions(held, own)
    first = [function for one in held for function in methods(one.value, "__init__", own)]
    remarks = [
        *open_handles(held, own),
        *cuda_calls(sampled),
        *python_objects(held, own),
        *global_random(sampled),
        *opencv_threads(sampled),
        *open_images(sampled),
        *reads_all(reached(first, own)),
    ]
    unique = list(dict.fromkeys(remarks))
    return sorted(unique, key=lambda remark: remark.state is not State.BAD)

"""Looks at a dataset of the user's own for what costs time or memory, or fails, in workers; none of its code runs."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from penstock.insight.check import Remark, State
from penstock.insight.lint.code import of_code, sample_functions
from penstock.insight.lint.state import Ownership, held_objects, open_handles, python_objects

__all__ = ["Remark", "lint"]


def lint(dataset: Any) -> list[Remark]:
    """Return remarks on a dataset's state and code: what fails first, then what costs.

    The user's own classes and functions are looked at, also as transforms, in a Subset, ConcatDataset or any other
    object that the dataset holds; those of libraries are not. Nothing of the dataset's code is called. A loader stands
    for its dataset.
    """
    root = dataset.dataset if issubclass(type(dataset), DataLoader) else dataset
    own = Ownership(root)
    held = list(held_objects(root, own))
    code = of_code(sample_functions([one.value for one in held], own))
    remarks = dict.fromkeys([*open_handles(held), *python_objects(held, own), *code])
    return sorted(remarks, key=lambda remark: remark.state is not State.BAD)

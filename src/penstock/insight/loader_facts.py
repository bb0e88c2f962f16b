"""What a recording says of a loader itself: its dataset's type and its options, and nothing of a sample."""

from __future__ import annotations

from typing import Any

from penstock.loader import DataLoader

#: Characters of a value that are kept.
_LONGEST = 120
#: Arguments whose values are said; of any other object only the type.
_PLAIN = (bool, int, float, str, bytes, type(None))


def title_of(loader: DataLoader[Any]) -> str:
    """Return the name of a loader: the type of its dataset."""
    return type(loader.dataset).__name__


def options_of(loader: DataLoader[Any]) -> dict[str, str]:
    """Return the options of a loader as text: values that are numbers and texts, of other objects the type."""
    names = (
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory",
        "drop_last",
        "in_order",
    )
    options = {name: _value(getattr(loader, name, None)) for name in names}
    options["dataset"] = _type(loader.dataset)
    for name in ("sampler", "batch_sampler", "collate_fn"):
        options[name] = _type(getattr(loader, name, None))
    options |= {name: _value(value) for name, value in loader.own_options().items()}
    return options


def _value(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) <= 4:
        return f"({', '.join(map(_value, value))})"[:_LONGEST]
    text = repr(value) if isinstance(value, _PLAIN) else _type(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _type(value: Any) -> str:
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return (name if isinstance(name, str) else type(value).__name__)[:_LONGEST]

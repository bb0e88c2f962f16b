"""Modules that are imported when they are first needed: what a program does not use it does not load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def deferred(package: str, *names: str) -> list[Any]:
    """Return placeholders of modules of a package; each is imported when one of its attributes is first read.

    if TYPE_CHECKING:
        from penstock.carriers import native, threads
    else:
        native, threads = deferred("penstock.carriers", "native", "threads")
    """
    return [_Deferred(f"{package}.{name}") for name in names]


class _Deferred:
    _module: Any

    def __init__(self, name: str) -> None:
        self._name, self._module = name, None

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what tools look for in any object
            raise AttributeError(attribute)
        if self._module is None:
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)


def attributes_of(
    package: str, modules: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562), which imports what is read of it for the first time.

    Args:
        modules: the names that each of its modules gives to it.
        submodules: modules that are attributes themselves.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get

"""Exchanges the code of another package's function, so that all who hold the function call something else."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def exchange_code(
    function: types.FunctionType,
    make: Callable[[types.FunctionType], Callable[..., Any]],
    form: types.CodeType | None = None,
) -> None:
    """Have a function call what `make` makes of its original. The function stays the same object, which can be pickled.

    Args:
        function: of Python's, without variables of an enclosing function.
        make: returns what is called, given a function that does what `function` did.
        form: the code that `function` gets: a call of the global name `_instead`, with parameters of its own; None: any
            parameters, which are passed on.
    """
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__
    name = f"_penstock_{function.__qualname__.replace('.', '_')}"
    function.__globals__[name] = make(original)
    form = _of_any.__code__ if form is None else form
    code = form.replace(
        co_names=tuple(name if one == "_instead" else one for one in form.co_names),
        co_name=function.__name__,
        co_qualname=function.__qualname__,
    )
    function.__wrapped__ = original  # type: ignore[attr-defined]  # where inspect, and so torch.jit, find the source
    function.__code__ = code


def _of_any(*arguments, **named):  # type: ignore[no-untyped-def]
    return _instead(*arguments, **named)  # type: ignore[name-defined]  # noqa: F821

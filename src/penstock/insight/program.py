"""A user's program, run in this process as ``python SCRIPT`` and ``python -m MODULE`` run it."""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any


class NoSuchProgram(Exception):
    """What is to be run is not a program; the text says why. The command line prints it."""


@dataclass(frozen=True)
class Program:
    """What is run, and the arguments that it gets."""

    target: str
    """The path of a script, of a folder or zip file with a __main__.py, or the name of a module."""
    arguments: Sequence[str]
    is_module: bool

    @property
    def words(self) -> list[str]:
        """The words of a command line that say the same."""
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]


def run(program: Program) -> None:
    """Run a program as __main__, with the sys.argv and sys.path that Python gives it.

    sys.modules["__main__"] stays the program's when it has ended: threads, exit handlers and pickles refer to it.

    Raises:
        NoSuchProgram: there is no such script or module.
        BaseException: what the program raises. Where that reaches Python's own handler, sys.excepthook, the traceback
            is the one that the program has without Penstock.
    """
    module = ModuleType("__main__")
    try:
        code, attributes = _module(program) if program.is_module else _script(program)
        # As of Python's own __main__: the module of built-in names, not its dictionary.
        vars(module).update(__builtins__=builtins, __annotations__={}, **attributes)
        # The second name is that of objects that come from spawned processes; multiprocessing was imported before.
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        exec(code, vars(module))
    except (NoSuchProgram, SystemExit):
        raise
    except BaseException:
        _show_without(sys._getframe())
        raise


def _script(program: Program) -> tuple[CodeType, dict[str, Any]]:
    """Return the code of a script, and the attributes of its module. Raises NoSuchProgram, SyntaxError."""
    path = program.target
    sys.argv = [path, *program.arguments]
    absolute = os.path.join(os.getcwd(), path)
    if path and (finder := pkgutil.get_importer(absolute)) is not None:
        _set_first_path(absolute, always=True)
        spec = finder.find_spec("__main__")
        if spec is None:
            raise NoSuchProgram(f"there is no __main__.py in {path!r}")
        return spec.loader.get_code("__main__"), _attributes(spec)  # type: ignore[union-attr]
    try:
        with io.open_code(absolute) as file:
            source = file.read()
    except OSError as error:
        raise NoSuchProgram(f"{path!r} cannot be read: {error.strerror}") from None
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    attributes = {"__file__": absolute, "__cached__": None, "__loader__": SourceFileLoader("__main__", absolute)}
    return compile(source, absolute, "exec", dont_inherit=True), attributes


def _set_first_path(folder: str, *, always: bool = False) -> None:
    """Set the first folder of sys.path, which is that of the command `penstock` until now.

    always: under ``python -P`` too, where no folder has been put before the others.
    """
    if not getattr(sys.flags, "safe_path", False) and sys.path:
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _module(program: Program) -> tuple[CodeType, dict[str, Any]]:
    """Return the code of a module and its attributes. Raises NoSuchProgram, and what the packages above it raise."""
    sys.argv = ["-m", *program.arguments]  # as long as the module is looked for
    _set_first_path(os.getcwd())
    find: Any = vars(runpy)["_get_module_details"]  # by which `python -m` finds it
    _, spec, code = find(program.target, NoSuchProgram)
    sys.argv[0] = str(spec.origin)
    return code, _attributes(spec)


def _attributes(spec: ModuleSpec) -> dict[str, Any]:
    return {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


def _show_without(frame: FrameType) -> None:
    """Let sys.excepthook, the program's own too, see tracebacks that begin below the frames of ours."""
    original = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        below = trace
        while below is not None and below.tb_frame is not frame:
            below = below.tb_next
        while below is not None and below.tb_frame.f_code.co_filename == __file__:
            below = below.tb_next
        error.__traceback__ = sys.last_traceback = below
        original(kind, error, below)

    sys.excepthook = show

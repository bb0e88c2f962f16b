"""A user's program, run in this process as ``python SCRIPT`` and ``python -m MODULE`` run it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

_INSIGHT = os.path.dirname(os.path.abspath(__file__)) + os.sep


class NoSuchProgram(Exception):
    """What is to be run is no program; the text says why. The command line prints it."""


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


# --- scripts ------------------------------------------------------------------------------------------------------


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
        return _code_of(spec), _attributes(spec)
    try:
        with io.open_code(absolute) as file:
            code = pkgutil.read_code(file)  # of a .pyc file
        with io.open_code(absolute) as file:
            source = b"" if code is not None else file.read()
    except OSError as error:
        raise NoSuchProgram(f"{path!r} cannot be read: {error.strerror}") from None
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    attributes = {
        "__file__": absolute,
        "__cached__": None,
        "__loader__": importlib.machinery.SourceFileLoader("__main__", absolute),
    }
    return code or compile(source, absolute, "exec", dont_inherit=True), attributes


def _set_first_path(folder: str, *, always: bool = False) -> None:
    """Set the first folder of sys.path, which is that of the command `penstock` until now.

    always: under ``python -P`` too, where no folder has been put before the others.
    """
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


# --- modules ------------------------------------------------------------------------------------------------------


def _module(program: Program) -> tuple[CodeType, dict[str, Any]]:
    """Return the code of a module and its attributes. Raises NoSuchProgram, and what the packages above it raise."""
    sys.argv = ["-m", *program.arguments]  # as long as the module is looked for
    _set_first_path(os.getcwd())
    spec = _spec(program.target)
    if spec.submodule_search_locations is not None:
        try:
            spec = _spec(f"{program.target}.__main__")
        except NoSuchProgram:
            raise NoSuchProgram(f"{program.target!r} is a package without a __main__ module") from None
    code = _code_of(spec)
    sys.argv[0] = str(spec.origin)
    return code, _attributes(spec)


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    if not name or name.startswith("."):
        raise NoSuchProgram(f"{name!r} is no absolute name of a module")
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a package of the program lacks another module
        raise NoSuchProgram(f"there is no module {error.name!r}") from None
    except ValueError as error:  # it is loaded, and was made by no import
        raise NoSuchProgram(f"{name!r} cannot be run: {error}") from None
    if spec is None:
        raise NoSuchProgram(f"there is no module {name!r}")
    return spec


def _code_of(spec: importlib.machinery.ModuleSpec) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise NoSuchProgram(f"the module {spec.name!r} has no Python code")
    return code  # type: ignore[no-any-return]


def _attributes(spec: importlib.machinery.ModuleSpec) -> dict[str, Any]:
    return {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


# --- tracebacks ---------------------------------------------------------------------------------------------------


def _show_without(frame: FrameType) -> None:
    """Let sys.excepthook, the program's own too, see tracebacks that begin below a frame of ours."""
    original = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        below = trace
        while trace is not None:
            if trace.tb_frame is frame:
                below = trace.tb_next
            trace = trace.tb_next
        error.__traceback__ = below
        _hide_frames(error)
        sys.last_traceback = error.__traceback__
        original(kind, error, error.__traceback__)

    sys.excepthook = show


def _hide_frames(error: BaseException) -> None:
    """Take the frames of this package out of the traceback of an error, and of those that it came from."""
    found, seen = [error], set()
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        found += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_INSIGHT):
            entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept

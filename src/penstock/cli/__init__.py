"""The command line: ``penstock VERB ...``. One file a verb; each adds its parser and returns an exit code.

Exit codes: 0 done; 1 done, and what was looked at is not in order, or nobody reads the output; 2 an error, said in
one line on stderr; 130 interrupted. ``penstock run`` ends as the program that it runs.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import penstock
from penstock.cli.terminal import VERBS, add_verb, say, shown
from penstock.errors import PenstockError
from penstock.system import namesake
from penstock.system.words import near, near_path

#: What to do about an error of the system that names a file.
_WAYS = {
    errno.EEXIST: "give another name",
    errno.EISDIR: "give a file",
    errno.ENOENT: "give a path that exists",
    errno.ENOTDIR: "give a folder",
}


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with an argument, and which name is near, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {shown(message)} (see {self.prog} --help)")
        raise SystemExit(2)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments. Raises SystemExit where some are left: of the verb or action that was given them."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            vars(found).get("parser", self).refuse(rest[0])
        return found

    def refuse(self, word: str) -> NoReturn:
        """Say that an argument is one too many. Raises SystemExit."""
        if not word.startswith("-"):
            self.error(f"{word!r} is one argument too many")
        self.error(f"there is no option {word.partition('=')[0]}{near(word, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = ", ".join(action.choices)
            raise argparse.ArgumentError(action, f"{value!r} is not one of {choices}{near(str(value), action.choices)}")


def parser(chosen: Iterable[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the command line. chosen: verbs whose modules are imported; of others it knows the name."""
    top = _Parser(prog="penstock", description="Tools beside the Penstock DataLoader.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    verbs = top.add_subparsers(metavar="VERB", title="verbs")
    modules = {VERBS[verb][0] for verb in chosen}
    for verb, (module, _) in VERBS.items():
        if module not in modules:
            add_verb(verbs, verb, None)
        elif verb not in verbs.choices:  # a module may have several
            import_module(f"penstock.cli.{module}").add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. None: the arguments of this process.

    Raises SystemExit as argparse does: 0 after --help and --version, 2 after a wrong argument; and what a program
    raises that the verb `run` runs.
    """
    if "DataLoader" not in getattr(penstock, "__all__", ()):  # the folder's __init__.py is the other project's
        say(f"penstock: {namesake.SENTENCE}")
        return 2
    try:
        try:
            given = sys.argv[1:] if argv is None else argv
            verb = next((word for word in given if not word.startswith("-")), "")
            if verb in VERBS and (without := vars(penstock).get("without_native")) is not None:
                say(f"penstock: {verb} needs {without.CORE}")
                return 2
            arguments = (top := parser({verb} & VERBS.keys())).parse_args(given)
            if not {"run", "execute"} & vars(arguments).keys():
                top.error(f"give a verb: {', '.join(VERBS)}")
            if "execute" not in arguments:
                return _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except KeyboardInterrupt:
        say("penstock: interrupted")
        return 130
    except (PenstockError, OSError) as error:
        say(f"penstock: {shown(_sentence(error))}")
        _drop_output()
        return 2
    # A user's program runs here: its errors and warnings are not ours to print.
    executed: int = arguments.execute(arguments)
    return executed


def _run(arguments: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"penstock: warning: {shown(str(message))}")
        warnings.simplefilter("always", RuntimeWarning)
        code: int = arguments.run(arguments)
    return code


def _sentence(error: Exception) -> str:
    if not isinstance(error, OSError) or isinstance(error, PenstockError) or error.strerror is None:
        return str(error)
    if error.filename is None:
        return error.strerror
    path = os.fsdecode(error.filename)
    way = f"; {_WAYS[error.errno]}" if error.errno in _WAYS else ""
    return f"{path}: {error.strerror}{(error.errno == errno.ENOENT and near_path(path)) or way}"


def _drop_output() -> None:
    """Throw away what stdout does not take, so that Python's own flush at the end has nothing to complain of."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

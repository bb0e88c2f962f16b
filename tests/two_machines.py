"""Two machines that are played by namespaces of this one: each has a network and a host's name of its own.

Their networks are joined by one cable (a veth pair), which can be pulled. Processes, memory, CPUs and files are shared.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: The address of each machine.
ADDRESSES = ("10.77.0.1", "10.77.0.2")


class Machines:
    """Two machines, by their number, 0 or 1."""

    def __init__(self) -> None:
        self._roots: list[subprocess.Popen[bytes]] = []
        self._add("unshare", "--map-root-user", "--net", "--uts", "sleep", "infinity")
        self._add(*self._inside(0, net=False), "unshare", "--net", "--uts", "sleep", "infinity")
        try:
            self.run(0, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "plug", "netns", self._pid(1))
            self.run(1, "ip", "link", "set", "plug", "name", "cable")
            for number, address in enumerate(ADDRESSES):
                self.run(number, "hostname", f"machine-{number}")
                self.run(number, "ip", "address", "add", f"{address}/24", "dev", "cable")
                self.run(number, "ip", "link", "set", "lo", "up")
                self.run(number, "ip", "link", "set", "cable", "up")
            for number, other in enumerate(reversed(ADDRESSES)):  # programs ask by it which address is their own
                self.run(number, "ip", "route", "add", "default", "via", other)
        except BaseException:
            self.close()
            raise

    def _add(self, *command: str) -> None:
        """Start a process whose namespaces are a machine's; it says so by the program that it has become."""
        made = subprocess.Popen(["sh", "-c", 'exec "$@"', "sh", *command], stderr=subprocess.PIPE)
        self._roots.append(made)
        while made.poll() is None:
            with open(f"/proc/{made.pid}/cmdline", "rb") as file:
                if file.read().startswith(b"sleep\0"):
                    return
        assert made.stderr is not None
        raise OSError(made.stderr.read().decode())

    def _pid(self, number: int) -> str:
        return str(self._roots[number].pid)

    def _inside(self, number: int, *, net: bool = True) -> list[str]:
        which = ["--net", "--uts"] if net else []
        return ["nsenter", "--target", self._pid(number), "--user", "--preserve-credentials", *which]

    def command(self, number: int, *command: str) -> list[str]:
        """Return the command that runs another one on a machine."""
        return [*self._inside(number), *command]

    def run(self, number: int, *command: str) -> str:
        """Run a command on a machine, and return what it writes."""
        done = subprocess.run(self.command(number, *command), check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{command}: {done.stderr}")
        return done.stdout

    def start(self, number: int, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a machine."""
        return subprocess.Popen(self.command(number, *command), **options)

    def pull_the_cable(self) -> None:
        """Let nothing pass between the machines any more, and tell nobody so: packets are dropped behind the plug."""
        self.run(1, "ip", "link", "set", "cable", "down")

    def close(self) -> None:
        """End the machines. What runs on them is ended by who has started it."""
        for made in self._roots:
            made.kill()
            made.wait()
            assert made.stderr is not None
            made.stderr.close()


@contextmanager
def two_machines() -> Iterator[Machines]:
    """Give two machines; skip the test where namespaces are not allowed, or the programs for them are missing."""
    try:
        made = Machines()
    except OSError as error:
        pytest.skip(f"no network namespaces here: {str(error).strip()}")
    try:
        yield made
    finally:
        made.close()

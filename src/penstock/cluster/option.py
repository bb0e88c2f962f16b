"""`Ray`: the one value that says which Ray cluster works, and what of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidOption
from penstock.system.words import bytes_in

#: Batches that a filler is asked for at a time: one that it works on, one that is sent, and one to continue with.
REQUESTS = 3


@dataclass(frozen=True)
class Ray:
    """A Ray cluster that fills batches (worker_method=) or packs (engine=).

    Args:
        address: of the cluster, "HOST:PORT". None: the one that this program is connected to, else that of RAY_ADDRESS,
            else the one that runs on this machine. No cluster is started.
        cpus: Ray CPUs of each filler or packer; a filler of a native plan has the same number of threads, rounded down.
        resources: other Ray resources of each one, such as {"filler": 1}: Ray places it on nodes that have them.
        bytes_in_flight: the most bytes of batches that are requested and not handed out yet, as a number or a text;
            at least one batch is requested.
        start_timeout: seconds until a filler or packer must have started.

    Raises:
        InvalidOption: a value out of its range.
    """

    address: str | None = None
    cpus: float = 1
    resources: Mapping[str, float] | None = None
    bytes_in_flight: int | str = "512MiB"
    start_timeout: float = 60

    def __post_init__(self) -> None:
        if not _above_zero(self.cpus):
            raise InvalidOption(f"Ray(cpus={self.cpus!r}): it must be a number above 0")
        if not _above_zero(self.start_timeout):
            raise InvalidOption(f"Ray(start_timeout={self.start_timeout!r}): it must be a number of seconds above 0")
        address: Any = self.address
        if address is not None and (type(address) is not str or "://" in address):
            raise InvalidOption(
                f"Ray(address={self.address!r}): it must be 'HOST:PORT' of a cluster that this machine belongs to"
            )
        for name, amount in (self.resources or {}).items():
            if type(name) is not str or not _above_zero(amount):
                raise InvalidOption(
                    f"Ray(resources={self.resources!r}): it must be a dict from names to numbers above 0"
                )
        if self.limit < 1:
            raise InvalidOption(f"Ray(bytes_in_flight={self.bytes_in_flight!r}): it must be 1 byte or more")

    @property
    def limit(self) -> int:
        """Return bytes_in_flight as a number. Raises InvalidOption."""
        try:
            return bytes_in(self.bytes_in_flight)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidOption(f"Ray(bytes_in_flight={self.bytes_in_flight!r}): {error}") from None

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))

    def placement(self) -> dict[str, Any]:
        """Return what Ray is asked for, for each filler or packer, as keyword arguments of options()."""
        return {
            "num_cpus": self.cpus,
            "resources": dict(self.resources or {}),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }

    def demand(self) -> str:
        """Return the same in words: "CPU 1, filler 1"."""
        return ", ".join(f"{name} {amount:g}" for name, amount in {"CPU": self.cpus, **(self.resources or {})}.items())


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def ray_of(value: object) -> Ray | None:
    """Return the cluster that worker_method= or engine= names; None: it names none."""
    if isinstance(value, Ray):
        return value
    return Ray() if value == "ray" else None

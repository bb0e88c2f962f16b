"""Few pages for what a process holds: each fork copies an entry for every page, and its end removes them."""

from __future__ import annotations

import ctypes
from pathlib import Path

_HUGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; an older kernel refuses it, and the pages stay small
_GROWN_KIB = 64 << 10
_kib = 0


def _held_kib() -> int:
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])


def tidy() -> None:
    """Give back what the allocator holds free, and move the rest into huge pages, if there is more than last time."""
    global _kib
    if _held_kib() < _kib + _GROWN_KIB:
        return
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if access == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            for address in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _COLLAPSE)
    _kib = _held_kib()

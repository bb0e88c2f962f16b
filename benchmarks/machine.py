"""The machine and the software that results belong to; nothing that names its owner."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

PACKAGES = ("penstock-loader", "torch", "torchvision", "numpy", "pillow")


def describe() -> dict[str, Any]:
    """CPU, cores, memory, kernel, Python and package versions."""
    memory = {key: int(rest.split()[0]) for key, rest in split_lines("/proc/meminfo")}
    return {
        "cpu": next((rest for key, rest in split_lines("/proc/cpuinfo") if key == "model name"), platform.processor()),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cores": os.cpu_count(),
        "memory_gb": round(memory.get("MemTotal", 0) / 1e6, 1),
        "memory_free_for_cache_gb": round(memory.get("MemAvailable", 0) / 1e6, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def split_lines(path: str) -> list[tuple[str, str]]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return []
    return [(key.strip(), rest.strip()) for key, _, rest in (line.partition(":") for line in lines) if rest.strip()]


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def disk_read_mb() -> float:
    """MB read from disks by the whole machine since it started: a difference near 0 shows a warm page cache."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("pgpgin ")), 0) / 1024

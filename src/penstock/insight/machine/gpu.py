"""Checks of GPUs: whether torch sees them, their PCIe links, copies to them, and the NUMA node that they are at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from penstock.insight.check import Check, State
from penstock.system.words import counted, size_of

PCI_DEVICES = "/sys/bus/pci/devices"
NODES = "/sys/devices/system/node"

_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI's numbers of the vendor, and of the class of display controllers
#: Bytes of one measured copy, and how many there are.
COPIED, COPIES = 64 << 20, 8
#: A copy from page-locked memory below this share of its link's rate is slow.
LINK_SHARE = 0.5
#: Gbit/s that one lane carries, by its transfer rate in GT/s: 8b/10b coding, then 128b/130b, then PAM4's FLITs.
_LANE = {2.5: 2.0, 5.0: 4.0, 8.0: 7.88, 16.0: 15.75, 32.0: 31.5, 64.0: 60.5}


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it."""

    index: int
    name: str
    memory: int
    """In bytes."""
    address: str = ""
    """On the PCI bus: "0000:3b:00.0"; empty: torch does not say."""


def read_gpus() -> list[Gpu]:
    """Return the GPUs that torch can use. The first call sets CUDA up."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.cuda.get_device_properties(index)
        numbers: list[Any] = [getattr(device, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
        address = "" if None in numbers else "{:04x}:{:02x}:{:02x}.0".format(*numbers)
        found.append(Gpu(index, device.name, device.total_memory, address))
    return found


def read_installed(devices: str = PCI_DEVICES) -> int:
    """Return how many GPUs of NVIDIA the PCI bus has."""
    found = 0
    for device in Path(devices).glob("*"):
        try:
            vendor, kind = (Path(device, name).read_text("ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return found


def check_gpus(gpus: list[Gpu], installed: int, cuda_version: str | None) -> Check:
    """Check that torch can use the machine's GPUs.

    Args:
        gpus: that torch sees.
        installed: of NVIDIA, on the PCI bus.
        cuda_version: that torch was built for; None: for none.
    """
    built = "built without CUDA" if cuda_version is None else f"built for CUDA {cuda_version}"
    if gpus:
        shown = ", ".join(f"{gpu.index}: {gpu.name} with {size_of(gpu.memory)}" for gpu in gpus)
        return Check("GPU", State.OK, f"{counted(len(gpus), 'GPU')} ({shown}); torch is {built}")
    if not installed:
        return Check("GPU", State.OK, f"none, of those that torch reaches by CUDA; torch is {built}")
    words = f"{counted(installed, 'GPU')} of NVIDIA on the PCI bus, and torch can use none; torch is {built}"
    change = "Install a torch with CUDA."
    if cuda_version is not None:
        change = (
            "Give the container its GPUs (docker run --gpus all), look whether CUDA_VISIBLE_DEVICES hides them, and "
            "whether nvidia-smi finds a driver that is new enough."
        )
    return Check("GPU", State.BAD, words, change)


# --- the link --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A PCIe link of a device, now and at most."""

    width: int
    most_width: int
    speed: float
    """In GT/s. An idle GPU lowers it."""
    most_speed: float

    @property
    def rate(self) -> float:
        """Bytes a second that the link carries at its present width and highest speed."""
        return self.width * _LANE.get(self.most_speed, self.most_speed * 0.98) * 1e9 / 8


def read_link(gpu: Gpu, devices: str = PCI_DEVICES) -> Link | None:
    """Return the PCIe link of a GPU; None: the system does not say."""
    names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    try:
        texts = [Path(devices, gpu.address, name).read_text("ascii").split()[0] for name in names]
        link = Link(int(texts[0]), int(texts[1]), float(texts[2]), float(texts[3]))
    except (OSError, ValueError, IndexError):  # "Unknown" stands in some of these files
        return None
    return link if link.width and link.most_width else None


def measure_copies(gpu: Gpu) -> Check:
    """Measure copies from page-locked memory to a GPU, by CUDA's events. Raises RuntimeError."""
    with torch.cuda.device(gpu.index):
        size = min(COPIED, gpu.memory // 16)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        device.copy_(host, non_blocking=True)
        event: Any = torch.cuda.Event
        begun, ended = event(enable_timing=True), event(enable_timing=True)
        begun.record()
        for _ in range(COPIES):
            device.copy_(host, non_blocking=True)
        ended.record()
        ended.synchronize()
        return check_copies(gpu, size * COPIES / (begun.elapsed_time(ended) / 1e3), read_link(gpu))


def check_copies(gpu: Gpu, rate: float, link: Link | None) -> Check:
    """Check the rate of copies from page-locked memory, in bytes a second, and the width of the link."""
    name, words = f"copies to GPU {gpu.index}", f"{rate / 1e9:.1f} GB/s from page-locked memory"
    if link is None:
        return Check(name, State.OK, f"{words}; the system does not say what its link carries")
    words += (
        f", {rate / link.rate:.0%} of what its link carries: x{link.width} of x{link.most_width} at {link.speed:g} "
        f"GT/s of {link.most_speed:g}"
    )
    if link.width < link.most_width:
        change = (
            "Seat the card in a slot with all lanes, and look at bifurcation and risers: copies are limited to this "
            "width. Until then send fewer bytes: uint8 images, converted on the device (docs/device.md)."
        )
        return Check(name, State.BAD if link.width * 2 < link.most_width else State.LOOK, words, change)
    if rate >= LINK_SHARE * link.rate:
        return Check(name, State.OK, words)
    change = "Run on the CPUs of the GPU's NUMA node; in a virtual machine look at the IOMMU and ACS settings."
    return Check(name, State.LOOK, words, change)


# --- the node --------------------------------------------------------------------------------------------------------


def read_node(gpu: Gpu, devices: str = PCI_DEVICES, nodes: str = NODES) -> tuple[int, set[int]] | None:
    """Return (the NUMA node of a GPU, the CPUs of that node); None: the machine has one node, or does not say."""
    try:
        node = int(Path(devices, gpu.address, "numa_node").read_text("ascii"))
        if node < 0 or len(list(Path(nodes).glob("node[0-9]*"))) < 2:
            return None
        cpus: set[int] = set()
        for part in Path(nodes, f"node{node}", "cpulist").read_text("ascii").strip().split(","):  # "0-3,8"
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return None
    return node, cpus


def check_node(gpu: Gpu, devices: str = PCI_DEVICES, nodes: str = NODES, affinity: set[int] | None = None) -> Check:
    """Check that this process may run on CPUs of a GPU's NUMA node. affinity: its CPUs; None: as the system says."""
    name, found = f"NUMA of GPU {gpu.index}", read_node(gpu, devices, nodes)
    if found is None:
        return Check(name, State.OK, "the machine has one NUMA node, or does not say which the GPU is at")
    node, cpus = found
    affinity = os.sched_getaffinity(0) if affinity is None else affinity
    near = len(cpus & affinity)
    words = f"the GPU is at node {node}; {near:,} of the {counted(len(affinity), 'CPU')} of this process are there"
    if near:
        return Check(name, State.OK, words)
    change = (
        f"numactl --cpunodebind={node} --preferred={node} before the job: each copy crosses from another node's memory."
    )
    return Check(name, State.LOOK, words, change)

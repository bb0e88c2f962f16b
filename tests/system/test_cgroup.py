"""What a process finds out of the limits of its cgroup, of both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.system import limits
from penstock.system.limits import Memory, cpu_quota, group_memory, usable_cpus


def found_by(read: Any, tmp_path: Path, membership: str, files: dict[str, str]) -> Any:
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return read(str(tmp_path / "cgroup"), str(tmp_path))


NESTED = {"cpu.max": "max 100000", "job/cpu.max": "250000 100000", "job/task/cpu.max": "max 100000"}
QUOTA, PERIOD = "cpu/x/cpu.cfs_quota_us", "cpu/x/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("membership", "limits", "cpus"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/job/task\n", NESTED, 2.5),
        ("0::/../outside\n", {"cpu.max": "400000 100000"}, 4),
        ("4:memory:/x\n3:cpu,cpuacct:/x\n", {QUOTA: "50000", PERIOD: "100000"}, 0.5),
        ("3:cpu:/x\n", {QUOTA: "-1", PERIOD: "100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_cpus(tmp_path: Path, membership: str, limits: dict[str, str], cpus: float | None) -> None:
    assert found_by(cpu_quota, tmp_path, membership, limits) == cpus
    assert cpu_quota(str(tmp_path / "nowhere"), str(tmp_path)) is None


@pytest.mark.parametrize(("quota", "cpus"), [(None, 4), (0.5, 1), (2.5, 3), (40.0, 4)])
def test_a_quota_is_rounded_up(monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int) -> None:
    monkeypatch.setattr(limits, "host_cpus", lambda: 4)
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    monkeypatch.setattr(limits, "_QUOTA_SECONDS", 1 << 40)
    limits._quota_of.cache_clear()
    assert usable_cpus() == cpus


EVENTS = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0"
V2 = {
    "memory.current": "900", "memory.max": "max", "job/memory.current": "500", "job/memory.max": "1000",
    "job/task/memory.current": "400", "job/task/memory.max": "max", "job/task/memory.events": EVENTS,
}  # fmt: skip
V1 = {
    "memory/x/memory.usage_in_bytes": "77",
    "memory/x/memory.limit_in_bytes": "9223372036854771712",
    "memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
}


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        ("0::/job/task\n", V2, Memory(500, 1000, 2)),
        ("4:memory:/x\n0::/\n", V1, Memory(77, None, 1)),
        ("", {}, Memory(None, None, None)),
    ],
    ids=["v2", "v1", "none"],
)
def test_memory(tmp_path: Path, membership: str, files: dict[str, str], found: Memory) -> None:
    assert found_by(group_memory, tmp_path, membership, files) == found

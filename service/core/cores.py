"""How many CPU cores this process may really use: its affinity and its cgroup's quota (v1 and v2)."""

from __future__ import annotations

import os
from pathlib import Path

from service.core.cgroups import CGROUP_ROOT, PROCESS_CGROUPS, cgroup_folders


def count_usable_cores(root: Path = CGROUP_ROOT, process_cgroups: Path = PROCESS_CGROUPS) -> int:
    """The smaller of affinity and quota, the quota rounded down; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        # Not a part of macOS, and forbidden in some sandboxes.
        cores = os.cpu_count() or 1
    for folder in cgroup_folders("cpu", root, process_cgroups):
        quota = _read_quota(folder)
        if quota is not None:
            cores = min(cores, int(quota))
    return max(1, cores)


def _read_quota(folder: Path) -> float | None:
    """Cores allowed by one cgroup folder; None: no limit there, or nothing that makes sense."""
    try:
        quota, period = map(int, _quota_and_period(folder))
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_and_period(folder: Path) -> list[str]:
    version_2 = folder / "cpu.max"
    if version_2.exists():
        return version_2.read_text().split()
    return [(folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]

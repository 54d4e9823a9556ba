"""Where the limits of this process's control groups stand, in version 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROCESS_CGROUPS = Path("/proc/self/cgroup")


def cgroup_folders(
    controller: str, root: Path = CGROUP_ROOT, process_cgroups: Path = PROCESS_CGROUPS
) -> list[Path]:
    """Every folder whose limit binds this process: its own cgroup and those above it."""
    folders = [root, root / controller, root / f"{controller},{controller}acct"]
    try:
        lines = os.fsdecode(process_cgroups.read_bytes()).splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        relative = Path(path.lstrip("/"))
        folders += [base / part for part in (relative, *relative.parents)]
    return folders

"""What jobs write is not what they read: this job's own files, and other jobs' output below an input."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from service.logs import log_event

logger = logging.getLogger(__name__)

JOB_FOLDER, JOB_FILE = "_job", "job.json"


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """A job's --out and --metrics-textfile."""

    out: Path
    metrics: Path | None = None

    def contain(self, filesystem: Any, path: str) -> bool:
        """Whether the path leads there, through links too."""
        if "local" not in filesystem.type_name:
            return False
        real = Path(os.path.realpath(path))
        if real.is_relative_to(os.path.realpath(self.out)):
            return True
        return self.metrics is not None and real == Path(os.path.realpath(self.metrics))


def leave_out_jobs(root: str, files: Iterable[fs.FileInfo]) -> list[fs.FileInfo]:
    """The files below a folder without those in other jobs' --out; the folder itself may be one."""
    files = list(files)
    mark = f"/{JOB_FOLDER}/{JOB_FILE}"
    outs = [info.path.removesuffix(mark) for info in files if info.path.endswith(mark)]
    for out in (out for out in outs if out != root.rstrip("/")):
        log_event(logger, logging.WARNING, "another job's output is left out of the input", folder=out)
        files = [info for info in files if not info.path.startswith(f"{out}/")]
    return files

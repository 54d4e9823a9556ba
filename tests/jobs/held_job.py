"""`seqenc` whose job goes no further once it has finished as many shards as its first argument says."""

from __future__ import annotations

import sys
import threading
from typing import Any

from seqenc_process import run_seqenc
from service.jobs.state import JobFolder


def hold_after(shards: int) -> None:
    finish, finished = JobFolder.finish, 0

    def finish_or_wait(*arguments: Any) -> None:
        nonlocal finished
        finish(*arguments)
        finished += 1
        if finished == shards:
            threading.Event().wait()

    JobFolder.finish = finish_or_wait  # type: ignore[assignment]


if __name__ == "__main__":
    hold_after(int(sys.argv.pop(1)))
    sys.exit(run_seqenc())

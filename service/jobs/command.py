"""`seqenc job`: checks that its packages are there and runs what the settings ask for."""

from __future__ import annotations

import importlib.util
import os
import sys

from service.errors import StartError
from service.job_settings import JobSettings
from service.jobs.errors import JobError
from service.logs import configure_logging

_FAILED = 1
_INTERRUPTED = 130


def run_job(settings: JobSettings) -> int:
    configure_logging(settings.log_format, settings.log_level)
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        _check_packages(settings)
        return _run(settings)
    except (JobError, StartError) as error:
        print(f"seqenc: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("seqenc: interrupted; run the same command again to go on", file=sys.stderr)
        return _INTERRUPTED


def _check_packages(settings: JobSettings) -> None:
    needed = {"pyarrow": "job", "fsspec": "job"} | ({"ray": "ray"} if settings.engine == "ray" else {})
    for package, extra in needed.items():
        if importlib.util.find_spec(package) is None:
            raise JobError(
                f"seqenc job needs {package}; install seqenc with the extra {extra}: seqenc[{extra}]"
            )


def _run(settings: JobSettings) -> int:
    from service.jobs.engines import dry_run, run_local, run_ray

    if settings.dry_run:
        return dry_run(settings)
    return run_ray(settings) if settings.engine == "ray" else run_local(settings)

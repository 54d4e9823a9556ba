"""Imports every module of a package, in an interpreter of its own, and prints what that did, as JSON."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, MutableMapping
from unittest import mock

ENVIRONMENT = os.environ


class RecordingEnvironment(MutableMapping[str, str]):
    """The process's environment, noting which module looked at it."""

    def __init__(self) -> None:
        self.readers: set[str] = set()

    def _note_reader(self) -> None:
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals["__name__"] in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        self.readers.add(frame.f_globals["__name__"])

    def __getitem__(self, name: str) -> str:
        self._note_reader()
        return ENVIRONMENT[name]

    def __iter__(self) -> Iterator[str]:
        self._note_reader()
        return iter(ENVIRONMENT)

    def __len__(self) -> int:
        return len(ENVIRONMENT)

    def __setitem__(self, name: str, value: str) -> None:
        ENVIRONMENT[name] = value

    def __delitem__(self, name: str) -> None:
        del ENVIRONMENT[name]


def import_all(name: str) -> None:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        importlib.import_module(module.name)


def main() -> None:
    recording = RecordingEnvironment()
    package = sys.argv[1]
    with mock.patch.object(os, "environ", recording):
        import_all(package)
    found = {
        "modules": sorted(sys.modules),
        "environment_readers": sorted(name for name in recording.readers if name.split(".")[0] == package),
        "sessions": sum(type(thing).__name__ == "InferenceSession" for thing in gc.get_objects()),
        "log_handlers": [str(handler) for handler in logging.getLogger().handlers],
        "threads": [thread.name for thread in threading.enumerate()],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

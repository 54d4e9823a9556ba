"""The machine and the versions that a figure belongs to."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from service.core.cores import count_usable_cores

# What decides the speed of matrix products.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_PACKAGES = ("seqenc", "onnxruntime", "torch", "grpcio", "tokenizers", "numpy")


def describe_machine() -> dict[str, str]:
    cpu = _cpu_fields()
    flags = cpu.get("flags", "").split()
    return {
        "CPU": cpu.get("model name", platform.processor()),
        "features": " ".join(feature for feature in _FEATURES if feature in flags),
        "usable cores": str(count_usable_cores()),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
    }


def _cpu_fields() -> dict[str, str]:
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}

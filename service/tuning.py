"""The file that `seqenc tune` writes and `seqenc serve --tuning` reads: a choice, and where it holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.config import ServeSettings
from service.errors import StartError

SCHEMA_VERSION = 1
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings of `seqenc serve`, by their names there."""

    provider: str
    precision: str
    lanes: int
    threads_per_lane: int
    max_batch_tokens: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """A choice holds for one artifact on one kind of CPU with as many usable cores."""

    revision: str
    cpu_model: str
    cores: int
    choice: Choice

    def save(self, path: Path, measurements: list[dict[str, Any]]) -> None:
        content = {"schema_version": SCHEMA_VERSION, **asdict(self), "measurements": measurements}
        path.write_text(json.dumps(content, indent=2) + "\n")

    def apply(self, settings: ServeSettings) -> ServeSettings:
        """The choice fills in what neither a flag nor the environment has set."""
        chosen = {
            name: value
            for name, value in asdict(self.choice).items()
            if name not in settings.model_fields_set
        }
        return settings.model_copy(update=chosen)

    def check(self, path: Path, *, revision: str, cores: int) -> None:
        """Raises StartError when the file was made for another artifact or machine."""
        here = {"artifact revision": revision, "CPU model": read_cpu_model(), "usable cores": cores}
        made = {"artifact revision": self.revision, "CPU model": self.cpu_model, "usable cores": self.cores}
        for name, value in here.items():
            if made[name] != value:
                raise StartError(
                    f"--tuning {path} was made for {name} {made[name]!r}, here it is {value!r}; "
                    "run `seqenc tune` on this machine with this artifact"
                )


def load_tuning(path: Path) -> Tuning:
    try:
        content = json.loads(path.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}, not {SCHEMA_VERSION}")
        return Tuning(
            content["revision"], content["cpu_model"], int(content["cores"]), Choice(**content["choice"])
        )
    except OSError as error:
        raise StartError(f"--tuning {path} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartError(
            f"--tuning {path} is not a tuning file ({error}); run `seqenc tune` again"
        ) from error


def read_cpu_model(info: Path = CPU_INFO) -> str:
    """The processor's name, with family, model and stepping, since cloud machines share names."""
    try:
        lines = info.read_text().split("\n\n")[0].splitlines()
    except OSError:
        return "unknown"
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    parts = [named.get("model name", "unknown")]
    parts += [f"{name} {named[name]}" for name in ("cpu family", "model", "stepping") if name in named]
    return ", ".join(parts)

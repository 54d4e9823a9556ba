"""The Dockerfile and the compose file, as far as they can be checked without building."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendered import DEPLOY
from service.cli import build_parser
from service.config import ServeSettings, load_settings

ROOT = DEPLOY.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture
def hadolint() -> str:
    path = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if path is None:
        pytest.skip("hadolint is built for x86 Linux")
    return path


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_hadolint_has_no_complaint(hadolint: str) -> None:
    ran = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert ran.stdout == ""
    assert ran.returncode == 0


def test_commands_are_in_exec_form_and_exist() -> None:
    runtime = DOCKERFILE.split("AS runtime")[1]
    forms = dict(re.findall(r"^(ENTRYPOINT|CMD|HEALTHCHECK .*CMD) (\[.*\])$", runtime, re.M))
    commands = [yaml.safe_load(form) for form in forms.values()]
    check, entry, arguments = commands
    assert [check[0], *entry] == ["seqenc", "seqenc"]
    assert build_parser().parse_args(check[1:]).command == "probe"
    assert build_parser().parse_args(arguments).command == "serve"


def test_the_last_stage_is_cpu_and_no_server_is_root() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M)
    assert stages[-1] == ("runtime", "cpu")
    assert ("runtime", "cuda") in stages
    assert set(re.findall(r"^USER (.*)$", DOCKERFILE, re.M)) == {"10001:10001"}


def test_every_file_that_is_copied_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [Path(line[1:]) for line in lines if line.startswith("!")]
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M)
    for source in map(Path, " ".join(copies).split()):
        assert (ROOT / source).exists()
        assert {source, *source.parents} & set(allowed), source


def test_the_version_is_the_packages(compose: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in DOCKERFILE
    assert compose["services"]["seqenc"]["image"] == f"seqenc:{version}"
    for path in DEPLOY.rglob("*.yaml"):
        for tag in re.findall(r"image: seqenc(?:-exporter)?:(\S+)", path.read_text()):
            assert tag == version, path


def test_compose_runs_what_there_is(compose: dict[str, Any]) -> None:
    server = compose["services"]["seqenc"]
    flags = vars(build_parser().parse_args(server["command"]))
    assert flags.pop("command") == "serve"
    settings = load_settings(ServeSettings, flags)
    assert (
        float(server["stop_grace_period"].removesuffix("s"))
        > settings.drain_delay_s + settings.drain_timeout_s
    )
    for service in compose["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_file(), source
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])

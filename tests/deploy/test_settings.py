"""What the manifests set exists, fits together, and is what the server would take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.rendered import Manifest, containers_of, find, pod_of, settings_of
from fake_artifact import build_artifact
from service.cli import COMMANDS, build_parser
from service.config import ServeSettings, check_environment, load_settings
from service.core.artifact import Graph
from service.core.memory import check_memory, plan_memory

Sets = dict[str, list[Manifest]]
SERVERS = (
    "cpu",
    "cuda",
    "tls",
    "component keda",
    "component tokens",
    "component model-claim",
    "component model-download",
    "documented",
)
# all-MiniLM-L6-v2, and what `--max-batch-tokens auto` is for the provider cpu.
MINILM = build_artifact(hidden_size=384, layer_count=6, head_count=12, max_positions=512)
MINILM_WEIGHT_BYTES = 90_419_200
CPU_BATCH_TOKENS = 512


def served(sets: Sets, name: str, patch: pytest.MonkeyPatch) -> ServeSettings:
    """The settings that the server's pod would run with."""
    variables = settings_of(sets[name]) | {"SEQENC_LANES": "4"}
    for variable, value in variables.items():
        patch.setenv(variable, value)
    return load_settings(ServeSettings, {})


def server_pod(sets: Sets, name: str) -> dict[str, Any]:
    pod = pod_of(find(sets[name], "Deployment"))
    assert pod
    return pod


def test_every_variable_is_a_setting(sets: Sets) -> None:
    for manifests in sets.values():
        settings = {
            name: value for name, value in settings_of(manifests).items() if name.startswith("SEQENC_")
        }
        check_environment((command.settings for command in COMMANDS.values()), settings)


def test_everything_is_in_one_namespace(sets: Sets) -> None:
    for name, manifests in sets.items():
        named = {each["metadata"].get("namespace") for each in manifests if each["kind"] != "Namespace"}
        # KServe's go where the operator says.
        assert named == ({None} if name == "kserve" else {"seqenc"}), name


def test_every_flag_is_one_of_the_command(sets: Sets) -> None:
    for manifests in sets.values():
        for pod in filter(None, map(pod_of, manifests)):
            for container in containers_of(pod):
                if container["image"].startswith("seqenc:") and "command" not in container:
                    assert build_parser().parse_args(container["args"]).command == "serve"


@pytest.mark.parametrize("name", SERVERS)
def test_the_grace_period_outlasts_the_drain(sets: Sets, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, pod = served(sets, name, monkeypatch), server_pod(sets, name)
    (container,) = pod["containers"]
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = settings.drain_delay_s + settings.drain_timeout_s
    assert pod["terminationGracePeriodSeconds"] >= before_s + drain_s + 5


@pytest.mark.parametrize("name", SERVERS)
def test_probes_and_ports_are_the_servers(sets: Sets, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, pod = served(sets, name, monkeypatch), server_pod(sets, name)
    (container,) = pod["containers"]
    addresses = {
        "grpc": settings.grpc_address,
        "health": str(settings.health_address),
        "metrics": settings.http_address,
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] > settings.warmup_timeout_s


@pytest.mark.parametrize("name", SERVERS)
def test_files_that_settings_name_are_mounted(sets: Sets, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, pod = served(sets, name, monkeypatch), server_pod(sets, name)
    (container,) = pod["containers"]
    mounts = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    for path in (settings.tls_certificate, settings.tls_key, settings.tokens_file):
        assert path is None or path.parent in mounts
    if name.startswith("component model-"):
        assert mounts & {settings.artifact, *settings.artifact.parents}


def test_the_lanes_are_the_cores_asked_for(sets: Sets) -> None:
    for name in SERVERS:
        (container,) = server_pod(sets, name)["containers"]
        (lanes,) = (entry for entry in container["env"] if entry["name"] == "SEQENC_LANES")
        assert lanes["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "cuda"])
def test_the_worst_load_of_the_default_model_fits(
    sets: Sets, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = served(sets, name, monkeypatch)
    (container,) = server_pod(sets, name)["containers"]
    resources = container["resources"]
    with (tmp_path / "weights.fp32.bin").open("wb") as weights:
        weights.truncate(MINILM_WEIGHT_BYTES)
    graph = Graph(
        weights_path := tmp_path / "weights.fp32.bin", "fp32", "attention", 1.0, (weights_path.name,)
    )
    plan = plan_memory(
        MINILM,
        [graph],
        lanes=int(resources["requests"]["cpu"]),
        max_batch_tokens=CPU_BATCH_TOKENS,
        max_batch_cells=settings.max_batch_map_cells,
        max_queued_tokens=settings.max_queued_tokens,
        max_message_bytes=settings.max_message_bytes,
    )
    check_memory(plan, quantity(resources["limits"]["memory"]))


def quantity(text: str) -> int:
    return int(text.removesuffix("Gi")) << 30

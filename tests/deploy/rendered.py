"""Manifests as Kubernetes would get them: rendered by kubectl's kustomize, and the pods in them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "cuda", "tls", "monitoring")
COMPONENTS = ("hpa", "keda", "tls", "tokens", "model-download", "model-claim")
# Where a pod's specification is, by kind.
_POD_PATHS = {
    "Deployment": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "ServingRuntime": ("spec",),
}


def render(folder: Path) -> list[Manifest]:
    rendered = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    return [manifest for manifest in yaml.safe_load_all(rendered.stdout) if manifest]


def render_component(name: str, folder: Path) -> list[Manifest]:
    """The base with one component, from an overlay written into the folder."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "seqenc",
        "resources": [os.path.relpath(KUBERNETES / "base", folder)],
        "components": [os.path.relpath(KUBERNETES / "components" / name, folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return render(folder)


def render_documented(folder: Path) -> list[Manifest]:
    """The overlay that deploy/README.md shows, from another folder."""
    (overlay,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.S)
    overlay = overlay.replace("../..", os.path.relpath(KUBERNETES, folder))
    (folder / "kustomization.yaml").write_text(overlay)
    return render(folder)


def pod_of(manifest: Manifest) -> Manifest | None:
    if manifest["kind"] not in _POD_PATHS:
        return None
    for key in _POD_PATHS[manifest["kind"]]:
        manifest = manifest[key]
    return manifest


def containers_of(pod: Manifest) -> Iterator[Manifest]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def find(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def settings_of(manifests: list[Manifest]) -> dict[str, str]:
    """What the ConfigMaps and the containers' own variables set."""
    settings: dict[str, str] = {}
    for manifest in manifests:
        if manifest["kind"] == "ConfigMap":
            settings |= {name: value for name, value in manifest["data"].items() if name.isupper()}
        for container in containers_of(pod_of(manifest) or {"containers": []}):
            settings |= {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
    return settings

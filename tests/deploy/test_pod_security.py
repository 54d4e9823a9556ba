"""Every pod keeps to the restricted pod security standard, and to the stricter rules of ours."""

from __future__ import annotations

from typing import Any

from deploy.rendered import Manifest, containers_of, pod_of

Sets = dict[str, list[Manifest]]
# https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
VOLUMES = {
    *(
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
}
HOST_NAMESPACES = {"hostNetwork", "hostPID", "hostIPC"}


def pods(sets: Sets) -> dict[str, dict[str, Any]]:
    return {
        f"{name}: {manifest['kind']} {manifest['metadata']['name']}": pod
        for name, manifests in sets.items()
        for manifest in manifests
        if (pod := pod_of(manifest))
    }


def breaches(pod: dict[str, Any]) -> list[str]:
    """What the restricted standard forbids in the pod."""
    found = [key for key in HOST_NAMESPACES if pod.get(key)]
    found += [
        f"volume {volume}" for volume in pod.get("volumes", []) if not set(volume) - {"name"} <= VOLUMES
    ]
    for container in containers_of(pod):
        context = pod.get("securityContext", {}) | container.get("securityContext", {})
        capabilities = context.get("capabilities", {})
        rules = {
            "runs as root": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
            "may gain privileges": context.get("allowPrivilegeEscalation") is False,
            "privileged": not context.get("privileged", False),
            "has capabilities": "ALL" in capabilities.get("drop", [])
            and set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "has no seccomp profile": context.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "takes a port of the host": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"{container['name']} {rule}" for rule, kept in rules.items() if not kept]
    return found


def test_the_restricted_standard_is_kept(sets: Sets) -> None:
    assert {name: found for name, pod in pods(sets).items() if (found := breaches(pod))} == {}


def test_a_breach_is_noticed() -> None:
    pod = {
        "hostNetwork": True,
        "containers": [{"name": "seqenc"}],
        "volumes": [{"name": "x", "hostPath": {}}],
    }
    assert len(breaches(pod)) == 6


def test_pods_are_bare_and_bounded(sets: Sets) -> None:
    """A read-only root, the image's user, a memory limit that is guaranteed."""
    for name, pod in pods(sets).items():
        for container in containers_of(pod):
            context = pod.get("securityContext", {}) | container["securityContext"]
            assert context["readOnlyRootFilesystem"], name
            assert context["runAsUser"] == 10001, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name


def test_no_pod_has_a_token_or_service_variables(sets: Sets) -> None:
    kserve = next(each for each in sets["kserve"] if each["kind"] == "InferenceService")
    owners = [pod for name, pod in pods(sets).items() if "ServingRuntime" not in name]
    for pod in [*owners, kserve["spec"]["predictor"]]:
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False

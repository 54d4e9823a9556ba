"""Every manifest is valid, and without unknown fields, in each supported version of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from deploy.rendered import Manifest

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
CUSTOM_RESOURCES = yaml.safe_load(Path(__file__).with_name("custom_resources.yaml").read_text())
Sets = dict[str, list[Manifest]]


@pytest.fixture(scope="module", autouse=True)
def _schemas_read_once() -> Iterator[None]:
    read = utils.schema_contents
    known: dict[tuple[str, str], object] = {}

    def read_once(filename: str, version: str) -> object:
        if (filename, version) not in known:
            known[filename, version] = read(filename, version)
        return known[filename, version]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", read_once)
        yield


def different(sets: Sets) -> list[Manifest]:
    """Each once, though sets share most of theirs."""
    return [
        json.loads(text) for text in sorted({json.dumps(each) for group in sets.values() for each in group})
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_manifests(sets: Sets, version: str) -> None:
    for manifest in different(sets):
        if manifest["kind"] not in CUSTOM_RESOURCES:
            assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_operators_take_the_custom_resources(sets: Sets) -> None:
    custom = [manifest for manifest in different(sets) if manifest["kind"] in CUSTOM_RESOURCES]
    assert {manifest["kind"] for manifest in custom} == set(CUSTOM_RESOURCES)
    for manifest in custom:
        jsonschema.validate(manifest, CUSTOM_RESOURCES[manifest["kind"]])


def test_an_unknown_field_is_noticed(sets: Sets) -> None:
    deployment = next(each for each in different(sets) if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)

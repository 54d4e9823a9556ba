"""The Kubernetes manifest gives flags that exist, and a pod a share for each index."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from service.cli import build_parser

MANIFEST = Path(__file__).parents[2] / "deploy" / "job" / "job.yaml"


def test_each_pod_has_a_share_and_flags_that_exist() -> None:
    spec: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (script,) = container["args"]
    command, _, rest = script.partition(" || ")
    assert rest == "[ $? -eq 3 ]"
    words = shlex.split(command.replace("$JOB_COMPLETION_INDEX", "3"))
    assert words[0] == "seqenc"
    flags = build_parser().parse_args(words[1:])
    assert flags.shard_index == "3"
    assert spec["completionMode"] == "Indexed"
    assert int(flags.shard_count) == spec["completions"] == spec["parallelism"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {*flags.inputs, flags.out, flags.artifact} == mounts

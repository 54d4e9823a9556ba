"""The PromQL that is deployed, by where it stands, and the metrics that it names."""

from __future__ import annotations

import json
import re

import yaml

from deploy.rendered import KUBERNETES, Manifest, find

MONITORING = KUBERNETES / "overlays" / "monitoring"
_NAMES = re.compile(r"\b(?:seqenc|kube)_[a-z0-9_]+|\bseqenc:[a-z0-9_:]+|\bup\b")
_LITERALS = re.compile(r'"[^"]*"')


def rules_of(monitoring: list[Manifest]) -> list[dict[str, str]]:
    groups = find(monitoring, "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> dict[str, str]:
    """By panel and letter, with the dashboard's variables filled in."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": _fill_in(target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }


def adapter_metrics() -> dict[str, str]:
    """The series of each metric that the Prometheus adapter gives the HorizontalPodAutoscaler."""
    rules = yaml.safe_load((MONITORING / "adapter-values.yaml").read_text())["rules"]["custom"]
    return {rule["name"]["as"]: rule["seriesQuery"] for rule in rules}


def metrics_in(query: str) -> set[str]:
    return set(_NAMES.findall(_LITERALS.sub("", query)))


def _fill_in(query: str) -> str:
    return query.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$instance", ".*")

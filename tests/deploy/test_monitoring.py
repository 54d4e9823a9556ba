"""Rules, dashboard and autoscalers name metrics that exist; alerts fire in time and say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from deploy.queries import adapter_metrics, dashboard_queries, metrics_in, rules_of
from deploy.rendered import DEPLOY, Manifest, find
from service.metrics import Metrics

Sets = dict[str, list[Manifest]]
# Prometheus' own, and those of kube-state-metrics.
FOREIGN = {
    "up",
    "kube_pod_status_ready",
    "kube_pod_status_phase",
    "kube_pod_container_status_restarts_total",
}


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    return path


@pytest.fixture(scope="module")
def served() -> set[str]:
    """The names on /metrics, and of histograms also the name that its parts share."""
    page = generate_latest(Metrics().registry).decode()
    samples = set(re.findall(r"^(seqenc_\w+)", page, re.MULTILINE))
    return samples | set(re.findall(r"^# TYPE (seqenc_\w+)", page, re.MULTILINE))


@pytest.fixture
def rules(sets: Sets) -> list[dict[str, str]]:
    return rules_of(sets["monitoring"])


def test_rules_name_metrics_that_are_served(rules: list[dict[str, str]], served: set[str]) -> None:
    known = served | FOREIGN | {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        assert metrics_in(rule["expr"]), rule
        assert metrics_in(rule["expr"]) <= known, rule


def test_every_record_has_a_reader(rules: list[dict[str, str]]) -> None:
    read = {name for rule in rules for name in metrics_in(rule["expr"])}
    read |= {name for query in adapter_metrics().values() for name in metrics_in(query)}
    assert {rule["record"] for rule in rules if "record" in rule} - read == set()


def test_the_dashboard_shows_every_metric_and_no_other(served: set[str]) -> None:
    shown = {name for query in dashboard_queries().values() for name in metrics_in(query)}
    assert shown <= served
    names = {name.removesuffix("_bucket") for name in shown}
    assert names == {f"seqenc_{name}" for name in vars(Metrics()) if name != "registry"}


def test_autoscalers_ask_for_what_prometheus_has(
    sets: Sets, rules: list[dict[str, str]], served: set[str]
) -> None:
    records = {rule["record"] for rule in rules if "record" in rule}
    for query in adapter_metrics().values():
        assert metrics_in(query) <= records
    autoscaler = find(sets["cpu"], "HorizontalPodAutoscaler")["spec"]
    assert {each["pods"]["metric"]["name"] for each in autoscaler["metrics"]} == set(adapter_metrics())
    for trigger in find(sets["component keda"], "ScaledObject")["spec"]["triggers"]:
        assert metrics_in(trigger["metadata"]["query"]) <= served


def test_the_monitor_finds_the_port(sets: Sets) -> None:
    monitor = find(sets["monitoring"], "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [
        each
        for each in sets["cpu"]
        if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    (service,) = services
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_every_alert_says_what_to_do(rules: list[dict[str, str]]) -> None:
    headings = set(re.findall(r"^#+ (\w+)$", (DEPLOY / "README.md").read_text(), re.MULTILINE))
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    assert set(alerts) == {heading for heading in headings if heading.startswith("Seqenc")}
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{name.lower()}"  # type: ignore[index]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")  # type: ignore[index]


def test_alerts_fire_when_they_should(sets: Sets, promtool: str, tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts.yaml")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(find(sets["monitoring"], "PrometheusRule")["spec"]))
    shutil.copy(cases, tmp_path)
    tested = {
        test["alertname"]
        for case in yaml.safe_load(cases.read_text())["tests"]
        for test in case["alert_rule_test"]
    }
    assert tested == {rule["alert"] for rule in rules_of(sets["monitoring"]) if "alert" in rule}
    ran = subprocess.run(
        [promtool, "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboards_queries_parse(promtool: str, tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": query}
        for number, query in enumerate(dashboard_queries().values())
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    ran = subprocess.run(
        [promtool, "check", "rules", tmp_path / "panels.yaml"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

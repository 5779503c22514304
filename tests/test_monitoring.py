"""What operators are given to watch the gateway, without a Prometheus: names, alerts and the dashboard agree."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import require_tool
from tests.counted import Metrics

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"

ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "tensor-gateway.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])

_METRIC = re.compile(r"\b((?:tensor_gateway|process)_[a-z_]+)\b")


def built_metrics() -> set[str]:
    """The names of all metrics as Prometheus knows them."""
    return {metric.name + ("_total" if metric.type == "counter" else "") for metric in Metrics().registry.collect()}


def documented_metrics() -> dict[str, set[str]]:
    """By file, the names in the rows of a table of metrics, without the prefix."""
    row = re.compile(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", re.MULTILINE)
    texts = {path.name: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    return {name: found for name, text in texts.items() if (found := set(row.findall(text)))}


def metrics_in(text: str) -> set[str]:
    """The metrics that are named in *text*, without what a histogram appends."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in _METRIC.findall(text)}


def promtool(*arguments: str | Path) -> str:
    """What promtool says; it has to be content."""
    command = require_tool("promtool", "it is part of Prometheus; on Debian: apt install prometheus")
    result = subprocess.run([command, *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_one_table_lists_exactly_the_metrics_that_exist() -> None:
    tables = documented_metrics()
    assert len(tables) == 1
    (documented,) = tables.values()
    assert documented == {name.removeprefix("tensor_gateway_") for name in built_metrics()}


def test_every_metric_named_in_deploy_exists() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml", ".md", ".json")]
    named = set().union(*(metrics_in(path.read_text()) for path in files)) - {"tensor_gateway_"}
    assert len(named) > 20
    assert named <= built_metrics()


@each_alert
def test_alert_says_how_urgent_it_is_what_it_means_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"


@each_alert
def test_shares_are_those_of_counts_that_are_there_from_the_start(alert: dict[str, Any]) -> None:
    """`requests_total` begins with its first request, which `rate` does not see: shares would be above 1."""
    assert "_requests_total" not in alert["expr"]


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", PROMETHEUS / "alerts.test.yml")


@each_alert
def test_every_alert_is_tested_firing_and_silent(alert: dict[str, Any]) -> None:
    fires = {
        any(f'"{alert["alert"]}"' in sample["labels"] for sample in case["exp_samples"])
        for test in yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]
        if re.search(rf"\b{alert['alert']}\b", test["name"])
        for case in test["promql_expr_test"]
    }
    assert fires == {True, False}


def test_prometheus_of_compose_loads_the_alerts_that_it_mounts() -> None:
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    volumes = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    assert "./prometheus:/etc/prometheus:ro" in volumes
    for file in settings["rule_files"]:
        assert (PROMETHEUS / file).is_file()
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert [job["job_name"] for job in settings["scrape_configs"]] == ["tensor-gateway"]  # as alerts.yml wants it


@each_panel
def test_panel_asks_a_question_and_says_what_to_do(panel: dict[str, Any]) -> None:
    assert panel["title"].endswith("?")
    assert len(panel["description"]) > 40
    names = {alert["alert"] for alert in ALERTS}
    assert set(re.findall(r"TensorGateway\w+", panel["description"])) <= names


@each_panel
def test_panel_asks_the_data_source_and_the_gateways_that_were_chosen(panel: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"] == chosen
        assert '{instance=~"$instance"' in target["expr"]
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"instance", "route", "backend", "__rate_interval"}


@pytest.mark.parametrize(
    "panel", [panel for panel in PANELS if panel["type"] == "stat"], ids=lambda panel: panel["title"]
)
def test_a_single_number_is_that_of_now(panel: dict[str, Any]) -> None:
    """Of a range, Grafana would show the last number in it, also of a gateway that is gone or idle for an hour."""
    assert all(target["instant"] and not target["range"] for target in panel["targets"])
    may_be_nan = any(" / " in target["expr"] or "histogram_quantile" in target["expr"] for target in panel["targets"])
    mappings = panel["fieldConfig"]["defaults"].get("mappings", [])
    assert may_be_nan == any(each["options"].get("match") == "nan" for each in mappings)


def test_panels_have_their_own_place_and_number() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/tensor-gateway.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == settings["global"]["scrape_interval"]

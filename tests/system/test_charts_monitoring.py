"""The dashboards and alerts that the charts make are the files, byte for byte, and Prometheus takes them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.alert_rules import RULES
from tests.system.charts import CHARTS, Object, helm, render
from tests.system.test_charts_dispatcher import CONFIG

VALUES: dict[str, dict[str, Any]] = {
    # the chart makes another token each time
    "epp": {"image": "registry.example/adsum:1", "peers": {"tokenSecret": "peers"}},
    "dispatcher": {
        "image": "registry.example/adsum:1",
        "redis": {"secret": {"name": "redis"}},
        "config": CONFIG,
    },
}


def made(chart: str, kind: str, **values: Any) -> list[Object]:
    """The objects of this kind that the release has because of `values`, and no others."""
    before = render(chart, VALUES[chart])
    after = render(chart, VALUES[chart] | values)
    added = [found for found in after if found not in before]
    assert {found["kind"] for found in added} == {kind}
    return added


@pytest.mark.parametrize("chart", VALUES)
def test_each_dashboard_is_a_config_map_that_grafanas_sidecar_finds(chart: str) -> None:
    folder = {"annotations": {"grafana_folder": "adsum"}}
    found = made(chart, "ConfigMap", dashboards={"enabled": True, **folder})
    files = sorted((CHARTS / chart / "dashboards").glob("*.json"))
    assert len(found) == len(files) > 0
    shown: dict[str, str] = {}
    for one in found:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "adsum"}
        assert len(json.dumps(one)) < 2**20, "no ConfigMap may be larger"
        shown |= one["data"]
    for path in files:
        assert json.loads(shown[f"adsum-{path.name}"]) == json.loads(path.read_text())


@pytest.mark.parametrize("chart", VALUES)
def test_each_file_of_rules_is_a_prometheus_rule(chart: str, tmp_path: Path) -> None:
    url = "https://docs.example.com/adsum/alerts.html"
    rule = {"enabled": True, "labels": {"release": "p"}}
    plain = made(chart, "PrometheusRule", prometheusRule=rule)
    linked = made(chart, "PrometheusRule", prometheusRule=rule | {"runbookURL": url})
    files = sorted((CHARTS / chart / "alerts").glob("*.yaml"))
    assert [one["spec"] for one in plain] == [yaml.safe_load(path.read_text()) for path in files]
    for one in linked:
        assert one["metadata"]["labels"]["release"] == "p"
        spec = tmp_path / f"{one['metadata']['name']}.yaml"
        spec.write_text(yaml.safe_dump(one["spec"]))
        subprocess.run(["promtool", "check", "rules", str(spec)], check=True, capture_output=True)
        for alert in (rule for group in one["spec"]["groups"] for rule in group["rules"]):
            assert alert["annotations"]["runbook_url"] == f"{url}#{alert['alert'].lower()}"


@pytest.mark.parametrize("chart", VALUES)
def test_bad_values_are_refused(chart: str) -> None:
    for values in ({"dashboards": {"enable": True}}, {"prometheusRule": {"runbookURL": "docs"}}):
        refused = helm("template", "r", str(CHARTS / chart), values=VALUES[chart] | values)
        assert refused.returncode != 0
        assert next(iter(values)) in refused.stderr


@pytest.mark.parametrize("path", RULES, ids=lambda path: str(path.stem))
def test_prometheus_takes_the_files_as_they_are(path: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "promtool").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_rules_decide_as_their_tests_say(path: Path) -> None:
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

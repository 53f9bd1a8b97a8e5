"""charts/epp in front of Pods that know nothing of us: its own values, and those of the Go picker's chart."""

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from discovery.kubernetes.api.refusal import GET_NODES
from epp.config.flags import parse as parse_epp_flags
from epp.config.picker_config import DEFAULT_CONFIG
from tests.system.charts import CHARTS, Object, container, helm, one, render, service, workload

IMAGE = {"image": "registry.example/adsum:1"}
ALONE = {"peers": {"enabled": False}}
LABELS = {"app": "vllm-qwen3-32b", "llm-d.ai/role": "decode"}
PLUGINS = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: max-score-picker}]
"""
GO_VALUES: dict[str, Any] = {
    "router": {
        "clusterDomain": "cluster.local",
        "extraServicePorts": [{"name": "http", "port": 8081, "targetPort": 8081}],
        "epp": {
            "replicas": 3,
            "image": {"registry": "registry.example/llm", "repository": "adsum", "tag": "0.1.0"},
            "extProcPort": 9102,
            "grpcHealthPort": 9103,
            "parsers": ["openai-parser"],
            "flags": {
                "v": 3,
                "ha-enable-leader-election": True,
                "metrics-staleness-threshold": "5s",
                "grpc-max-recv-msg-size": 10_000_000,
                "drain-timeout": "45s",
            },
            "env": [{"name": "HOME", "value": "/tmp"}],
            "pluginsConfigFile": "custom-plugins.yaml",
            "pluginsCustomConfig": {"custom-plugins.yaml": PLUGINS, "other.yaml": "a: b\n"},
            "extraContainerPorts": [{"name": "http", "containerPort": 8081}],
            "resources": {"requests": {"cpu": "8", "memory": "8Gi"}, "limits": {"memory": "16Gi"}},
            "affinity": {"podAntiAffinity": {}},
            "tolerations": [{"operator": "Exists"}],
            "podAnnotations": {"prometheus.io/scrape": "true"},
            "volumes": [{"name": "models", "emptyDir": {}}],
            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        },
        "modelServers": {
            "matchLabels": LABELS,
            "targetPorts": [{"number": 8000}, {"number": 8001}],
            "type": "vllm",
            "protocol": "http",
        },
        "inferencePool": {"create": True, "failureMode": "FailOpen"},
        "inferenceObjectives": [{"name": "high", "priority": 100}, {"name": "batch", "priority": -1}],
        "monitoring": {
            "interval": "15s",
            "provider": {"name": "prometheusoperator"},
            "prometheus": {
                "enabled": True,
                "auth": {"enabled": True, "secretName": "reader"},
                "extraLabels": {"release": "prometheus"},
            },
        },
        "tracing": {
            "enabled": True,
            "otelExporterEndpoint": "http://collector:4317",
            "sampling": {"sampler": "parentbased_traceidratio", "samplerArg": "0.5"},
        },
        "tokenizer": {"enabled": False},
        "latencyPredictor": {"enabled": False},
        "proxy": {"enabled": False},
    },
    "provider": {"name": "istio"},
    "httpRoute": {"create": True, "inferenceGatewayName": "gw", "headerMatches": {"x-model": "qwen"}},
}
"""Every value of the Go picker's chart that ours has too; the names are theirs, the values ours."""


def with_router(**changes: Any) -> dict[str, Any]:
    """A small values file of theirs, with changes to `router`."""
    router = {"modelServers": {"matchLabels": LABELS}, **changes}
    return {**IMAGE, "router": router}


def flags_of(objects: list[Object]) -> dict[str, str]:
    pairs = (word.removeprefix("--").partition("=") for word in container(objects, "epp")["args"])
    return {name: value for name, _, value in pairs}


def fails(values: Mapping[str, Any]) -> str:
    done = helm("template", "r", str(CHARTS / "epp"), values=values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_values_file_of_the_go_picker_s_chart_makes_the_same_picker() -> None:
    objects = render("epp", GO_VALUES, "pool")
    picker, pod = container(objects, "epp"), workload(objects)["spec"]["template"]
    assert picker["image"] == "registry.example/llm/adsum:0.1.0"
    assert workload(objects)["spec"]["replicas"] == 3
    flags = flags_of(objects)
    assert (flags["pool-name"], flags["pool-namespace"]) == ("pool", "prod")
    assert flags["pool-group"] == "inference.networking.k8s.io"
    assert (flags["v"], flags["metrics-staleness-threshold"]) == ("3", "5s")
    assert flags["grpc-max-recv-msg-size"] == "10000000", "not 1e+07"
    assert (flags["grpc-port"], flags["grpc-health-port"]) == ("9102", "9103")
    assert flags["drain-timeout"] == "45s"
    assert pod["spec"]["terminationGracePeriodSeconds"] > 45
    assert flags["config-file"] == "/config/custom-plugins.yaml"
    config = one(objects, "ConfigMap")
    assert config["data"] == {"custom-plugins.yaml": PLUGINS, "other.yaml": "a: b\n"}
    assert {"name": "config", "mountPath": "/config", "readOnly": True} in picker["volumeMounts"]
    assert {"name": "models", "mountPath": "/models"} in picker["volumeMounts"]
    assert {"name": "HOME", "value": "/tmp"} in picker["env"]
    assert picker["resources"]["limits"] == {"memory": "16Gi"}
    assert pod["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert {"name": "http", "containerPort": 8081} in picker["ports"]
    assert {"name": "http", "port": 8081, "targetPort": 8081} in service(objects)["spec"]["ports"]


def test_traces_go_where_their_values_say() -> None:
    objects = render("epp", GO_VALUES, "pool")
    given = {one["name"]: one.get("value") for one in container(objects, "epp")["env"]}
    assert flags_of(objects)["tracing"] == "true"
    assert given["OTEL_TRACES_EXPORTER"] == "otlp"
    assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert given["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
    assert given["OTEL_TRACES_SAMPLER_ARG"] == "0.5"
    names = list(given)
    assert names.index("POD_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES")
    assert "$(POD_NAME)" in given["OTEL_RESOURCE_ATTRIBUTES"]
    without = render("epp", with_router())
    assert "tracing" not in flags_of(without)
    assert not any(one["name"].startswith("OTEL_") for one in container(without, "epp")["env"])


def test_their_pool_route_objectives_and_monitor_are_made() -> None:
    objects = render("epp", GO_VALUES, "pool")
    pool = one(objects, "InferencePool")
    assert pool["metadata"]["name"] == "pool"
    assert pool["spec"]["selector"]["matchLabels"] == LABELS
    assert pool["spec"]["targetPorts"] == [{"number": 8000}, {"number": 8001}]
    assert pool["spec"]["endpointPickerRef"] == {
        "name": service(objects)["metadata"]["name"],
        "port": {"number": 9102},
        "failureMode": "FailOpen",
    }
    objectives = [found for found in objects if found["kind"] == "InferenceObjective"]
    assert {o["metadata"]["name"]: o["spec"]["priority"] for o in objectives} == {"high": 100, "batch": -1}
    assert {o["spec"]["poolRef"]["name"] for o in objectives} == {"pool"}
    (rule,) = one(objects, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}
    ]
    assert rule["matches"][0]["headers"] == [{"type": "Exact", "name": "x-model", "value": "qwen"}]
    monitor = one(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service(objects)["metadata"]["labels"].items()
    )
    (headless,) = [o for o in objects if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"]
    assert not monitor["spec"]["selector"]["matchLabels"].items() <= headless["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service(objects)["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "reader", "key": "token"}


def test_a_metrics_page_with_token_checks_has_the_rights_for_them() -> None:
    objects = render("epp", GO_VALUES, "pool")
    assert flags_of(objects)["metrics-endpoint-auth"] == "true"
    rules = one(objects, "ClusterRole")["rules"]
    assert [rule.get("resources", rule.get("nonResourceURLs")) for rule in rules] == [
        ["tokenreviews"],
        ["subjectaccessreviews"],
        ["/metrics"],
    ]
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    (subject,) = one(objects, "ClusterRoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, "prod")
    (secret,) = [found for found in objects if found["kind"] == "Secret" and "data" not in found]
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": account}
    open_page = render("epp", with_router(monitoring={"prometheus": {"auth": {"enabled": False}}}))
    assert flags_of(open_page)["metrics-endpoint-auth"] == "false"
    assert not [found for found in open_page if found["kind"].startswith("Cluster")]


def test_their_defaults_stay_their_defaults() -> None:
    """Two pickers and our policy are ours; the pool, its failure mode and the closed metrics page are theirs."""
    objects = render("epp", with_router(), "pool")
    assert workload(objects)["spec"]["replicas"] == 2
    assert one(objects, "InferencePool")["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    assert one(objects, "InferencePool")["spec"]["targetPorts"] == [{"number": 8000}]
    assert flags_of(objects)["metrics-endpoint-auth"] == "true"
    assert "config-file" not in flags_of(objects)


def test_an_image_of_ours_counts_before_theirs() -> None:
    theirs = {"registry": "ghcr.io/llm-d", "repository": "llm-d-router-endpoint-picker", "tag": "main"}
    assert container(render("epp", with_router(epp={"image": theirs})), "epp")["image"] == IMAGE["image"]
    without = {"router": {"modelServers": {"matchLabels": LABELS}, "epp": {"image": theirs}}}
    assert "is the Go picker's image; say --set image=" in fails(without)


@pytest.mark.parametrize("values", [{"inferencePool": {"create": False}}, {}])
def test_pods_without_a_pool_are_selected_by_their_labels(values: Mapping[str, Any]) -> None:
    pods = {"matchLabels": LABELS, "targetPorts": [{"number": 8000}, {"number": 8001}]}
    ours = {**IMAGE, **ALONE, **values, "modelServers": pods}
    theirs = {**with_router(**values, modelServers=pods), **ALONE}
    for objects in [render("epp", ours), *([render("epp", theirs)] if values else [])]:
        flags = flags_of(objects)
        assert flags["endpoint-selector"] == "app=vllm-qwen3-32b,llm-d.ai/role=decode"
        assert flags["endpoint-target-ports"] == "8000,8001"
        assert not {"pool-name", "discovery", "component"} & flags.keys()
        environment = {variable["name"]: variable for variable in container(objects, "epp")["env"]}
        assert environment["NAMESPACE"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
        assert [rule["resources"] for rule in one(objects, "Role")["rules"]] == [["pods"]]


def test_a_pool_that_is_there_already_is_followed() -> None:
    values = {**IMAGE, **ALONE, "workers": {"source": "pool"}, "inferencePool": {"name": "theirs"}}
    objects = render("epp", values)
    assert flags_of(objects)["pool-name"] == "theirs"
    assert not [found for found in objects if found["kind"] == "InferencePool"]
    resources = [resource for rule in one(objects, "Role")["rules"] for resource in rule["resources"]]
    assert resources == ["pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"]


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        ({"epp": {"parsers": ["passthrough-parser"]}}, {"passthrough-parser"}),
        ({"modelServers": {"matchLabels": LABELS, "protocol": "grpc"}}, {"passthrough-parser"}),
        ({"epp": {"metricsDataSource": {"scheme": "https", "path": "/m"}}}, {"metrics-data-source"}),
    ],
)
def test_what_they_say_of_bodies_and_pages_is_added_to_our_default(
    router: Mapping[str, Any], expected: set[str]
) -> None:
    objects = render("epp", with_router(**router))
    made = yaml.safe_load(one(objects, "ConfigMap")["data"]["config.yaml"])
    default = yaml.safe_load(DEFAULT_CONFIG)
    assert made["schedulingProfiles"] == default["schedulingProfiles"]
    types = {plugin["type"] for plugin in made["plugins"]}
    assert types == {plugin["type"] for plugin in default["plugins"]} | expected


def test_requests_that_cannot_be_parsed() -> None:
    objects = render("epp", with_router(epp={"pluginsConfigFile": "payload-agnostic.yaml"}))
    made = yaml.safe_load(one(objects, "ConfigMap")["data"]["config.yaml"])
    scorers = [plugin["pluginRef"] for plugin in made["schedulingProfiles"][0]["plugins"]]
    assert scorers == ["active-request-scorer", "session-affinity-scorer", "max-score-picker"]
    assert made["requestHandler"] == {"parsers": [{"pluginRef": "passthrough-parser"}]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (with_router(proxy={"enabled": True}), "install charts/gateway"),
        (with_router(tokenizer={"enabled": True}), "no tokenizer sidecar"),
        (with_router(latencyPredictor={"enabled": True}), "latencies are not predicted"),
        (with_router(monitoring={"provider": {"name": "gmp"}}), "makes no PodMonitoring"),
        ({**IMAGE, "provider": {"name": "gke"}}, "no HealthCheckPolicy"),
        ({**IMAGE, "inferenceExtension": {"replicas": 2}}, "router.epp"),
        (with_router(modelServers={}), "modelServers.matchLabels is required"),
        (with_router(epp={"pluginsConfigFile": "a.yaml"}), 'there is no "a.yaml"'),
        (with_router(inferencePool={"create": False}, inferenceObjectives=[{"name": "a", "priority": 1}]), "inferenceObjectives"),
        (with_router(epp={"flags": {"refresh-metrics-interval": "50"}}), "/router/epp/flags/refresh-metrics-interval"),
        (with_router(epp={"flags": {"drain-timeout": "2m"}}), "/router/epp/flags/drain-timeout"),
        (with_router(epp={"flags": {"no-such-flag": 1}}), "invalid propertyName 'no-such-flag'"),
        (with_router(epp={"flags": {"grpc-port": 0}}), "/router/epp/flags/grpc-port"),
        (with_router(epp={"extProcPort": 70000}), "/router/epp/extProcPort"),
        (with_router(epp={"parsers": ["vllmgrpc-parser"]}), "/router/epp/parsers/0"),
        (with_router(epp={"replica": 2}), "'replica' not allowed"),
        ({**IMAGE, "modelServers": {"matchLabels": LABELS, "targetPorts": []}}, "/modelServers/targetPorts"),
        ({**IMAGE, "flags": {"body-timeout": "30"}}, "/flags/body-timeout"),
        ({**IMAGE, "flags": {"grpc-port": 9002}}, "invalid propertyName 'grpc-port'"),
        ({**IMAGE, "extraArgs": ["--body-timeout=30"]}, "/extraArgs/0"),
        ({**IMAGE, "extraArgs": ["--bodytimeout=30s"]}, "/extraArgs/0"),
        ({**IMAGE, "ports": {"grpc": 0}}, "/ports/grpc"),
        ({**IMAGE, "ports": {"grpc": 9090}}, "they are 9090, 9003, 9090"),
        ({**IMAGE, "flags": {"peers": "file:///x"}}, "invalid propertyName 'peers'"),
        ({**IMAGE, "peers": {"enabled": True, "tokenSecret": "s", "port": 9002}}, "peers.port: 9002"),
        ({**IMAGE, "config": {"plugins": []}}, "/config"),
        ({**IMAGE, "config": {"apiVersion": "v2", "kind": "EndpointPickerConfig"}}, "/config"),
        ({**IMAGE, "autoscaling": {"enabled": True, "maxReplicas": 1}}, "autoscaling.minReplicas is more"),
        ({**IMAGE, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, "resources.requests.cpu"),
        ({**IMAGE, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": "8"}}}, "uses one core"),
        ({**IMAGE, "httpRoute": {"create": True}}, "leads to an InferencePool"),
        ({**IMAGE, "workers": {"source": "pods"}, "inferencePool": {"create": True}}, "nobody reads it"),
    ],
)  # fmt: skip
def test_what_would_not_work_is_refused_by_name(values: Mapping[str, Any], words: str) -> None:
    assert words in fails(values)


@pytest.mark.parametrize(
    "argument", ["--body-timeout=1m30s", "--body-timeout=.5s", "-v", "--v=4", "--model", "m", "--model=m"]
)
def test_arguments_that_the_picker_takes_are_let_through(argument: str) -> None:
    render("epp", {**IMAGE, "extraArgs": [argument]})


def test_flags_and_numbers_reach_the_picker_as_they_are() -> None:
    given = {"max-body-bytes": 67108864, "max-buffered-bytes": "2Gi", "body-timeout": "30s", "v": 4}
    objects = render("epp", {**IMAGE, "flags": given})
    settings, log, ignored = parse_epp_flags(container(objects, "epp")["args"])
    assert (settings.max_body_bytes, settings.max_buffered_bytes) == (67108864, 2**31)
    assert (settings.body_timeout, log.level, ignored) == (30.0, logging.DEBUG, [])


def test_pickers_are_scaled_on_processor_time() -> None:
    objects = render("epp", {**IMAGE, "autoscaling": {"enabled": True, "minReplicas": 3}})
    scaler = one(objects, "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in workload(objects)["spec"], "each upgrade would undo what the autoscaler did"
    assert scaler["scaleTargetRef"]["name"] == workload(objects)["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 6)
    (metric,) = scaler["metrics"]
    assert metric["resource"]["name"] == "cpu"
    assert container(objects, "epp")["resources"]["requests"]["cpu"]
    assert one(objects, "PodDisruptionBudget")


@pytest.mark.parametrize("cpu", [1, "1", "500m", "0.5", 0.25])
def test_a_share_of_a_core_can_be_reached(cpu: Any) -> None:
    render("epp", {**IMAGE, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": cpu}}})


def test_a_network_policy_lets_gateways_pick_and_prometheus_read() -> None:
    gateways = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]
    objects = render("epp", {**IMAGE, **ALONE, "networkPolicy": {"enabled": True, "gateways": gateways}})
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"] == workload(objects)["spec"]["selector"]
    picking, reading = policy["ingress"]
    assert (picking["from"], [port["port"] for port in picking["ports"]]) == (
        gateways,
        ["grpc", "grpc-health"],
    )
    assert ("from" in reading, [port["port"] for port in reading["ports"]]) == (False, ["metrics"])
    named = {port["name"] for port in container(objects, "epp")["ports"]}
    assert {"grpc", "grpc-health", "metrics"} <= named


@pytest.mark.parametrize("secure", [True, False])
def test_istio_is_told_whether_the_picker_speaks_tls(secure: bool) -> None:
    objects = render("epp", {**IMAGE, "provider": {"name": "istio"}, "secureServing": secure})
    rule = one(objects, "DestinationRule")["spec"]
    assert rule["host"] == f"{service(objects)['metadata']['name']}.prod.svc.cluster.local"
    assert rule["trafficPolicy"]["tls"]["mode"] == ("SIMPLE" if secure else "DISABLE")
    own = {"tls": {"mode": "SIMPLE", "credentialName": "ca"}}
    given = {"name": "istio", "istio": {"destinationRule": {"trafficPolicy": own}}}
    assert one(render("epp", {**IMAGE, "provider": given}), "DestinationRule")["spec"]["trafficPolicy"] == own


def test_json_of_the_schema_is_written_once() -> None:
    """A name twice in one object is JSON, but its first value would silently not count."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), [name for name, _ in pairs]
        return dict(pairs)

    for chart in ("epp", "gateway", "dispatcher"):
        json.loads((CHARTS / chart / "values.schema.json").read_text(), object_pairs_hook=unique)


def test_zones_of_nodes_are_read_only_where_asked_for() -> None:
    pods = {**IMAGE, "modelServers": {"matchLabels": LABELS}}
    assert not [found for found in render("epp", pods) if found["kind"] == "ClusterRole"]
    role = one(render("epp", {**pods, "nodeZones": True}), "ClusterRole")
    assert role["rules"] == yaml.safe_load(GET_NODES.manifest())


@pytest.mark.parametrize("given", ["", "theirs"])
def test_pickers_find_each_other_by_the_slices_of_their_service(given: str) -> None:
    objects = render("epp", {**IMAGE, "peers": {"tokenSecret": given}, "networkPolicy": {"enabled": True}})
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    pod = found["Deployment", "r"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    expected = {
        "--peers=kubernetes://prod?service=r-pods&port=grpc-peers",
        "--peer-port=9004",
        "--peer-token-file=/etc/epp/peers/token",
    }
    assert expected <= set(container["args"])
    assert {"name": "grpc-peers", "containerPort": 9004} in container["ports"]
    assert {"name": "peers", "secret": {"secretName": given or "r-peers"}} in pod["volumes"]
    made = [one["data"]["token"] for one in objects if one["kind"] == "Secret"]
    assert [len(base64.b64decode(token)) for token in made] == ([] if given else [48])
    ports = [port["name"] for port in found["Service", "r-pods"]["spec"]["ports"]]
    assert ports == ["grpc-ext-proc", "grpc-peers"]
    assert found["Role", "r-peers"]["rules"][0]["verbs"] == ["list", "watch"]
    (rule,) = [
        one
        for one in found["NetworkPolicy", "r"]["spec"]["ingress"]
        if one["ports"] == [{"port": "grpc-peers"}]
    ]
    assert (
        rule["from"][0]["podSelector"]["matchLabels"]
        == found["Deployment", "r"]["spec"]["selector"]["matchLabels"]
    )

"""The charts, rendered by a real helm: that they lint, and that what they make fits the code and one another."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from discovery import Instance
from discovery.kubernetes.api.refusal import GET_SERVICES, LIST_PODS, LIST_SLICES, WATCH_PODS, PolicyRule
from discovery.kubernetes.slices.source import ServiceSelection
from discovery.source import ComponentKey
from epp.config.flags import parse as parse_epp_flags
from epp.endpoints.endpoint import DECODE_ROLES, ENCODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from epp.endpoints.endpoint_document import EndpointDefaults, read_endpoint
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING, WorkerMetric
from registry.disaggregation.flags import CONNECTORS
from registry.disaggregation.flags import build_parser as pd_parser
from registry.kubernetes.membership import DEFAULT_PORT
from registry.kubernetes.pod import DEFAULT_PODINFO, labels_of, read_pod
from registry.kubernetes.pod_service import LIST_SERVICES
from tests.system.charts import CHARTS, container, helm, one, pod_spec, render, service, workload
from tests.system.test_inference_pool import WHOLE_ROLE

IMAGE = {"image": "registry.example/adsum:1"}
PD_SIDECAR = {"enabled": True, "image": "adsum:1", "args": ["--prefill-max-retries=1"]}
KIND = "EndpointPickerConfig"
VALUES: dict[str, Sequence[Mapping[str, Any]]] = {
    "worker": [
        IMAGE,
        {**IMAGE, "kind": "StatefulSet", "replicas": 3, "component": "prefill", "engine": "sglang"},
        {**IMAGE, "registry": {"assertService": False}, "podDisruptionBudget": {"enabled": False}},
        {**IMAGE, "registry": {"assertService": False}, "watchesOthers": True, "service": {"create": False}},
        {**IMAGE, "service": {"template": "{namespace}-{component}", "headless": False}, "servingPort": 8080},
        {
            **IMAGE,
            "sidecar": {"enabled": True, "image": "adsum:1", "metadata": {"model": {"name": "m"}}},
            "args": ["--model", "m"],
            "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            "labels": {"team": "a"},
            "annotations": {"c": "d"},
            "imagePullSecrets": [{"name": "s"}],
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "probes": {"serverLiveness": {"httpGet": {"path": "/health", "port": "serving"}}},
        },
        {**IMAGE, "serviceAccount": {"create": False, "name": "mine"}, "drain": {"preStopSeconds": 0}},
        {**IMAGE, "role": "prefill", "autoscaling": {"enabled": True}},
        {
            **IMAGE,
            "role": "decode",
            "pdSidecar": PD_SIDECAR,
            "sidecar": {"enabled": True, "image": "adsum:1"},
        },
    ],
    "frontend": [
        {},
        {"explain": True, "workersNamespace": "gpu"},
        {"serviceAccount": {"create": False, "name": "mine"}},
    ],
    "epp": [
        IMAGE,
        {**IMAGE, "inferencePool": {"create": True}, "podMonitor": {"enabled": True}, "explain": True},
        {
            **IMAGE,
            "workers": {"kubernetesNamespace": "gpu", "serviceTemplate": "{namespace}-{component}"},
            "config": {"apiVersion": "llm-d.ai/v1", "kind": KIND, "plugins": [{"type": "queue-scorer"}]},
            "tlsSecret": "tls",
            "objectives": {"batch": -1, "chat": 2},
            "extraArgs": ["--max-body-bytes=1000000"],
        },
        {**IMAGE, "secureServing": False, "serviceAccount": {"create": False, "name": "mine"}},
    ],
}
RENDERINGS = [(chart, values) for chart, several in VALUES.items() for values in several]


ALONE = {"peers": {"enabled": False}}


def rules(*required: PolicyRule) -> Any:
    """The rules that the code asks for when it lacks them."""
    return yaml.safe_load("\n".join(rule.manifest() for rule in required))


POOL = {**IMAGE, "modelServers": {"matchLabels": {"app": "vllm"}}, "inferencePool": {"create": True}}
WATCH = rules(LIST_SLICES)
EXPLAIN = rules(GET_SERVICES, LIST_PODS)
LIST = rules(LIST_SERVICES)


@pytest.mark.parametrize(("chart", "values"), RENDERINGS)
def test_it_lints_and_renders_objects_that_belong_together(chart: str, values: Mapping[str, Any]) -> None:
    linted = helm("lint", str(CHARTS / chart), "--strict", values=values)
    assert linted.returncode == 0, linted.stdout
    objects = render(chart, values)
    identities = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(identities)) == len(identities)
    assert all(namespace for _, namespace, _ in identities)
    assert not any(kind.startswith("Cluster") for kind, _, _ in identities), "a right for the whole cluster"
    for found in objects:
        if found["kind"] in ("Deployment", "StatefulSet"):
            selector = found["spec"]["selector"]["matchLabels"]
            assert selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("chart", ["worker", "epp"])
def test_an_image_is_required_and_lint_needs_none(chart: str) -> None:
    refused = helm("template", "r", str(CHARTS / chart))
    assert refused.returncode != 0
    assert "image is required" in refused.stderr
    assert helm("lint", str(CHARTS / chart), "--strict").returncode == 0


@pytest.mark.parametrize(
    ("chart", "values", "words"),
    [
        ("worker", {**IMAGE, "replica": 2}, "'replica' not allowed"),
        ("worker", {**IMAGE, "component": "a/b"}, "/component"),
        ("worker", {**IMAGE, "labels": {"nvidia.com/dynamo-component": "x"}}, "nvidia.com/dynamo-component"),
        ("worker", {**IMAGE, "kind": "DaemonSet"}, "/kind"),
        ("worker", {**IMAGE, "sidecar": {"enabled": True}}, "sidecar.image is required"),
        (
            "worker",
            {**IMAGE, "sidecar": {"enabled": True, "image": "a"}, "servingPort": 8080},
            "servingPort and contractPort must differ",
        ),
        ("worker", {**IMAGE, "serviceAccount": {"create": False}}, "serviceAccount.name is required"),
        ("worker", {**IMAGE, "service": {"template": "{pod}"}}, "/service/template"),
        ("worker", {**IMAGE, "engine": "llama"}, "/engine"),
        ("worker", {**IMAGE, "role": "router"}, "/role"),
        ("worker", {**IMAGE, "pdSidecar": {"enabled": True}}, "pdSidecar.image is required"),
        ("worker", {**IMAGE, "pdSidecar": PD_SIDECAR, "servingPort": 8200}, "must differ"),
        ("worker", {**IMAGE, "pdSidecar": PD_SIDECAR, "role": "prefill"}, "not for role=prefill"),
        ("worker", {**IMAGE, "pdSidecar": {**PD_SIDECAR, "connector": "nixl"}}, "/pdSidecar/connector"),
        ("worker", {**IMAGE, "labels": {"llm-d.ai/role": "decode"}}, "llm-d.ai/role"),
        (
            "worker",
            {**IMAGE, "engine": "tgi", "autoscaling": {"enabled": True}},
            "knows the metrics of sglang, trtllm-serve, vllm, not those of engine=tgi",
        ),
        (
            "worker",
            {**IMAGE, "role": "prefill", "autoscaling": {"enabled": True, "waitingRequests": 0}},
            "above 0: autoscaling.waitingRequests",
        ),
        (
            "worker",
            {**IMAGE, "autoscaling": {"enabled": True, "minReplicas": 5}},
            "autoscaling.minReplicas is more than autoscaling.maxReplicas",
        ),
        ("frontend", {"image": "x"}, "'image' not allowed"),
        ("epp", {**IMAGE, "secureServing": False, "tlsSecret": "tls"}, "tlsSecret needs secureServing"),
        ("epp", {**IMAGE, "inferencePool": {"failureMode": "Open"}}, "/inferencePool/failureMode"),
        (
            "epp",
            {**IMAGE, "inferencePool": {"create": True}, "workers": {"kubernetesNamespace": "gpu"}},
            "selects pods of its own namespace",
        ),
    ],
)
def test_bad_values_are_refused_by_name(chart: str, values: Mapping[str, Any], words: str) -> None:
    refused = helm("template", "r", str(CHARTS / chart), values=values)
    assert refused.returncode != 0
    assert words in refused.stderr


@pytest.mark.parametrize(
    ("chart", "values", "expected"),
    [
        ("worker", IMAGE, LIST),
        ("worker", {**IMAGE, "registry": {"assertService": False}}, None),
        ("worker", {**IMAGE, "watchesOthers": True}, [*LIST, *WATCH]),
        ("frontend", {}, WATCH),
        ("frontend", {"explain": True}, [*WATCH, *EXPLAIN]),
        ("epp", {**IMAGE, **ALONE}, WATCH),
        ("epp", {**IMAGE, **ALONE, "explain": True}, [*WATCH, *EXPLAIN]),
        ("epp", {**IMAGE, **ALONE, "modelServers": {"matchLabels": {"app": "vllm"}}}, rules(WATCH_PODS)),
        ("epp", {**POOL, **ALONE}, [*rules(WATCH_PODS), *WHOLE_ROLE[:1], *WHOLE_ROLE[2:]]),
    ],
)
def test_the_rights_are_those_that_the_code_needs(
    chart: str, values: Mapping[str, Any], expected: Any
) -> None:
    objects = render(chart, values)
    if expected is None:
        assert not [found for found in objects if found["kind"] in ("Role", "RoleBinding")]
        assert pod_spec(objects)["automountServiceAccountToken"] is False
        return
    role, binding, account = (one(objects, kind) for kind in ("Role", "RoleBinding", "ServiceAccount"))
    assert role["rules"] == expected
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "prod"}
    ]
    if chart != "frontend":
        assert pod_spec(objects)["serviceAccountName"] == account["metadata"]["name"]
        assert pod_spec(objects).get("automountServiceAccountToken", True) is True


def test_rights_are_given_where_the_workers_run() -> None:
    for chart, values in (
        ("frontend", {"workersNamespace": "gpu"}),
        ("epp", {**IMAGE, **ALONE, "workers": {"kubernetesNamespace": "gpu"}}),
    ):
        objects = render(chart, values)
        assert one(objects, "Role")["metadata"]["namespace"] == "gpu"
        assert one(objects, "RoleBinding")["metadata"]["namespace"] == "gpu"
        assert one(objects, "ServiceAccount")["metadata"]["namespace"] == "prod"


@pytest.mark.parametrize("template", ["dynamo-{component}-service", "{namespace}-{component}"])
def test_worker_service_pods_pool_and_code_agree(template: str) -> None:
    key = ComponentKey("dynamo", "prefill")
    who = {**IMAGE, "namespace": key.namespace, "component": key.component}
    workers = render("worker", {**who, "service": {"template": template}})
    workers_service = one(workers, "Service")
    picker = render(
        "epp", {**who, "inferencePool": {"create": True}, "workers": {"serviceTemplate": template}}, "pool"
    )
    pool = one(picker, "InferencePool")
    assert workers_service["metadata"]["name"] == ServiceSelection(template).service(key)
    assert workers_service["spec"]["selector"] == pool["spec"]["selector"]["matchLabels"] == labels_of(key)
    assert labels_of(key).items() <= workers_service["metadata"]["labels"].items()
    assert labels_of(key).items() <= workload(workers)["spec"]["template"]["metadata"]["labels"].items()
    assert pool["spec"]["endpointPickerRef"]["name"] == service(picker)["metadata"]["name"]
    serving = next(port for port in workers_service["spec"]["ports"] if port["name"] == "serving")
    assert pool["spec"]["targetPorts"] == [{"number": serving["targetPort"]}]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_worker_is_probed_where_the_registry_serves(kind: str) -> None:
    objects = render("worker", {**IMAGE, "kind": kind})
    worker = container(objects, "worker")
    (contract,) = [port for port in worker["ports"] if port["name"] == "http"]
    (listed,) = [port for port in one(objects, "Service")["spec"]["ports"] if port["name"] == "http"]
    assert contract["containerPort"] == listed["targetPort"] == DEFAULT_PORT
    assert worker["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert worker["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert worker["startupProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    startup = worker["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] == 3600
    if kind == "StatefulSet":
        assert workload(objects)["spec"]["serviceName"] == one(objects, "Service")["metadata"]["name"]
        assert one(objects, "Service")["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("sidecar", [False, True])
def test_the_pod_knows_itself(sidecar: bool, tmp_path: Path) -> None:
    """The files and variables of the manifest, filled in as kubelet does, are all that the registry asks for."""
    objects = render("worker", {**IMAGE, "sidecar": {"enabled": sidecar, "image": "a"}})
    registering = container(objects, "registry" if sidecar else "worker")
    mount = next(m for m in registering["volumeMounts"] if m["name"] == "podinfo")
    assert mount["mountPath"] == DEFAULT_PODINFO
    volume = next(v for v in pod_spec(objects)["volumes"] if v["name"] == "podinfo")
    for item in volume["downwardAPI"]["items"]:
        field = item["fieldRef"]["fieldPath"].removeprefix("metadata.")
        (tmp_path / item["path"]).write_text('a="b"\n' if field == "labels" else f"the-{field}")
    variables = {variable["name"]: variable for variable in registering["env"]}
    assert variables["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    pod = read_pod({"ADSUM_PODINFO": str(tmp_path), "POD_IP": "10.0.0.1"})
    assert (pod.name, pod.uid, pod.namespace, dict(pod.labels)) == (
        "the-name",
        "the-uid",
        "the-namespace",
        {"a": "b"},
    )
    assert variables["ADSUM_DISCOVERY"]["value"] == "kubernetes://"


def test_there_is_time_to_drain() -> None:
    drain = {"preStopSeconds": 7, "timeoutSeconds": 90}
    objects = render("worker", {**IMAGE, "drain": drain, "sidecar": {"enabled": True, "image": "a"}})
    assert container(objects, "worker")["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert "lifecycle" not in container(objects, "registry"), "the sidecar tells watchers at once"
    assert "--drain-timeout=97s" in container(objects, "registry")["args"]
    assert pod_spec(objects)["terminationGracePeriodSeconds"] > 97
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert budget["selector"] == workload(objects)["spec"]["selector"]


def test_the_sidecar_takes_its_arguments() -> None:
    from registry.__main__ import build_parser

    metadata = {"model": {"name": "m"}}
    sidecar = {"enabled": True, "image": "a", "metadata": metadata, "modelsPath": ""}
    objects = render("worker", {**IMAGE, "sidecar": sidecar, "engine": "vllm"})
    options = build_parser().parse_args(container(objects, "registry")["args"])
    assert (options.component, str(options.server), options.port) == ("decode", "http://127.0.0.1:8000", 8080)
    assert (options.models_path, options.engine) == ("", "vllm")
    ((name, text),) = one(objects, "ConfigMap")["data"].items()
    assert json.loads(text) == metadata
    assert str(options.metadata_file) == f"/etc/adsum/{name}"


@pytest.mark.parametrize("values", VALUES["epp"])
def test_the_picker_takes_its_flags(values: Mapping[str, Any]) -> None:
    objects = render("epp", values)
    picker = container(objects, "epp")
    settings, _, ignored = parse_epp_flags(picker["args"])
    assert ignored == []
    ports = {port["name"]: port["containerPort"] for port in picker["ports"]}
    assert (settings.grpc_port, settings.grpc_health_port, settings.metrics_port) == (
        ports["grpc"],
        ports["grpc-health"],
        ports["metrics"],
    )
    assert (
        picker["readinessProbe"]["grpc"]["port"]
        == picker["livenessProbe"]["grpc"]["port"]
        == ports["grpc-health"]
    )
    mounted = {mount["name"]: mount["mountPath"] for mount in picker.get("volumeMounts", [])}
    assert (str(settings.cert_path) if settings.cert_path else None) == mounted.get("tls")
    if settings.config_file is not None:
        assert str(settings.config_file.parent) == mounted["config"]
        assert settings.config_file.name in one(objects, "ConfigMap")["data"]
    assert dict(settings.objectives) == values.get("objectives", {})
    selector = service(objects)["spec"]["selector"]
    assert selector.items() <= workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    services = [found["spec"] for found in objects if found["kind"] == "Service"]
    targets = {port["targetPort"] for spec in services for port in spec["ports"]}
    assert targets == ports.keys()


def test_a_changed_configuration_is_no_reason_to_restart() -> None:
    """A new picker knows no prefixes, and a running one reads the file again."""
    made = {"apiVersion": "llm-d.ai/v1", "kind": KIND}
    before, after = (
        render("epp", {**IMAGE, "config": {**made, "plugins": more}}) for more in ([], [{"type": "a"}])
    )
    assert one(before, "ConfigMap") != one(after, "ConfigMap")
    assert workload(before) == workload(after)
    (mount,) = [one for one in container(after, "epp")["volumeMounts"] if one["name"] == "config"]
    assert "subPath" not in mount, "kubelet does not update those"


def test_the_monitor_finds_the_picker() -> None:
    objects = render("epp", {**IMAGE, "podMonitor": {"enabled": True, "labels": {"release": "p"}}})
    monitor = one(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "p"
    assert monitor["spec"]["selector"] == workload(objects)["spec"]["selector"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container(objects, "epp")["ports"]}


EXAMPLE = CHARTS / "worker" / "examples" / "vllm.yaml"


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_picker_survives_the_drain_of_its_node(replicas: int) -> None:
    objects = render("epp", {**IMAGE, "replicas": replicas})
    budgets = [found for found in objects if found["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == (replicas > 1), "a budget over one pod either does nothing or holds up the drain"
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"] == workload(objects)["spec"]["selector"]
    (spread,) = pod_spec(objects)["topologySpreadConstraints"]
    assert spread["labelSelector"] == workload(objects)["spec"]["selector"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )


def test_by_default_there_are_two_pickers_with_a_memory_limit() -> None:
    objects = render("epp", IMAGE)
    assert workload(objects)["spec"]["replicas"] == 2
    assert "memory" in container(objects, "epp")["resources"]["limits"]
    settings, _, _ = parse_epp_flags(container(objects, "epp")["args"])
    limit = int(container(objects, "epp")["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    assert limit >= 2 * settings.max_buffered_bytes


def notes(folder: Path, **values: Any) -> str:
    """`helm template` leaves NOTES.txt out: here a copy of the chart renders it as a file of its own."""
    chart = folder / "epp"
    shutil.copytree(CHARTS / "epp", chart, dirs_exist_ok=True)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text('said: {{ tpl (.Files.Get "notes.txt") . | quote }}\n')
    done = helm("template", "r", str(chart), values={**IMAGE, **values})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_picker_is_warned_of(tmp_path: Path) -> None:
    for replicas, warned in ((1, True), (2, False)):
        assert ("With one replica every request is refused" in notes(tmp_path, replicas=replicas)) is warned


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, set()),
        ({"peers": {"enabled": False}}, {"peers=false"}),
        (
            {"config": {"apiVersion": "llm-d.ai/v1", "kind": KIND}},
            {"pickerConfig.configMap=r", "pickerConfig.key=config.yaml"},
        ),
    ],
)
def test_the_command_for_the_gateway_says_what_it_must_know(
    values: Mapping[str, Any], words: set[str], tmp_path: Path
) -> None:
    said = yaml.safe_load_all(notes(tmp_path, **values))
    (text,) = [found["said"] for found in said if found and "said" in found]
    (command,) = re.findall(r"helm install gateway (.*\n.*)", text)
    given = set(re.findall(r"--set (\S+)", command))
    assert words == {word for word in given if word.startswith(("peers", "pickerConfig"))}


def test_several_pickers_with_a_limit_of_each_are_warned_of(tmp_path: Path) -> None:
    named = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    config = named | {"plugins": [{"type": "concurrency-detector"}]}
    for replicas, given, peers, warned in (
        (3, config, False, True),
        (1, config, False, False),
        (3, {}, False, False),
        (3, config, True, False),
    ):
        shown = notes(tmp_path, replicas=replicas, config=given, peers={"enabled": peers})
        assert ("3 replicas admit 3 times its maxConcurrency" in shown) is warned


@pytest.mark.parametrize(
    ("values", "holders"),
    [
        ({}, {"registry"}),
        ({"watchesOthers": True}, {"registry", "worker"}),
        ({"registry": {"assertService": False}}, set()),
    ],
)
def test_only_who_asks_the_api_has_its_token(values: Mapping[str, Any], holders: set[str]) -> None:
    objects = render("worker", {**IMAGE, "sidecar": {"enabled": True, "image": "a"}, **values})
    assert pod_spec(objects)["automountServiceAccountToken"] is False
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounting = {
        holder["name"]: mount["name"]
        for holder in pod_spec(objects)["containers"]
        for mount in holder.get("volumeMounts", [])
        if mount["mountPath"] == place
    }
    assert mounting.keys() == holders
    volumes = {volume["name"]: volume for volume in pod_spec(objects)["volumes"]}
    for name in mounting.values():
        sources = [next(iter(source)) for source in volumes[name]["projected"]["sources"]]
        assert sources == ["serviceAccountToken", "configMap", "downwardAPI"]


def test_a_worker_may_not_gain_privileges() -> None:
    said = container(render("worker", IMAGE), "worker")["securityContext"]
    assert (said["allowPrivilegeEscalation"], said["capabilities"]) == (False, {"drop": ["ALL"]})
    assert said["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("registered_by", ["worker", "registry"])
def test_the_sidecar_of_a_decode_worker_stands_where_requests_go(registered_by: str) -> None:
    beside = {"enabled": registered_by == "registry", "image": "a"}
    objects = render("worker", {**IMAGE, "component": "chat", "pdSidecar": PD_SIDECAR, "sidecar": beside})
    sidecar, server = container(objects, "pd-sidecar"), container(objects, "worker")
    options = pd_parser().parse_args(sidecar["args"][1:])
    (listed,) = [port for port in one(objects, "Service")["spec"]["ports"] if port["name"] == "serving"]
    assert options.port == listed["targetPort"] == sidecar["ports"][0]["containerPort"] == 8000
    assert {"name": "model-server", "containerPort": options.model_server_port} in server["ports"]
    assert options.prefill_component == ("dynamo", "chat")
    assert options.prefill_max_retries == 1
    assert "serving" not in [port["name"] for port in server["ports"]]
    assert one(objects, "Role")["rules"] == LIST + WATCH, "it watches who the prefill workers are"
    holders = {
        found["name"]
        for found in pod_spec(objects)["containers"]
        if "api-token" in [mount["name"] for mount in found.get("volumeMounts", [])]
    }
    assert holders == {"pd-sidecar", registered_by}
    assert pod_spec(objects)["automountServiceAccountToken"] is False


def test_the_connectors_of_the_schema_are_those_of_the_sidecar() -> None:
    schema = json.loads((CHARTS / "worker/values.schema.json").read_text())
    assert schema["properties"]["pdSidecar"]["properties"]["connector"]["enum"] == list(CONNECTORS)


@pytest.mark.parametrize("role", sorted(DECODE_ROLES | PREFILL_ROLES | ENCODE_ROLES))
def test_a_role_is_the_label_that_the_picker_reads(role: str) -> None:
    labels = workload(render("worker", {**IMAGE, "role": role}))["spec"]["template"]["metadata"]["labels"]
    instance = Instance("a", "dynamo", "decode", "10.0.0.1", 8000, "1", labels=labels)
    assert read_endpoint(instance, {}, EndpointDefaults()).labels[ROLE_LABEL] == role
    assert ROLE_LABEL not in workload(render("worker", IMAGE))["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("engine", ["", "vllm", "sglang", "trtllm-serve"])
@pytest.mark.parametrize(
    ("role", "numbers"),
    [
        ("prefill", {WAITING: "2"}),
        ("encode", {WAITING: "2"}),
        ("decode", {RUNNING: "48", KV_USAGE: "750m"}),
        ("both", {WAITING: "2", RUNNING: "48", KV_USAGE: "750m"}),
    ],
)
def test_workers_are_scaled_on_what_their_role_runs_out_of(
    engine: str, role: str, numbers: Mapping[WorkerMetric, str]
) -> None:
    scaling = {"enabled": True, "runningRequests": 48}
    values = {**IMAGE, "role": role, "engine": engine, "kind": "StatefulSet", "autoscaling": scaling}
    objects = render("worker", values)
    scaled = one(objects, "HorizontalPodAutoscaler")["spec"]
    assert scaled["scaleTargetRef"]["kind"] == "StatefulSet"
    assert "replicas" not in workload(objects)["spec"]
    found = {
        metric["pods"]["metric"]["name"]: metric["pods"]["target"]["averageValue"]
        for metric in scaled["metrics"]
    }
    names = {number.series[engine or "vllm"].split("|")[0]: value for number, value in numbers.items()}
    assert found == names, "the names of the numbers that a picker reads of such a worker"


def test_the_vllm_example_is_a_whole_worker() -> None:
    values = yaml.safe_load(EXAMPLE.read_text())
    assert helm("lint", str(CHARTS / "worker"), "--strict", values=values).returncode == 0
    objects = render("worker", values)
    server = container(objects, "worker")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    mounts = {mount["mountPath"]: mount["name"] for mount in server["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod_spec(objects)["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    cache = {variable["name"]: variable for variable in server["env"]}
    assert "persistentVolumeClaim" in volumes[mounts[cache["HF_HOME"]["value"]]]
    assert "secretKeyRef" in cache["HF_TOKEN"]["valueFrom"]
    assert workload(objects)["spec"]["template"]["metadata"]["labels"]["llm-d.ai/engine-type"] == "vllm"
    assert "livenessProbe" in server

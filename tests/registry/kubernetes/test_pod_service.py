"""Which Services make a pod visible to discovery, and what is said when none does."""

from typing import Any

import msgspec
import pytest

from discovery import RegistrationError
from discovery.kubernetes.slices.source import LabelSelection, ServiceSelection
from discovery.source import ComponentKey
from registry.kubernetes.pod import OwnPod
from registry.kubernetes.pod_service import PodServiceList, Visibility

KEY = ComponentKey("dynamo", "decode")
LABELS = {
    "app": "llm",
    "nvidia.com/dynamo-namespace": "dynamo",
    "nvidia.com/dynamo-component": "decode",
}
SELECTOR = {name: value for name, value in LABELS.items() if name != "app"}


def service(name: str = "dynamo-decode-service", port: int = 8080, **spec: Any) -> dict[str, Any]:
    """A Service as the API server shows it; `spec` replaces parts of its spec."""
    ports = [{"name": "http", "port": port, "protocol": "TCP", "targetPort": port}]
    whole = {"selector": SELECTOR, "ports": ports, "type": "ClusterIP", "clusterIP": "None"}
    return {"metadata": {"name": name, "namespace": "prod", "uid": "u"}, "spec": {**whole, **spec}}


@pytest.mark.parametrize(
    ("services", "selection", "words"),
    [
        (
            [],
            ServiceSelection(),
            ["no Service in namespace 'prod' selects it", "  name: dynamo-decode-service\n"],
        ),
        (None, ServiceSelection(), ["no Service in namespace 'prod' selects it"]),
        (
            [service(selector={"app": "web"})],
            ServiceSelection(),
            ["Service dynamo-decode-service exists, but it selects app=web (the pod has llm)"],
        ),
        ([service(selector=None)], ServiceSelection(), ["it has no selector"]),
        ([service(selector={})], ServiceSelection(), ["it has no selector"]),
        ([service(type="ExternalName")], ServiceSelection(), ["ExternalName"]),
        (
            [service("mine")],
            ServiceSelection(),
            ["Service mine selects it, but discovery watches 'dynamo-decode-service'", "`service=`"],
        ),
        (
            [service()],
            LabelSelection(),
            ["does not carry the labels", "  labels:\n    nvidia.com/dynamo-namespace: dynamo\n"],
        ),
        ([service(ports=[])], ServiceSelection(), ["no port named 'http' (it has none)"]),
        (
            [service(ports=[{"port": 8080}])],
            ServiceSelection(),
            ["no port named 'http' (it has '')", "{name: http, port: 8080, targetPort: 8080}"],
        ),
        (
            [service(ports=[{"name": "http", "port": 8080, "targetPort": 9000}])],
            ServiceSelection(),
            ["has targetPort 9000 for its port 'http', but the worker's contract is served on 8080"],
        ),
    ],
)
def test_why_a_pod_is_invisible(services: Any, selection: Any, words: list[str]) -> None:
    with pytest.raises(RegistrationError) as raised:
        check(services, selection)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    ("services", "selection"),
    [
        ([service("a", selector={"x": "y"}), service()], ServiceSelection()),
        ([service("dynamo-dynamo-decode")], ServiceSelection("dynamo-{namespace}-{component}")),
        ([service(selector={"app": "llm"})], ServiceSelection()),
        ([service(ports=[{"name": "http", "port": 80, "targetPort": "http"}])], ServiceSelection()),
        ([service(ports=[{"name": "http", "port": 8080}])], ServiceSelection()),
        ([{**service("any"), "metadata": {"name": "any", "labels": SELECTOR}}], LabelSelection()),
    ],
)
def test_what_makes_a_pod_visible(services: Any, selection: Any) -> None:
    check(services, selection)


def check(services: Any, selection: Any) -> None:
    decoded = msgspec.convert({"items": services}, PodServiceList).items or []
    visibility = Visibility(KEY, selection.service(KEY), "http", 8080)
    visibility.check(OwnPod("decode-7d9f-abcde", "u", "prod", "10.0.0.1", LABELS), decoded)

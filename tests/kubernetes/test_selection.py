"""The selector of a component's slices, and the parameters of a `kubernetes://` URL."""

import pytest

import discovery
from discovery.kubernetes import LabelSelection, ServiceSelection
from discovery.kubernetes.opening import DeferredSource, open_kubernetes
from discovery.source import component_key

KEY = component_key("dynamo", "decode")


def test_the_default_is_dynamos_service_name() -> None:
    assert ServiceSelection().selector(KEY) == "kubernetes.io/service-name=dynamo-decode-service"


def test_a_template_may_hold_the_namespace() -> None:
    selection = ServiceSelection("{namespace}-{component}")
    assert selection.selector(KEY) == "kubernetes.io/service-name=dynamo-decode"
    assert selection.service(KEY) != selection.service(component_key("dynamo-decode", "x"))


def test_labels_match_whole_values() -> None:
    selector = LabelSelection().selector(KEY)
    assert selector == "nvidia.com/dynamo-namespace=dynamo,nvidia.com/dynamo-component=decode"


@pytest.mark.parametrize(
    "template", ["{pod}", "{component.x}", "{component!r}", "{component:>5}", "{0}", "{", "{}"]
)
def test_a_template_with_unknown_fields(template: str) -> None:
    with pytest.raises(ValueError, match="Service template"):
        ServiceSelection(template)


@pytest.mark.parametrize("template", ["{component}", "Big-{component}", "a.{component}", "{component}-"])
def test_a_rendered_name_that_no_service_can_have(template: str) -> None:
    key = component_key("n", "1decode") if template == "{component}" else KEY
    with pytest.raises(ValueError, match="DNS-1035 label"):
        ServiceSelection(template).service(key)


def test_a_rendered_name_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="at most 63 characters"):
        ServiceSelection().selector(component_key("n", "a" * 60))


@pytest.mark.parametrize(
    "url",
    [
        "kubernetes://",
        "kubernetes://prod",
        "kubernetes://prod?service={namespace}-{component}&port=grpc&grace=0",
        "kubernetes://?labels=true&context=here&kubeconfig=/tmp/config",
        "kubernetes://prod?server=http://127.0.0.1:8001&assert_service=false",
    ],
)
def test_what_a_url_may_say(url: str) -> None:
    assert isinstance(discovery.opening.open_source(url), DeferredSource)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kubernetes://Prod", "DNS-1123"),
        ("kubernetes://prod/decode", "has a path"),
        ("kubernetes://prod?services=x", "unknown parameter services"),
        ("kubernetes://?port=a&port=b", "appears twice"),
        ("kubernetes://?service=x&labels=true", "exclude each other"),
        ("kubernetes://?service={pod}", "{pod} is unknown"),
        ("kubernetes://?labels=yes", "expected true or false"),
        ("kubernetes://?grace=soon", "expected seconds from 0 to 60"),
        ("kubernetes://?grace=-1", "expected seconds from 0 to 60"),
        ("kubernetes://?grace=nan", "expected seconds from 0 to 60"),
        ("kubernetes://?server=127.0.0.1:8001", "is not a URL"),
        ("kubernetes://?server=http://a:1&context=b", "uses no credentials"),
    ],
)
def test_what_a_url_may_not_say(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_kubernetes(url)


async def test_a_component_without_a_possible_service_is_an_error() -> None:
    async with discovery.open("kubernetes://prod?server=http://127.0.0.1:1") as service:
        with pytest.raises(ValueError, match="at most 63 characters"):
            await service.list_instances("n", "a" * 60)


async def test_no_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with discovery.open("kubernetes://prod?kubeconfig=/nowhere/config") as service:
        with pytest.raises(discovery.DiscoveryError, match="no kubeconfig at /nowhere/config"):
            await service.list_instances("n", "decode")

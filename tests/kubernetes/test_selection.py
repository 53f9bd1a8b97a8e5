"""The selector of a component's slices or of an InferencePool, label selectors, and the `kubernetes://` URLs that name them."""

import re
from typing import Any
from urllib.parse import quote

import pytest

import discovery
from discovery.kubernetes import LabelSelection, ServiceSelection
from discovery.kubernetes.opening import DeferredSource
from discovery.kubernetes.pods.selection import (
    OLD_POOL_GROUP,
    POOL_GROUP,
    PodTargets,
    PoolReference,
    check_label_selector,
    read_targets,
)
from discovery.opening import open_source
from discovery.source import component_key
from tests.kubernetes.fake.objects import inference_pool, old_inference_pool

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


@pytest.mark.parametrize(
    "url",
    [
        "kubernetes://",
        "kubernetes://prod",
        "kubernetes://prod?service={namespace}-{component}&port=grpc&grace=0",
        "kubernetes://?labels=true&context=here&kubeconfig=/tmp/config",
        "kubernetes://prod?server=http://127.0.0.1:8001&assert_service=false",
        "kubernetes://?pool=p",
        "kubernetes://llm?pool=p.q-1&grace=2",
        f"kubernetes://llm?pool=p&group={OLD_POOL_GROUP}&context=prod",
        "kubernetes://llm?selector=app%3Dvllm&ports=8000,8001",
        f"kubernetes://?selector={quote('env in (a,b),!spot')}&ports=8000&server=http://127.0.0.1:1",
    ],
)
def test_what_a_url_may_say(url: str) -> None:
    source = open_source(url)
    assert isinstance(source, DeferredSource)
    assert source.needs_documents is not ("pool=" in url or "selector=" in url)


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
        ("kubernetes://?pool=P", "InferencePool name 'P'"),
        ("kubernetes://?pool=", "InferencePool name ''"),
        ("kubernetes://?pool=p&group=x.io", "group 'x.io'; expected one of inference.networking.k8s.io"),
        ("kubernetes://?pool=p&selector=a", "expected pool=NAME"),
        ("kubernetes://?group=inference.networking.k8s.io", "expected pool=NAME"),
        ("kubernetes://?selector=a", "both selector= and ports="),
        ("kubernetes://?ports=8000", "both selector= and ports="),
        ("kubernetes://?selector=a&ports=", "target port ''"),
        ("kubernetes://?selector=a&ports=80,80", "expected 1 to 8 different ports"),
        ("kubernetes://?selector=a&ports=1,2,3,4,5,6,7,8,9", "expected 1 to 8 different ports"),
        ("kubernetes://?selector=a&ports=0", "target port 0"),
        ("kubernetes://?selector=a&ports=-1", "target port '-1'"),
        ("kubernetes://?selector=a b&ports=80", "cannot be read"),
        ("kubernetes://?pool=p&service=x", "exclude each other"),
        ("kubernetes://?selector=a&ports=80&port=http", "exclude each other"),
    ],
)
def test_what_a_url_may_not_say(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        open_source(url)


async def test_a_component_without_a_possible_service_is_an_error() -> None:
    async with discovery.open("kubernetes://prod?server=http://127.0.0.1:1") as service:
        with pytest.raises(ValueError, match="at most 63 characters"):
            await service.list_instances("n", "a" * 60)


def test_both_groups() -> None:
    labels = {"app": "vllm", "llm-d.ai/role": "decode"}
    wanted = "app=vllm,llm-d.ai/role=decode"
    assert read_targets(inference_pool("p", 8000, 8001, labels=labels), POOL_GROUP) == PodTargets(
        wanted, (8000, 8001)
    )
    assert read_targets(old_inference_pool("p", 8000, labels), OLD_POOL_GROUP) == PodTargets(wanted, (8000,))
    assert read_targets(inference_pool("p", 8000, labels={}), POOL_GROUP) == PodTargets("", (8000,))


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({}, "its spec cannot be read"),
        ({"spec": None}, "its spec cannot be read"),
        (old_inference_pool("p", 8000), "its spec cannot be read"),
        (inference_pool("p"), "target ports (none); expected 1 to 8"),
        (inference_pool("p", 1, 1), "target ports 1,1; expected 1 to 8 different"),
        (inference_pool("p", *range(1, 10)), "expected 1 to 8"),
        (inference_pool("p", 65536), "target port 65536"),
        (inference_pool("p", 8000, labels={"a": "b,c=d"}), "'a=b,c=d' is not a label"),
        (inference_pool("p", 8000, labels={"!a": "b"}), "is not a label"),
    ],
)
def test_what_no_definition_allows(pool: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_targets(pool, POOL_GROUP)


@pytest.mark.parametrize(
    "text",
    [
        "app=vllm",
        "app==vllm, tier!=test",
        "env in (prod,staging),tier notin ( a , b )",
        "gpu,!spot, ! old",
        "llm-d.ai/role=decode,empty=",
        "x in ()",
        "count>5,count<9",
    ],
)
def test_label_selectors_of_kubernetes(text: str) -> None:
    assert check_label_selector(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app=vllm,",
        ",app",
        "app = a b",
        "a in (b",
        "-a",
        "a=-",
        "a=b c=d",
        "a/b/c",
        "=b",
        "a" * 64,
        "a=" + "x," * 3000,
    ],
)
def test_what_is_no_label_selector(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        check_label_selector(text)


def test_a_pool_says_where_it_is() -> None:
    assert (
        PoolReference("p").path("llm") == "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
    )
    assert PoolReference("p", OLD_POOL_GROUP).path("llm") == (
        "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferencepools"
    )

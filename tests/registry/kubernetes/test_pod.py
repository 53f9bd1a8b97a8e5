"""What a pod reads of itself from the downward API, and which Services make it visible to discovery."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import RegistrationError
from discovery.kubernetes.slices.source import LabelSelection, ServiceSelection
from registry.kubernetes.pod import OwnPod, parse_labels, read_pod
from registry.kubernetes.pod_service import PodServiceList, Visibility
from tests.registry.kubernetes.services import KEY, LABELS, SELECTOR, service


def test_variables_win_over_files_and_each_may_come_from_either(tmp_path: Path) -> None:
    for name, text in {"name": "file", "namespace": "prod\n", "labels": 'a="b"\n'}.items():
        (tmp_path / name).write_text(text)
    found = read_pod({"ADSUM_PODINFO": str(tmp_path), "POD_UID": "u1", "POD_NAME": "n1", "POD_IP": ""})
    assert (found.name, found.uid, found.namespace, found.address) == ("n1", "u1", "prod", None)
    assert dict(found.labels) == {"a": "b"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    with pytest.raises(RegistrationError, match="labels cannot be read"):
        read_pod({"ADSUM_PODINFO": str(tmp_path), "POD_UID": "u", "POD_NAME": "n", "POD_NAMESPACE": "p"})


def test_labels_as_the_downward_api_writes_them() -> None:
    assert parse_labels('a="1"\nb.io/c=""\n') == {"a": "1", "b.io/c": ""}
    assert parse_labels("") == {}


@given(
    st.dictionaries(
        st.from_regex(r"([a-z0-9]+(\.[a-z]+)*/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,61}", fullmatch=True),
        st.from_regex(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?", fullmatch=True),
    )
)
def test_every_label_that_a_pod_can_have_is_read(labels: dict[str, str]) -> None:
    assert parse_labels("\n".join(f'{key}="{value}"' for key, value in sorted(labels.items()))) == labels


@pytest.mark.parametrize("text", ["a=b", "a", '="b"', 'a="b" c="d"', 'a="b', '"a"="b"'])
def test_a_line_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(RegistrationError, match="is not key="):
        parse_labels(f'x="y"\n{text}\n')


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

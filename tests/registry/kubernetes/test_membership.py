"""A pod's registration: what it reads of itself, what it asks the API server, and which Services make it visible."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import registry
from discovery import Instance, RegistrationError
from discovery.kubernetes.api.credentials import Cluster
from discovery.kubernetes.api.objects import Service
from discovery.kubernetes.api.transport import ApiTransport, ClusterTransport
from discovery.kubernetes.slices.source import LabelSelection, ServiceSelection
from registry.kubernetes.membership import KubernetesMembership, ServiceCheck, open_pod
from registry.kubernetes.pod import OwnPod, parse_labels, read_pod
from registry.kubernetes.pod_service import Visibility
from registry.registration import Announcement
from tests.free_port import free_port
from tests.http_server import http_server
from tests.raw_server import raw_server
from tests.registry.kubernetes.services import KEY, LABELS, SELECTOR, service


@dataclass
class ApiServer:
    """Answers `GET services` with `services`, or with `status` and `body` for as long as `failures` lasts."""

    services: list[dict[str, Any]] | None = None
    status: int = 200
    body: str = ""
    failures: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        if self.status != 200 and len(self.asked) <= self.failures:
            return web.Response(status=self.status, text=self.body, headers=self.headers)
        if self.body and self.status == 200:
            return web.Response(text=self.body, content_type="text/html")
        listed = {"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": self.services}
        return web.json_response(listed)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    async with http_server({"/{path:.*}": server.answer}) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


@pytest.fixture
def port() -> int:
    """One that nobody listens on now."""
    return free_port()


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    """The environment of a pod whose downward API files are complete."""
    folder = tmp_path / "podinfo"
    folder.mkdir()
    (folder / "name").write_text("decode-7d9f-abcde")
    (folder / "uid").write_text("0b5d9c0e-1111-2222-3333-444455556666")
    (folder / "namespace").write_text("prod")
    (folder / "labels").write_text("\n".join(f'{name}="{value}"' for name, value in LABELS.items()) + "\n")
    return {"ADSUM_PODINFO": str(folder), "POD_IP": "127.0.0.1"}


def opened(api: ApiServer, port: int, pod: dict[str, str], query: str = "", **told: Any) -> Any:
    return open_pod(f"kubernetes://?server={api.url}{query}", Announcement(port=port, **told), pod)


async def test_a_pod_is_registered_as_itself_and_nothing_is_written(
    api: ApiServer, port: int, pod: dict[str, str], client: aiohttp.ClientSession
) -> None:
    api.services = [service("other", selector={"app": "web"}), service(port=port)]
    async with opened(api, port, pod) as opened_registry:
        handle = await opened_registry.register_instance("dynamo", "decode")
        instance = handle.instance
        assert handle.instance_id() == "decode-7d9f-abcde"
        assert instance.incarnation == "0b5d9c0e-1111-2222-3333-444455556666"
        assert (instance.address, instance.port, dict(instance.labels)) == ("127.0.0.1", port, LABELS)
        async with client.get(f"http://127.0.0.1:{port}/health") as probe:
            assert probe.status == 503
        handle.set_metadata({"model": {"name": "m"}})
        handle.set_ready("ready")
        async with client.get(f"http://127.0.0.1:{port}/health") as probe:
            assert probe.status == 200
        async with client.get(f"http://127.0.0.1:{port}/metadata") as answer:
            assert answer.headers["Instance-Id"] == "decode-7d9f-abcde"
            assert answer.headers["Instance-Incarnation"] == instance.incarnation
            assert answer.headers["ETag"].startswith(f'"{instance.incarnation}.')
            assert (await answer.json())["model"] == {"name": "m"}
        handle.set_ready("draining")
        async with client.get(f"http://127.0.0.1:{port}/health") as probe:
            assert probe.status == 503
    assert api.asked == ["GET /api/v1/namespaces/prod/services"]


async def test_open_takes_the_url_and_the_environment(
    api: ApiServer, port: int, pod: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.services = [service(port=port)]
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(
        "ADSUM_DISCOVERY", f"kubernetes://prod?server={api.url}&service=dynamo-{{component}}-service"
    )
    async with registry.open(port=port).register_instance("dynamo", "decode") as handle:
        assert handle.instance_id() == "decode-7d9f-abcde"


async def test_without_the_assertion_no_api_server_is_asked(port: int, pod: dict[str, str]) -> None:
    async with open_pod("kubernetes://?assert_service=false", Announcement(port=port), pod).register_instance(
        "dynamo", "decode"
    ) as handle:
        assert handle.instance_id() == "decode-7d9f-abcde"


async def test_8080_and_the_pods_address_are_the_defaults(
    pod: dict[str, str], port: int, client: aiohttp.ClientSession
) -> None:
    url = "kubernetes://?assert_service=false"
    assert open_pod(url, Announcement(), pod)._announcement.port == 8080
    pod["POD_IP"] = "192.0.2.7"  # nobody's: the contract is served on every interface
    async with open_pod(url, Announcement("elsewhere", port), pod).register_instance(
        "dynamo", "decode"
    ) as handle:
        assert handle.instance.address == "192.0.2.7"
        async with client.get(f"http://127.0.0.1:{port}/live") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("missing", "lines"),
    [
        ("uid", ["own uid", "{path: uid, fieldRef: {fieldPath: metadata.uid}}"]),
        ("labels", ["own labels", "{path: labels, fieldRef: {fieldPath: metadata.labels}}", "volumeMounts"]),
    ],
)
async def test_what_the_pod_does_not_know_is_shown_as_manifest_lines(
    pod: dict[str, str], missing: str, lines: list[str]
) -> None:
    (Path(pod["ADSUM_PODINFO"]) / missing).unlink()
    message = await refusal(KubernetesMembership(None, environment=pod))
    assert all(line in message for line in lines)
    assert "metadata.name" not in message


async def test_outside_a_pod_everything_is_missing_and_it_says_where_else_to_register(tmp_path: Path) -> None:
    message = await refusal(KubernetesMembership(None, environment={"ADSUM_PODINFO": str(tmp_path / "none")}))
    assert "own name, uid, namespace, labels" in message
    assert "file:///path" in message


async def test_a_pod_without_an_address_is_told_the_lines(pod: dict[str, str]) -> None:
    del pod["POD_IP"]
    assert "fieldPath: status.podIP" in await refusal(KubernetesMembership(None, environment=pod))
    membership = KubernetesMembership(None, environment=pod, address="10.0.0.9")
    assert (await membership.join(proposal())).address == "10.0.0.9"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ('app="llm"\n', "nvidia.com/dynamo-namespace is missing, nvidia.com/dynamo-component is missing"),
        (
            'nvidia.com/dynamo-namespace="dynamo"\nnvidia.com/dynamo-component="prefill"\n',
            "nvidia.com/dynamo-component is prefill. Add",
        ),
    ],
)
async def test_a_pod_labelled_otherwise_is_refused_with_the_labels_it_needs(
    pod: dict[str, str], labels: str, words: str
) -> None:
    (Path(pod["ADSUM_PODINFO"]) / "labels").write_text(labels)
    message = await refusal(KubernetesMembership(None, environment=pod))
    assert words in message
    assert "      nvidia.com/dynamo-component: decode" in message


async def test_labels_that_are_none_are_refused(pod: dict[str, str]) -> None:
    (Path(pod["ADSUM_PODINFO"]) / "labels").write_text("app=llm\n")
    assert "'app=llm' is not key=\"value\"" in await refusal(KubernetesMembership(None, environment=pod))


async def test_another_identity_than_the_pods_is_refused(pod: dict[str, str]) -> None:
    named = KubernetesMembership(None, environment=pod, instance_id="decode-0")
    assert "instance id 'decode-0' was given" in await refusal(named)
    elsewhere = KubernetesMembership(None, environment=pod, namespace="staging")
    assert "Kubernetes namespace 'staging' was given" in await refusal(elsewhere)
    same = KubernetesMembership(None, environment=pod, namespace="prod", instance_id="decode-7d9f-abcde")
    assert (await same.join(proposal())).id == "decode-7d9f-abcde"


async def test_403_shows_the_exact_rule_and_what_the_server_said(
    api: ApiServer, port: int, pod: dict[str, str]
) -> None:
    said = 'services is forbidden: User "system:serviceaccount:prod:default" cannot list resource "services"'
    api.status, api.body = 403, msgspec.json.encode({"kind": "Status", "message": said}).decode()
    with pytest.raises(registry.RegistrationError) as raised:
        await opened(api, port, pod).register_instance("dynamo", "decode")
    assert said in str(raised.value)
    assert '- apiGroups: [""]\n  resources: ["services"]\n  verbs: [list]' in str(raised.value)
    assert "assert_service=false" in str(raised.value)
    assert len(api.asked) == 1
    with socket.create_server(("127.0.0.1", port)):  # nothing is left behind
        pass


async def test_a_long_answer_is_shown_short(api: ApiServer, port: int, pod: dict[str, str]) -> None:
    api.body = "x" * 9000
    with pytest.raises(registry.RegistrationError) as raised:
        await opened(api, port, pod).register_instance("dynamo", "decode")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(("status", "failures"), [(503, 2), (429, 1), (500, 1)])
async def test_an_api_server_that_is_away_for_a_moment_is_asked_again(
    api: ApiServer, port: int, pod: dict[str, str], status: int, failures: int
) -> None:
    api.status, api.body, api.failures = status, "<html>try later</html>", failures
    api.services = [service(port=port)]
    async with opened(api, port, pod).register_instance("dynamo", "decode"):
        assert len(api.asked) == failures + 1


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, "<html>log in</html>", "the answer cannot be read"),
        (200, '{"items": 3}', "the answer cannot be read"),
        (
            401,
            '{"kind":"Status","message":"Unauthorized"}',
            "HTTP 401: Unauthorized: the credentials are not accepted",
        ),
        (404, "nothing here", "HTTP 404: it serves no services there"),
        (302, "", "HTTP 302"),
    ],
)
async def test_an_answer_that_is_none_is_shown(
    api: ApiServer, port: int, pod: dict[str, str], status: int, body: str, words: str
) -> None:
    api.status, api.body = status, body
    with pytest.raises(registry.RegistrationError, match=words):
        await opened(api, port, pod).register_instance("dynamo", "decode")


async def test_a_server_that_asks_for_more_patience_than_there_is_is_asked_once(
    api: ApiServer, pod: dict[str, str]
) -> None:
    api.status, api.headers = 429, {"Retry-After": "60"}
    membership = KubernetesMembership(check_at(api.url, retry_timeout=5.0), environment=pod)
    assert "HTTP 429" in await refusal(membership)
    assert len(api.asked) == 1


async def test_an_api_server_that_stays_away_is_an_error_after_the_patience(
    pod: dict[str, str], port: int
) -> None:
    check = check_at(f"http://127.0.0.1:{port}", retry_timeout=0.2)
    message = await refusal(KubernetesMembership(check, environment=pod))
    assert f"127.0.0.1:{port}" in message
    assert "cannot be listed: /api/v1/namespaces/prod/services" in message


async def test_joining_can_be_cancelled_while_the_server_says_nothing(pod: dict[str, str]) -> None:
    async with raw_server(lambda reader, writer: asyncio.sleep(3600)) as silent:
        membership = KubernetesMembership(check_at(f"http://127.0.0.1:{silent}"), environment=pod)
        joining = asyncio.create_task(membership.join(proposal()))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await joining
        assert joining.cancelled()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kubernetes://?assert_service=no", "assert_service='no'; expected true or false"),
        ("kubernetes://?asert_service=false", "unknown parameter asert_service"),
        ("kubernetes://?service={pod}", "is unknown"),
    ],
)
def test_a_url_that_is_none_is_refused_at_the_door(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.open(url)


def check_at(url: str, **options: float) -> ServiceCheck:
    async def connect() -> ApiTransport:
        return ClusterTransport(Cluster(url))

    return ServiceCheck(connect, ServiceSelection(), **options)


async def refusal(membership: KubernetesMembership) -> str:
    with pytest.raises(registry.RegistrationError) as raised:
        await membership.join(proposal())
    await membership.leave()
    return str(raised.value)


def proposal() -> Instance:
    return Instance("decode-1", KEY.namespace, KEY.component, "127.0.0.1", 8080, "life1")


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
    decoded = msgspec.convert(services, list[Service])
    visibility = Visibility(KEY, selection.service(KEY), "http", 8080)
    visibility.check(OwnPod("decode-7d9f-abcde", "u", "prod", "10.0.0.1", LABELS), decoded)

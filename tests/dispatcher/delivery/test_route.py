import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.broker.contract.message import Request
from dispatcher.delivery.route import IllegalRequestError, Route, allowed_caller_headers, operator_headers

ROUTE = Route(
    paths=("/v1/chat/completions", "/v1/files/"),
    headers={"authorization": "Bearer operator", "x-team": "batch"},
    objective="batch-low",
    caller_headers=("x-trace",),
)


def request(**changes: object) -> Request:
    return Request(**({"id": "r1", "payload": b"{}", "deadline_ms": 1, "tenant": "acme"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("", "/v1/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions?stream=false", "/v1/chat/completions?stream=false"),
        ("/v1/files/a-b_c", "/v1/files/a-b_c"),
    ],
)
def test_29_paths_that_the_target_allows(asked: str, sent: str) -> None:
    assert ROUTE.request_path(asked) == sent


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/v1/chat/completions",
        "http://evil.example/v1/chat/completions",
        "@evil.example/",
        "v1/chat/completions",
        "/v1/files/../chat/completions",
        "/v1/files/%2e%2e/admin",
        "/v1/files/%252e%252e/admin",
        "/v1/files/..",
        "/v1/files//x",
        "/v1/files/%2f%2fevil.example",
        "/v1/files/a\\b",
        "/v1/files/%5c..",
        "/v1/chat/completions\r\nhost: evil.example",
        "/v1/files/%0d%0ahost:%20evil",
        "/v1/files/%00",
        "/v1/chat/completions HTTP/1.1",
        "/v1/chat/completions#x",
        "/v1/chat/completions/",
        "/v1/chat",
        "/V1/chat/completions",
        "/admin",
        "/",
        "/v1/files/é",
    ],
)
def test_29_paths_that_lead_elsewhere(path: str) -> None:
    with pytest.raises(IllegalRequestError, match="path"):
        ROUTE.request_path(path)


@given(st.text(max_size=30) | st.from_regex(r"/v1/files/[/.%a-f0-9\\]{0,20}", fullmatch=True))
@example("/v1/files/.%2e/x")
def test_29_no_path_leaves_its_folder(path: str) -> None:
    with contextlib.suppress(IllegalRequestError):
        sent = ROUTE.request_path(path)
        assert sent.startswith(("/v1/chat/completions", "/v1/files/"))
        assert ".." not in sent.split("/")
        assert re.fullmatch(r"[\x21-\x7e]+", sent)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Cookie", "TE", "Expect",
        "x-llm-d-inference-objective", "X-LLM-D-Inference-Fairness-Id", "x-gateway-inference-objective",
        "x-gateway-destination-endpoint", "X-Request-Id", "Idempotency-Key", "x-dispatch-attempt",
        "x-envoy-upstream-rq-timeout-ms", "X-Forwarded-For", "X-Team", "Accept-Encoding", "x-prefiller-host-port",
        "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port", "X-Original-Url",
        "x-rewrite-url", "X-HTTP-Method-Override", "x-anything",
    ],
)  # fmt: skip
def test_29_a_caller_overrides_nothing_of_the_operators(name: str) -> None:
    headers = ROUTE.request_headers(request(headers={name: "caller"}), attempt=0, timeout_ms=1000)
    assert "caller" not in headers.values()


def test_what_is_sent_with_a_request() -> None:
    given = {"X-Trace": "t", "Content-Type": "application/x-own", "OpenAI-Project": "p", "traceparent": "00"}
    asked = request(headers=given, objective="critical")
    headers = ROUTE.request_headers(asked, attempt=2, timeout_ms=1500)
    assert headers == {
        "content-type": "application/x-own",
        "openai-project": "p",
        "traceparent": "00",
        "x-trace": "t",
        "authorization": "Bearer operator",
        "x-team": "batch",
        "x-llm-d-inference-objective": "batch-low",
        "x-llm-d-inference-fairness-id": "acme",
        "x-request-id": "r1",
        "idempotency-key": asked.token,
        "x-dispatch-attempt": "3",
        "x-envoy-upstream-rq-timeout-ms": "1500",
    }


def test_an_objective_of_the_request_where_the_queue_has_none() -> None:
    headers = Route().request_headers(request(objective="sheddable"), attempt=0, timeout_ms=1)
    assert headers["x-llm-d-inference-objective"] == "sheddable"
    assert "x-llm-d-inference-objective" not in Route().request_headers(request(), attempt=0, timeout_ms=1)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "b\r\nhost: evil"},
        {"x-a": "b\nc"},
        {"x-a": "\x00"},
        {"x-a": "€"},
        {"x-a\r\n": "b"},
        {"x a": "b"},
        {"": "b"},
        {"x:a": "b"},
        {"é": "b"},
        {"x-a": "b" * 9000},
        {f"x-{number}": "" for number in range(65)},
        {"authorization": "a\r\nb"},
    ],
)
def test_headers_that_no_request_may_have(headers: dict[str, str]) -> None:
    with pytest.raises(IllegalRequestError, match="header"):
        ROUTE.request_headers(request(headers=headers), attempt=0, timeout_ms=1)


@given(st.text(min_size=1), st.text(min_size=1))
@example("\ud800", "é\r\n")
def test_every_id_and_tenant_can_be_sent(id: str, tenant: str) -> None:
    headers = ROUTE.request_headers(request(id=id, tenant=tenant), attempt=0, timeout_ms=1)
    for name in ("x-request-id", "x-llm-d-inference-fairness-id"):
        assert re.fullmatch(r"[\x21-\x7e]{1,256}", headers[name])


@pytest.mark.parametrize("name", ["Content-Length", "connection", "Transfer-Encoding", "a b", ""])
def test_headers_that_no_operator_sets(name: str) -> None:
    with pytest.raises(IllegalRequestError, match="cannot be set"):
        operator_headers({name: "1"})


def test_headers_of_an_operator() -> None:
    assert operator_headers({"Authorization": "Bearer x", "Host": "pool.example"}) == {
        "authorization": "Bearer x",
        "host": "pool.example",
    }


def test_29_a_token_that_is_no_token_of_ours_ends_no_header() -> None:
    request = Request("r", b"{}", 1, token="t\r\nx-llm-d-inference-fairness-id: other\r\n\r\n€")
    sent = Route().request_headers(request, 0, 1000)
    assert "\r" not in sent["idempotency-key"]
    sent["idempotency-key"].encode("ascii")


@pytest.mark.parametrize("name", ["Authorization", "host", "X-Envoy-Retry-On", "x-llm-d-x", "a b", ""])
def test_headers_that_no_configuration_leaves_to_callers(name: str) -> None:
    with pytest.raises(IllegalRequestError, match="no caller may set"):
        allowed_caller_headers([name])

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.process_usage import resident_megabytes
from epp.endpoints.datastore import Datastore
from epp.flow_control.controller import FlowController
from epp.request.inference_api import MAX_REPAIRED, HeldChat, replace_lone_surrogates, while_it_waits
from epp.request.inference_request import InferenceRequest, parse_request
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.saturation import UtilizationDetector
from tests.epp.flow_control.flow_settings import flow_settings
from tests.epp.scheduling.test_director import NOW, director

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
INPUT = {"model": "m", "input": "hi"}


def parse(body: object, path: str | None = "/v1/completions", **headers: str) -> InferenceRequest:
    raw = body if isinstance(body, bytes | bytearray | memoryview) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if path is not None:
        sent[":path"] = path
    return parse_request(sent, raw, lambda: "made-up")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", COMPLETION),
        ("/v1/completions/", COMPLETION),
        ("/v1/completions?a=/v1/embeddings", COMPLETION),
        ("/tenant/openai/v1/chat/completions", CHAT),
        ("/v1/chat/completions/render", CHAT),
        ("/v1/completions/render", COMPLETION),
        ("/v1/embeddings", INPUT),
        ("/v1/responses", INPUT),
        (None, COMPLETION),
    ],
)
def test_the_model_is_read_by_the_end_of_the_path(path: str | None, body: dict[str, Any]) -> None:
    assert parse(body, path).model == "m"


TINY = {
    "the smallest": b'{"role":""},',
    "whole ones": b'{"role":"user","content":"a"},',
    "of parts": b'{"role":"user","content":[{},{},{},{}]},',
}


@pytest.mark.parametrize("message", TINY.values(), ids=TINY.keys())
def test_a_body_of_60_mib_of_tiny_messages_is_not_taken_apart(message: bytes) -> None:
    """Each message of two million was an object, which took two seconds and 300 MB."""
    body = (
        b'{"messages":['
        + message * (60 * 1024 * 1024 // len(message))
        + b'{"role":"x"}],"model":"m","stream":true}'
    )
    tracemalloc.start()
    try:
        request = parse(body, "/v1/chat/completions")
        assert request.prompt is not None
        assert request.prompt.prefix(100) == (message * 20)[:100]
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (request.model, request.streaming, request.prompt_size) == ("m", True, len(body) - 39)
    assert held < 1024 * 1024, "nothing of it is copied"


def test_a_long_chat_that_goes_on_begins_as_before() -> None:
    message = b'{"role":"user","content":"a"},' * 110_000
    heads = []
    for more in (b"", message[:-1] + b","):
        prompt = parse(
            b'{"model":"m","messages":[' + message + more + b'{"role":"u"}]}', "/v1/chat/completions"
        ).prompt
        assert prompt is not None
        heads.append(prompt.prefix(None))
    assert heads[1].startswith(heads[0][: -len(b'{"role":"u"}')])


@pytest.mark.parametrize("many", [b'{"a":' + b"{}" + b"}", b'"no list"', b"null", b"[ ]", b"5"])
def test_a_long_body_must_have_messages_too(many: bytes) -> None:
    rest = b",".join([b'{"a":{}}'] * 300_000)
    body = b'{"model":"m","messages":' + many + b',"other":[' + rest + b"]}"
    with pytest.raises(Rejection, match="messages") as refused:
        parse(body, "/v1/chat/completions")
    assert refused.value.status == 400


def test_many_braces_in_the_text_of_a_large_body_are_no_messages() -> None:
    text = "{}" * 2_000_000
    chat = {"model": "m", "messages": [{"role": "user", "content": text}]}
    request = parse(chat, "/v1/chat/completions")
    assert (request.model, request.prompt_size > 4_000_000) == ("m", True)
    embedded = parse({"model": "m", "input": text}, "/v1/embeddings")
    assert embedded.prompt_size == len(text) + 2


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", b"no healthy upstream", "not valid JSON"),
        ("/v1/completions", b'{"model": "m", "x": ' + b"[" * 2_000_000, "nested too deeply"),
        ("/v1/completions", b'{"model": "\xff", "prompt": "p"}', "not UTF-8"),
        ("/v1/completions", b"[]", "wrong type"),
        ("/v1/completions", b"null", "wrong type"),
        ("/v1/completions", {"prompt": "hello world"}, "'model'"),
        ("/v1/completions", {"model": "", "prompt": "p"}, "'model'"),
        ("/v1/completions", {"model": None, "prompt": "p"}, "'model'"),
        ("/v1/completions", {"model": 5, "prompt": "p"}, "$.model"),
        ("/v1/completions", {"model": "m"}, "'prompt'"),
        ("/v1/completions", {"model": "m", "prompt": ""}, "'prompt'"),
        ("/v1/completions", {"model": "m", "prompt": []}, "'prompt'"),
        ("/v1/completions", {"model": "m", "prompt": None}, "'prompt'"),
        ("/v1/completions", {"model": "m", "prompt": 123}, "$.prompt"),
        ("/v1/completions", {"model": "m", "prompt": {}}, "$.prompt"),
        ("/v1/completions", {"model": "m", "prompt": True}, "$.prompt"),
        ("/v1/completions", {"model": "m", "prompt": "p", "stream": "yes"}, "$.stream"),
        ("/v1/chat/completions", {"model": "m"}, "'messages'"),
        ("/v1/chat/completions", {"model": "m", "messages": []}, "'messages'"),
        ("/v1/chat/completions", {"model": "m", "messages": {}}, "$.messages"),
        ("/v1/chat/completions", {"model": "m", "messages": ["hi"]}, "$.messages[0]"),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": 1}]}, "$.messages[0].role"),
        ("/v1/chat/completions", {"model": "m", "messages": [{"content": "hi"}]}, "role"),
        ("/v1/embeddings", {"model": "m"}, "'input'"),
        ("/v1/responses", {"model": "m", "input": 7}, "$.input"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(path: str, body: object, expected: str) -> None:
    with pytest.raises(Rejection) as caught:
        parse(body, path)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request_error")
    assert expected in caught.value.message


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        *((tools, "$.tools") for tools in ("all", "", 7, 0.5, -1, True, False, {}, TOOL, {"0": TOOL})),
        (["f"], "$.tools[0]"),
        ([TOOL, 1], "$.tools[1]"),
        ([None], "$.tools[0]"),
        ([[TOOL]], "$.tools[0]"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_tools_of_the_wrong_type_are_said(path: str, tools: object, expected: str) -> None:
    with pytest.raises(Rejection) as caught:
        parse(CHAT | INPUT | {"tools": tools}, path)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request_error")
    assert caught.value.message.endswith(f"at `{expected}`")


@pytest.mark.parametrize("tools", [None, [], [TOOL], [TOOL, {}], [{"type": "web_search", "later": [1, "x"]}]])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_tools_pass(path: str, tools: object) -> None:
    assert parse(CHAT | INPUT | {"tools": tools}, path).model == "m"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/completions", rb'{"model": "m", "prompt": "\ud800"}', "m"),
        ("/v1/completions", rb'{"model": "m", "prompt": "\udc00\ud83d\ude00\uD83D"}', "m"),
        ("/v1/completions", rb'{"model": "a\ud83d\ude00\\\ud800\ud800\udc00", "prompt": "p"}', "a😀\\�𐀀"),
        ("/v1/completions", rb'{"model": "m", "prompt": "p", "\uDBFF": "\udfff"}', "m"),
        ("/v1/chat/completions", rb'{"model": "m", "messages": [{"role": "u", "content": "\ud800"}]}', "m"),
        ("/v1/chat/completions", rb'{"model": "m", "messages": [{"role": "\ud800"}], "tools": null}', "m"),
        ("/v1/responses", rb'{"model": "m", "input": ["\ud83d\u0041"]}', "m"),
        ("/v1/messages", rb'{"model": "m", "system": "\\\\\ud800"}', "m"),
    ],
)
def test_a_lone_surrogate_is_legal(path: str, body: bytes, model: str) -> None:
    """RFC 8259 8.2; what cuts text at so many UTF-16 units, as JavaScript does, sends them."""
    json.loads(body)
    assert parse(body, path).model == model


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "m", "prompt": "\ud8"}',
        rb'{"model": "m", "prompt": "\ud8zz"}',
        rb'{"model": "m", "prompt": "\ud800}',
        rb'{"model": "m", "prompt": "\\ud800}',
        rb'{"model": "m", "prompt": "\ud800" "x"}',
        rb"\ud800",
        rb"\ud800\udc00\ud800",
    ],
)
def test_what_is_wrong_beside_a_lone_surrogate_is_said(body: bytes) -> None:
    with pytest.raises(Rejection) as caught:
        parse(body)
    assert caught.value.status == 400


def test_lone_surrogates_by_the_hundred_thousand() -> None:
    """Looked at one by one, or twice, they would outlast the test's time."""
    body = rb'{"model": "m", "prompt": "' + rb"\\\ud800\n" * 600_000 + rb'"}'
    assert parse(body).model == "m"


def test_a_large_body_with_a_lone_surrogate_is_not_searched() -> None:
    body = rb'{"model": "m", "prompt": "\ud800' + b"a" * MAX_REPAIRED + b'"}'
    with pytest.raises(Rejection, match="not valid JSON"):
        parse(body)


@given(st.lists(st.integers(0, 0x10FFFF) | st.integers(0xD7F0, 0xE010), max_size=30))
def test_only_lone_surrogates_are_replaced(points: list[int]) -> None:
    text = "".join(map(chr, points))
    written = json.dumps(text).encode()
    mended = replace_lone_surrogates(written)
    read = json.loads(written)  # two escapes in a row may have become one character
    sound = "".join("\ufffd" if 0xD800 <= ord(one) < 0xE000 else one for one in read)
    assert json.loads(written if mended is None else mended) == sound
    assert (mended is None) == (sound == read)


def test_a_streamed_answer_and_the_sizes() -> None:
    body = json.dumps(COMPLETION | {"stream": True}).encode()
    request = parse(memoryview(bytearray(body)))
    assert (request.streaming, request.body_size, request.prompt_size) == (True, len(body), len('"hi"'))
    assert not parse(COMPLETION | {"stream": None}).streaming
    chat = {"model": "m", "messages": [{"role": "system"}, {"role": "user", "content": [{"type": "text"}]}]}
    assert parse(chat, "/v1/chat/completions").prompt_size == len('null[{"type": "text"}]')


def test_token_lists_and_what_is_none_of_our_business() -> None:
    assert parse({"model": "m", "prompt": [1, 2, 3], "seed": 2**70, "max_tokens": "x"}).model == "m"
    assert parse({"model": "m", "prompt": [[1], [2]]}).model == "m"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/messages", CHAT, "m"),
        ("/v1/messages/count_tokens", CHAT, "m"),
        ("/v1/rerank", {"model": "m", "query": 1, "stream": None}, "m"),
        ("/v1/rerank", {"model": 5}, ""),
        ("/v1/rerank", b"not JSON", ""),
        ("/v1/unheard-of", {"model": "m"}, ""),
        ("/v1/responses/resp_1/cancel", {"model": "m"}, ""),
        ("/", b"\x00\x01", ""),
    ],
)
def test_other_paths_pass(path: str, body: object, model: str) -> None:
    assert parse(body, path).model == model


def test_a_request_without_a_body_names_no_model() -> None:
    request = parse(b"", "/v1/models")
    assert (request.model, request.path, request.body_size) == ("", "/v1/models", 0)


@pytest.mark.parametrize(
    ("body", "content_types", "model"),
    [
        (b"\x00\x00", ["application/grpc", "text/plain", "application/octet-stream", ""], ""),
        (COMPLETION, ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"], "m"),
    ],
    ids=["what is not JSON passes", "JSON by any name"],
)
def test_content_types(body: object, content_types: list[str], model: str) -> None:
    for content_type in content_types:
        assert parse(body, content_type=content_type).model == model, content_type


def form(*fields: tuple[str, bytes], boundary: str = "xyz") -> bytes:
    parts = (
        f"--{boundary}\r\nContent-Disposition: {head}\r\n\r\n".encode() + value for head, value in fields
    )
    return b"\r\n".join(parts) + f"\r\n--{boundary}--\r\n".encode()


FILE = ('form-data; name="file"; filename="model"\r\nContent-Type: audio/wav', b"\r\n--xy\r\n\r\nRIFF" * 1000)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (form(FILE, ('form-data; name="model"', b"whisper-1")), "whisper-1"),
        (form(("form-data; name=model", b" whisper-1 "), FILE), "whisper-1"),
        (b"preamble\r\n" + form(('form-data; name="model"', b"w")), "w"),
        (form(FILE), ""),
        (form(("form-data; name=model", b"w"))[:-20], ""),
        (b"", ""),
        (b"--xyz", ""),
    ],
)
def test_a_form_names_its_model(body: bytes, expected: str) -> None:
    request = parse(body, "/v1/audio/transcriptions", content_type='multipart/form-data; boundary="xyz"')
    assert request.model == expected


def test_a_form_without_a_boundary_passes() -> None:
    assert parse(form(("form-data; name=model", b"w")), content_type="multipart/form-data").model == ""


def test_headers_new_names_win_over_old_ones() -> None:
    request = parse(
        COMPLETION,
        x_llm_d_inference_objective="new",
        x_gateway_inference_objective="old",
        x_gateway_inference_fairness_id="tenant",
        x_request_id="r-1",
    )
    assert (request.objective, request.fairness_id, request.request_id) == ("new", "tenant", "r-1")


def test_headers_that_are_absent() -> None:
    request = parse(COMPLETION)
    assert (request.objective, request.fairness_id, request.request_id) == (None, "default-flow", "made-up")
    assert parse(COMPLETION, x_llm_d_inference_fairness_id="  ").fairness_id == "default-flow"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["model", "stream", "prompt", "messages", "input", "role", "content"])
PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank", "/x", ""])
TYPES = st.sampled_from(["application/json", "multipart/form-data; boundary=a", "text/plain"])


def status(body: object, path: str, **headers: str) -> int:
    try:
        parse(body, path, **headers)
    except Rejection as rejection:
        return rejection.status
    return 200


@given(path=PATHS, body=st.dictionaries(FIELDS, JSON) | JSON)
def test_any_json_is_read_or_rejected(path: str, body: object) -> None:
    assert status(body, path) in (200, 400)


@given(
    path=PATHS | st.text(),
    body=st.binary() | st.from_regex(rb"--a\r\n.*name=model.*"),
    kind=TYPES | st.text(),
)
def test_any_bytes_are_read_or_rejected(path: str, body: bytes, kind: str) -> None:
    assert status(body, path, content_type=kind) in (200, 400)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings?x=1"])
def test_a_post_without_a_body_names_no_model(path: str) -> None:
    with pytest.raises(Rejection) as caught:
        parse(b"", path, **{":method": "POST"})
    assert caught.value.status == 400
    assert "'model'" in caught.value.message


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/completions"),
        ("HEAD", "/v1/completions"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/v1/models"),
        ("POST", "/reset_prefix_cache"),
    ],
)
def test_other_requests_without_a_body_are_routed(method: str, path: str) -> None:
    assert parse(b"", path, **{":method": method}).model == ""


def test_a_body_that_is_not_shown_is_no_fault() -> None:
    headers = {":method": "POST", ":path": "/v1/completions"}
    assert parse_request(headers, None, lambda: "made-up").model == ""


FORM = "application/x-www-form-urlencoded"


def test_what_curl_sends_without_being_told_is_read_if_it_is_json() -> None:
    assert parse(COMPLETION, content_type=FORM).model == "m"
    with pytest.raises(Rejection, match="'prompt'"):
        parse({"model": "m"}, content_type=FORM)


@pytest.mark.parametrize("body", [b"a=b&c=d", b"{a=b", b"[1]", b"\xff", b"[" * 200_000])
def test_what_is_a_form_is_not_read(body: bytes) -> None:
    assert parse(body, content_type=FORM).model == ""


def test_an_image_counts_as_an_image_and_not_as_its_base64() -> None:
    def size(content: object) -> int:
        chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
        return parse(chat, "/v1/chat/completions").prompt_size

    url = "data:image/png;base64," + "A" * 1_000_000
    image = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "what is this?"}
    assert 4_000 < size([image, text]) < 5_000
    assert 8_000 < size([image, text, image]) < 10_000
    assert size([text]) == len(json.dumps([text]))
    assert size("x" * 20_000 + url) > 1_000_000  # a text that quotes one is a text


TOOL_CALLS = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]


def chat(messages: list[Any], **fields: Any) -> tuple[InferenceRequest, bytes]:
    body = json.dumps({"model": "m", "messages": messages} | fields).encode()
    return parse_request({":path": "/v1/chat/completions"}, body, lambda: "id"), body


def short(count: int) -> list[Any]:
    return [
        {"role": "user", "content": str(n)} | ({"tool_calls": TOOL_CALLS} if n % 7 == 0 else {})
        for n in range(count)
    ]


@pytest.mark.parametrize("limit", [None, 0, 1, 5, 64, 1000, 10_000_000])
def test_it_answers_as_before(limit: int | None) -> None:
    request, body = chat(short(500), tools=[{"type": "function"}], cache_salt="s", max_tokens=9)
    before = request.prompt
    held = while_it_waits(before, len(body))
    assert isinstance(held, HeldChat)
    assert before is not None
    assert held.prefix(limit) == before.prefix(limit)
    assert (held.model, held.extra_key(), held.max_output_tokens()) == ("m", before.extra_key(), 9)


def test_a_chat_of_few_or_long_messages_stays_as_it_is() -> None:
    for messages in (short(10), [{"role": "user", "content": "x" * 500}] * 200):
        request, body = chat(messages)
        assert while_it_waits(request.prompt, len(body)) is request.prompt
    assert while_it_waits(None, 0) is None


def test_chats_that_wait_take_no_more_memory_than_their_bodies() -> None:
    store = Datastore()
    it = director(store, admission=FlowController(flow_settings(), UtilizationDetector(), store.pool))
    bodies = [chat(short(3000))[1] for _ in range(20)]
    tracemalloc.start()
    try:
        for body in bodies:
            it.direct({":path": "/v1/chat/completions"}, body, None, NOW)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(it.waiting) == len(bodies)
    assert held < 1.2 * sum(map(len, bodies))


@pytest.mark.parametrize(
    "hint", ["[fd00::1]:8000", "[fd00::1]", "fd00::1", "fd00:0::0:1", "[FD00:0:0::1]:8000"]
)
@pytest.mark.parametrize("address", ["fd00::1", "[fd00::1]", "FD00::0:1"])
def test_ipv6_is_compared_as_an_address(hint: str, address: str) -> None:
    assert Subset.of([hint]).allows(address, 8000)
    assert not Subset.of([hint]).allows("fd00::2", 8000)


def test_bracketed_ipv6_with_another_port_is_not_allowed() -> None:
    assert not Subset.of(["[fd00::1]:8000"]).allows("fd00::1", 8001)


def test_a_long_hint_is_read() -> None:
    """What is no plain IPv4 is read as an address up to a number; beyond it, as it stands there."""
    hint = ",".join(
        [*(f"[fd01::{number:x}]:8000" for number in range(16_000)), "[FD00::1]:8000", "10.0.0.1:8000"]
    )
    subset = Subset.of([hint])
    for address in ("fd01::0", "fd01::3e7f", "fd00::1", "10.0.0.1"):
        assert subset.allows(address, 8000)
    assert not subset.allows("fd01::3e80", 8000)


def test_hints_are_not_kept() -> None:
    """100 unique ones of a megabyte."""
    Subset.of(["warm"])
    before = resident_megabytes()
    for number in range(100):
        subset = Subset.of(
            [f"{number}" + "a" * 10**6, f"{number}.{'1' * 10**6}:80", f"[{number}{':' * 10**6}]"]
        )
        assert not subset.allows("10.0.0.1", 80)
    assert resident_megabytes() - before < 50


@pytest.mark.parametrize("host", ["h" * 256, "h" * 10**6, ":" * 300])
def test_a_host_that_is_longer_than_any_name_is_nowhere(host: str) -> None:
    subset = Subset.of([host, f"{host}:80"])
    assert not subset.allows("10.0.0.1", 80)
    assert sum(len(name) for name, _ in subset.members) < 1000


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 65535))
def test_a_written_destination_allows_itself_only(ip: Any, port: int, other: int) -> None:
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    subset = Subset.of([text])
    assert subset.allows(str(ip), port)
    assert subset.allows(str(ip), other) is (other == port)

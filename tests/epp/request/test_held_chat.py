"""A chat that waits answers as before, and its decoded messages do not fill the memory."""

import json
import tracemalloc
from typing import Any

import pytest

from epp.endpoints.datastore import Datastore
from epp.flow_control.controller import FlowController
from epp.flow_control.settings import FlowControlSettings
from epp.request.inference_api import HeldChat, while_it_waits
from epp.request.inference_request import InferenceRequest, parse_request
from epp.scheduling.saturation import UtilizationDetector
from tests.epp.scheduling.test_director import NOW, director

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
    it = director(store, admission=FlowController(FlowControlSettings(), UtilizationDetector(), store.pool))
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

"""The plugins by themselves, and as adsum builds them from a configuration."""

import asyncio
import random
from datetime import datetime, time

import numpy as np
import pytest
from acme_adsum.hours import HoursGate
from acme_adsum.sessions import SessionProducer, SessionScorer
from acme_adsum.shortest import ShortestPromptFirst
from acme_adsum.zones import ZoneFilter

from dispatcher.extension import DispatchCandidate, RefusedError
from epp.config.picker_config import load_config
from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS
from epp.extension import Endpoint, EndpointPool, InferenceRequest, QueuedRequest
from epp.scheduling.pick import SchedulingContext

ENDPOINTS = [
    Endpoint(id=name, incarnation="1", address="10.0.0.1", port=port, metrics_port=port, zone=zone)
    for name, port, zone in (("a", 8000, "east"), ("b", 8001, "west"))
]
POOL = EndpointPool(ENDPOINTS, np.repeat(NO_NUMBERS, 2, axis=1), [NO_ADAPTERS] * 2, now=0.0)
REQUEST = InferenceRequest("1", "/v1/completions", {"x-session-id": "mine"}, "tiny")


def test_a_session_stays_where_it_was_served() -> None:
    sessions = SessionProducer(max_sessions=10)
    scorer = SessionScorer(sessions)
    assert scorer.score(REQUEST, POOL) == {}
    sessions.served(REQUEST, [ENDPOINTS[1]])
    assert scorer.score(REQUEST, POOL) == {1: 1.0}
    sessions.forget(ENDPOINTS[1])
    assert scorer.score(REQUEST, POOL) == {}


def test_a_zone_with_too_few_endpoints_is_left() -> None:
    assert list(ZoneFilter("west", 1).filter(REQUEST, POOL)) == [False, True]
    assert list(ZoneFilter("west", 2).filter(REQUEST, POOL)) == [True, True]


async def ask(gate: HoursGate) -> None:
    async with gate.admit(DispatchCandidate("1", "token", "default", deadline_ms=0, size=1)):
        pass


def test_the_shortest_prompt_goes_first() -> None:
    ranks = []
    for size in (10, 1000):
        request = InferenceRequest("id", "/v1/completions", {})
        request.prompt_size = size
        ranks.append(ShortestPromptFirst().rank(QueuedRequest(request, arrived_at=1.0, ttl=60.0, sequence=1)))
    assert ranks == [10, 1000]


def test_the_gate_is_open_over_midnight() -> None:
    gate = HoursGate(time(22), time(6), now=lambda: datetime(2026, 11, 22, 23, 30))
    asyncio.run(ask(gate))
    assert gate.budget() == 1.0


def test_the_gate_is_closed_by_day() -> None:
    gate = HoursGate(time(22), time(6), now=lambda: datetime(2026, 11, 22, 12, 0))
    with pytest.raises(RefusedError, match="closed until 22:00"):
        asyncio.run(ask(gate))


CONFIGURATION = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: acme-zone-filter, parameters: {zone: east}}
- {type: acme-session-scorer}
- {type: acme-long-prompt-handler, parameters: {longPromptBytes: 20000}}
schedulingProfiles:
- name: short
  plugins: [{pluginRef: acme-session-scorer}]
- name: long
  plugins: [{pluginRef: acme-zone-filter}]
"""


def test_a_configuration_builds_them() -> None:
    config = load_config(CONFIGURATION, rng=random.Random())
    assert config.scheduler.schedule(SchedulingContext(REQUEST), POOL).primary == "short"

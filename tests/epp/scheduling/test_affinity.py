"""Sessions, labels and lengths: what the cases of go_choices.yaml do not show."""

from base64 import b64encode
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.affinity.labels import DEFAULT_LABEL, ContextLengthAware
from epp.scheduling.affinity.session_affinity import SessionAffinityFilter, SessionAffinityScorer
from epp.scheduling.affinity.sessions import (
    BY_DEFAULT_HEADER,
    EncodedEndpointHeader,
    SessionBindings,
    from_cookie,
    token_of,
)
from epp.scheduling.affinity.topology import TopologyAffinityScorer
from epp.scheduling.pick import Pick
from tests.epp.scheduling.endpoint_pools import make_endpoint, unread


def make_pool(*labels: dict[str, str], now: float = 0.0) -> EndpointPool:
    return unread(
        [
            make_endpoint(
                f"e{at}", 8000 + at, labels=one, namespace="ns", node=one.get("node"), zone=one.get("zone")
            )
            for at, one in enumerate(labels)
        ],
        now,
    )


def make_request(tokens: int = 0, **headers: str) -> InferenceRequest:
    request = InferenceRequest(
        "r", "/v1/completions", {name.replace("_", "-"): text for name, text in headers.items()}
    )
    request.prompt_size = 4 * tokens
    return request


FOUR = make_pool({}, {}, {}, {})


def test_a_token_names_the_endpoint_in_whatever_namespace() -> None:
    strategy = EncodedEndpointHeader()
    for text in ("ns/e2", "other/e2", "/e2", "e2"):
        token = b64encode(text.encode()).decode()
        assert strategy.find(make_request(x_session_token=token), FOUR) == 2
    assert token_of(FOUR.endpoints[2]) == b64encode(b"ns/e2").decode()


@pytest.mark.parametrize(
    "token", ["", "bnMvZTI", "bnMvZTI=\n", "bnMvZTI= ", "ö", "=" * 9, "A" * 4096, "//8=", "AAAA"]
)
def test_a_token_that_is_none_chooses_nothing(token: str) -> None:
    request = make_request(x_session_token=token)
    assert SessionAffinityScorer(EncodedEndpointHeader()).score(request, FOUR) == {}
    assert SessionAffinityFilter(EncodedEndpointHeader()).filter(request, FOUR).all()


@given(token=st.text(max_size=50) | st.binary(max_size=50).map(lambda raw: b64encode(raw).decode()))
def test_no_token_does_more_than_choose_a_candidate(token: str) -> None:
    request = make_request(x_session_token=token)
    kept = SessionAffinityFilter(EncodedEndpointHeader()).filter(request, FOUR)
    assert kept.sum() in (1, len(FOUR))


def test_the_token_of_an_answer_is_of_who_answers() -> None:
    pick = Pick(make_request(), FOUR.endpoints[:2])
    strategy = EncodedEndpointHeader()
    assert strategy.response_headers(pick, None) == {"x-session-token": token_of(FOUR.endpoints[0])}
    pick.in_flight_at = (FOUR.endpoints[1],)  # a retry went to the fallback
    assert strategy.response_headers(pick, None) == {"x-session-token": token_of(FOUR.endpoints[1])}
    pick.in_flight_at = ()
    assert strategy.response_headers(pick, None) == {}


def bind(bindings: SessionBindings, session: str, row: int, now: float = 0.0) -> None:
    request = make_request(x_session_id=session)
    bindings.prepare(request, make_pool({}, {}, {}, {}, now=now))
    bindings.picked(request, [FOUR.endpoints[row]])


def found(bindings: SessionBindings, session: str, now: float = 0.0) -> int | None:
    request = make_request(x_session_id=session)
    bindings.prepare(request, make_pool({}, {}, {}, {}, now=now))
    return bindings.find(request, FOUR)


def test_no_client_makes_the_picker_remember_more_than_so_many_sessions() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER], most=3)
    for session in "abcd":
        bind(bindings, session, 1)
    assert len(bindings) == 3
    assert [found(bindings, session) for session in "abcd"] == [None, 1, 1, 1]
    bind(bindings, "b", 1)
    bind(bindings, "e", 1)
    assert [found(bindings, session) for session in "bcde"] == [1, None, 1, 1]


def test_a_long_id_costs_no_more_memory_than_a_short_one() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER], key=b"k")
    bind(bindings, "s" * 50_000, 1)
    assert [len(key) for key in bindings._bound] == [16]
    assert found(bindings, "s" * 50_000) == 1
    assert found(bindings, "s" * 49_999) is None


def test_sessions_are_forgotten_in_the_order_of_their_last_use() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER], ttl=10.0)
    bind(bindings, "a", 1, now=0.0)
    bind(bindings, "b", 2, now=5.0)
    bind(bindings, "a", 1, now=8.0)
    assert [found(bindings, session, now=15.5) for session in "ab"] == [1, None]
    assert len(bindings) == 1
    assert found(bindings, "a", now=18.5) is None
    assert len(bindings) == 0


def test_a_session_is_not_moved_because_another_profile_does_not_have_its_endpoint() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER])
    bind(bindings, "a", 1)
    request, prefill = make_request(x_session_id="a"), FOUR.select(np.array([False, False, True, True]))
    bindings.prepare(request, FOUR)
    assert [bindings.find(request, pool) for pool in (FOUR, prefill)] == [1, None]
    bindings.picked(request, [FOUR.endpoints[0]])  # a scorer was outweighed
    assert found(bindings, "a") == 1


def test_a_request_without_an_id_binds_nothing() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER])
    bind(bindings, "", 1)
    bind(bindings, "  ", 1)
    assert len(bindings) == 0


def test_what_a_request_that_was_refused_left_behind_does_not_bind_the_next() -> None:
    bindings = SessionBindings([BY_DEFAULT_HEADER])
    bindings.prepare(make_request(x_session_id="a"), FOUR)  # no pick: the filters left nobody
    bind(bindings, "b", 2)
    assert [found(bindings, session) for session in "ab"] == [None, 2]


@pytest.mark.parametrize(
    ("cookie", "expected"),
    [
        ("chat=a", "a"),
        ("x=1;chat= a ; chat=b", "a"),
        ("chat", ""),
        ("chat==a", "=a"),
        ("Chat=a", ""),
        ("", ""),
        ("chat=a;" + "x" * 20_000, ""),
    ],
)
def test_a_session_id_in_a_cookie(cookie: str, expected: str) -> None:
    assert from_cookie("chat", {"cookie": cookie}) == expected


def test_where_labels_are_silent_discovery_knows_node_and_zone() -> None:
    pool = make_pool({"node": "n1", "zone": "z"}, {"node": "n1"}, {"zone": "z"}, {"node": "n2"})
    request = make_request()
    request.peer = pool.endpoints[0]
    assert list(TopologyAffinityScorer().score(request, pool)) == [1.0, 1.0, 0.05, 0.0]  # type: ignore[call-overload]


RANGES = st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)).map(sorted)


@given(ranges=st.lists(RANGES, min_size=1, max_size=10), tokens=st.integers(0, 200_000))
def test_a_range_with_the_length_beats_every_other(ranges: list[list[int]], tokens: int) -> None:
    pool = make_pool(*({DEFAULT_LABEL: f"{least}-{most}"} for least, most in ranges))
    scores = ContextLengthAware().score(make_request(tokens), pool)
    inside = np.array([least <= tokens <= most for least, most in ranges])
    assert (scores[inside] >= 0.3).all()
    assert (scores[~inside] < 0.3).all()
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (ContextLengthAware(filters=True).filter(make_request(tokens), pool) == inside).all()


@given(ranges=st.lists(RANGES, min_size=2, max_size=10), tokens=st.integers(0, 200_000))
def test_outside_nearer_is_never_worse(ranges: list[list[int]], tokens: int) -> None:
    far = [
        (max(least - tokens, tokens - most), least, most)
        for least, most in ranges
        if not least <= tokens <= most
    ]
    if not far:
        return
    pool = make_pool(*({DEFAULT_LABEL: f"{least}-{most}"} for _, least, most in sorted(far)))
    scores = ContextLengthAware().score(make_request(tokens), pool).tolist()
    assert all(nearer >= farther for nearer, farther in pairwise(scores))


@pytest.mark.parametrize(
    "label", ["", "-", "1-", "-5-10", "1-2-3", "a-b", "\uff11-2", "1e3-2e3", "9" * 16 + "-" + "9" * 17]
)
def test_a_label_that_is_no_range_is_the_worst(label: str) -> None:
    pool = make_pool({DEFAULT_LABEL: label}, {})
    assert ContextLengthAware().score(make_request(10), pool).tolist() == [0.0, 0.5]
    assert ContextLengthAware(filters=True).filter(make_request(10), pool).tolist() == [False, True]


def test_ranges_follow_the_endpoints() -> None:
    plugin = ContextLengthAware(filters=True)
    for label, kept in (("0-5", True), ("6-9", False)):
        assert plugin.filter(make_request(5), make_pool({DEFAULT_LABEL: label})).tolist() == [kept]
    assert len(plugin.score(make_request(5), make_pool())) == 0

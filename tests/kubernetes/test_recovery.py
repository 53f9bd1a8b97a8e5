"""Which request follows each fault, and how soon. In virtual time, without I/O."""

import pytest

from discovery.kubernetes.reflector.recovery import SyncLost
from tests.kubernetes.reflector_harness import ReflectorHarness, kind, line, status


def test_410_in_the_stream_lists_from_the_cache_and_then_consistently() -> None:
    """Row 1, and what `client-go` does when even that is refused."""
    harness = ReflectorHarness().watching(5)
    assert harness.sends(line("ERROR", status(410, "Expired"))) == []
    assert harness.reflector.finished
    assert kind(harness.next_request()) == "list since 5"
    assert harness.waits[-1] == 0
    assert harness.answers(status(410, "Expired"), 410) == []
    assert kind(harness.next_request()) == "list"
    assert harness.waits[-1] == 0


def test_500_in_the_stream_keeps_the_version_once() -> None:
    """Row 17."""
    harness = ReflectorHarness().watching(5)
    asked = []
    for _ in range(3):
        harness.sends(line("ERROR", status(500, "InternalError")))
        asked.append(kind(harness.next_request()))
        harness.head()
    assert asked[:2] == ["watch 5", "list since 5"]


@pytest.mark.parametrize("code", [403, 404])
def test_lasting_refusals_are_asked_rarely(code: int) -> None:
    """Except for the first two: a starting server that has not read its Roles denies access for a moment."""
    harness = ReflectorHarness()
    harness.next_request()
    for _ in range(4):
        [lost] = harness.answers(status(code, "Forbidden"), code)
        assert lost == SyncLost(f"HTTP {code} Forbidden: said {code}", code)
        harness.next_request()
    assert harness.waits[1] <= 0.8
    assert harness.waits[2] <= 1.6
    assert all(15 <= wait <= 30 for wait in harness.waits[3:])


def test_a_server_that_accepts_connections_again_is_asked_at_once_and_may_fail_while_it_starts() -> None:
    harness = ReflectorHarness().watching(5)
    for _ in range(7):
        harness.fails_to_connect()
        harness.next_request()
    harness.fails_to_connect()
    assert harness.probes(longer_than=10)
    harness.reflector.connection_possible(harness.now)
    assert kind(harness.next_request()) == "watch 5"
    assert harness.waits[-1] == 0
    for _ in range(3):
        harness.answers(status(503), 503)
        harness.next_request()
    assert harness.waits[-3] <= 0.8
    assert harness.waits[-2] <= 0.8
    assert harness.waits[-1] > 10, "the backoff goes on where it was"


def test_no_more_probes_after_a_misleading_one_until_an_answer() -> None:
    """Something else listens on the port, or only a proxy is reachable."""
    harness = ReflectorHarness().watching(5)
    harness.fails_to_connect()
    assert harness.probes()
    harness.reflector.connection_possible(harness.now)
    harness.next_request()
    harness.fails_to_connect()
    assert not harness.probes()
    harness.next_request()
    harness.answers(status(503), 503)
    harness.next_request()
    harness.fails_to_connect()
    assert harness.probes()


def test_a_port_that_accepts_and_resets_is_probed_for_a_while_only() -> None:
    """A starting API server does that for some seconds, a load balancer without a backend for ever."""
    harness = ReflectorHarness().watching(5)
    harness.fails_to_connect()
    probed = 0
    while probed < 100 and harness.probes():
        probed += 1
        harness.reflector.connection_possible(harness.now)
        harness.next_request()
        harness.breaks()
    assert 20 < probed < 60, "at most one probe in half a second"
    harness.next_request()
    harness.answers(status(503), 503)
    harness.next_request()
    harness.fails_to_connect()
    assert harness.probes()


def test_after_a_short_disconnection_the_backoff_goes_on() -> None:
    """A server that alternates between refusing connections and failing is not asked more often."""
    harness = ReflectorHarness().watching(5)
    for _ in range(4):
        harness.breaks()
        harness.next_request()
    harness.fails_to_connect()
    harness.reflector.connection_possible(harness.now)
    harness.next_request()
    harness.breaks()
    harness.next_request()
    assert harness.waits[-1] > 5


def test_a_connection_that_breaks_causes_no_probe() -> None:
    harness = ReflectorHarness().watching(5)
    harness.breaks()
    assert not harness.probes()


def test_html_with_status_200_says_what_it_is() -> None:
    """Row 22."""
    harness = ReflectorHarness()
    harness.next_request()
    [lost] = harness.answers(b"<html>Sign in</html>", 200, Content_Type="text/html; charset=utf-8")
    assert isinstance(lost, SyncLost)
    assert "text/html, expected JSON" in lost.reason


def test_an_endless_error_body_is_cut_off() -> None:
    harness = ReflectorHarness().watching(5)
    harness.ends(60.0)
    harness.next_request()
    assert harness.reflector.deadline > harness.now + 300
    harness.head(503)
    assert harness.reflector.deadline == harness.now + 15
    assert harness.sends(b"x" * 10_000_000) == []
    [lost] = harness.reflector.request_failed("silence", harness.now)
    assert lost == SyncLost("HTTP 503", 503)


def test_only_a_long_healthy_stream_resets_the_backoff() -> None:
    harness = ReflectorHarness().watching(5)
    for _ in range(6):
        harness.breaks(20.0)
        harness.next_request()
        harness.head()
    assert harness.waits[-1] > 10
    harness.breaks(119.0)
    harness.next_request()
    assert harness.waits[-1] > 10
    harness.head()
    harness.breaks(120.0)
    harness.next_request()
    assert harness.waits[-1] <= 0.8

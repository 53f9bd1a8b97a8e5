"""What the reflector asks next after all that can go wrong, and how often. In virtual time, without I/O."""

import json
from collections.abc import Callable

import pytest

from discovery.kubernetes.recovery import SyncLost
from discovery.kubernetes.reflector import SlicesListed, SliceUpdated, Wait
from tests.kubernetes.play import TOO_LARGE, Play, a_list, a_slice, kind, line, status


def test_a_broken_stream_is_resumed_after_a_short_pause() -> None:
    """Row 7."""
    play = Play().watching(5)
    assert play.breaks(30.0) == [SyncLost("connection reset")]
    assert kind(play.asked()) == "watch 5"
    assert 0.4 <= play.waits[-1] <= 0.8


def test_410_in_the_stream_lists_from_the_cache_and_then_consistently() -> None:
    """Row 1, and what `client-go` does when even that is refused."""
    play = Play().watching(5)
    assert play.says(line("ERROR", status(410, "Expired"))) == []
    assert play.reflector.finished
    assert kind(play.asked()) == "list since 5"
    assert play.waits[-1] == 0
    assert play.answers(status(410, "Expired"), 410) == []
    assert kind(play.asked()) == "list"
    assert play.waits[-1] == 0


def test_410_as_http_status() -> None:
    """Row 2."""
    play = Play().watching(5)
    play.ends(60.0)
    play.asked()
    assert play.answers(status(410, "Expired"), 410) == []
    assert kind(play.asked()) == "list since 5"


def test_410_for_ever_is_no_hot_loop() -> None:
    play = Play().watching(5)
    for _ in range(20):
        play.says(line("ERROR", status(410)))
        assert kind(play.asked()).startswith("list")
        play.answers(a_list(5))
        assert kind(play.asked()) == "watch 5"
        play.head()
    assert play.now > 200


def test_too_large_a_version_is_dropped_at_once() -> None:
    """Row 23: as HTTP status of the list, and in the stream."""
    play = Play().watching(5)
    play.says(line("ERROR", status(410)))
    play.asked()
    assert play.answers(TOO_LARGE, 504) == []
    assert (kind(play.asked()), play.waits[-1]) == ("list", 0)
    play = Play().watching(5)
    play.says(line("ERROR", TOO_LARGE))
    assert (kind(play.asked()), play.waits[-1]) == ("list", 0)


def test_429_waits_as_long_as_it_is_told() -> None:
    """Row 21: by header, and by the Status in the stream; the version is kept."""
    play = Play().watching(5)
    play.ends(60.0)
    play.asked()
    assert isinstance(play.answers(status(429), 429, Retry_After="5")[0], SyncLost)
    assert kind(play.asked()) == "watch 5"
    assert 4.99 <= play.waits[-1] <= 6
    play.head()
    play.says(line("ERROR", status(429, retryAfterSeconds=7)))
    assert kind(play.asked()) == "watch 5"
    assert 6.99 <= play.waits[-1] <= 8


def test_500_in_the_stream_keeps_the_version_once() -> None:
    """Row 17."""
    play = Play().watching(5)
    asked = []
    for _ in range(3):
        play.says(line("ERROR", status(500, "InternalError")))
        asked.append(kind(play.asked()))
        play.head()
    assert asked[:2] == ["watch 5", "list since 5"]


@pytest.mark.parametrize("code", [403, 404])
def test_what_time_does_not_heal_is_asked_rarely(code: int) -> None:
    """But for the first two times: a server that starts does not know its Roles yet, and refuses for a moment."""
    play = Play()
    play.asked()
    for _ in range(4):
        [lost] = play.answers(status(code, "Forbidden"), code)
        assert lost == SyncLost(f"HTTP {code} Forbidden: said {code}", code)
        play.asked()
    assert play.waits[1] <= 0.8
    assert play.waits[2] <= 1.6
    assert all(15 <= wait <= 30 for wait in play.waits[3:])


def test_a_server_that_can_be_reached_again_is_asked_at_once_and_may_take_a_moment_to_start() -> None:
    play = Play().watching(5)
    for _ in range(7):
        play.fails_to_connect()
        play.asked()
    play.fails_to_connect()
    step = play.reflector.next_step(play.now)
    assert isinstance(step, Wait)
    assert step.probe_connection
    assert step.until - play.now > 10
    play.reflector.connection_possible(play.now)
    assert kind(play.asked()) == "watch 5"
    assert play.waits[-1] == 0
    for _ in range(3):
        play.answers(status(503), 503)
        play.asked()
    assert play.waits[-3] <= 0.8
    assert play.waits[-2] <= 0.8
    assert play.waits[-1] > 10, "the backoff goes on where it was"


def test_who_knocked_in_vain_waits_until_something_is_answered() -> None:
    """What listens there is no API server, or a proxy is what cannot be reached."""
    play = Play().watching(5)
    play.fails_to_connect()
    assert isinstance(step := play.reflector.next_step(play.now), Wait)
    assert step.probe_connection
    play.reflector.connection_possible(play.now)
    play.asked()
    play.fails_to_connect()
    assert isinstance(step := play.reflector.next_step(play.now), Wait)
    assert not step.probe_connection
    play.asked()
    play.answers(status(503), 503)
    play.asked()
    play.fails_to_connect()
    assert isinstance(step := play.reflector.next_step(play.now), Wait)
    assert step.probe_connection


def test_after_a_short_absence_the_backoff_goes_on() -> None:
    """A server that refuses and fails by turns is not asked more often for it."""
    play = Play().watching(5)
    for _ in range(4):
        play.breaks()
        play.asked()
    play.fails_to_connect()
    play.reflector.connection_possible(play.now)
    play.asked()
    play.breaks()
    play.asked()
    assert play.waits[-1] > 5


def test_a_connection_that_breaks_is_no_reason_to_knock() -> None:
    play = Play().watching(5)
    play.breaks()
    assert isinstance(step := play.reflector.next_step(play.now), Wait)
    assert not step.probe_connection


@pytest.mark.parametrize(
    "bad",
    [
        b"<html>\n",
        b'{"type": "ADDED", "object": {}}\n',
        b'{"type": "ADDED", "object": {"metadata": {}, "addressType": "IPv4"}}\n',
        b'{"type": "SYNCED", "object": {}}\n',
        b"\xff\xfe\n",
        b"0" * (16 * 1024 * 1024 + 1),
    ],
    ids=["html", "no slice", "no name", "unknown type", "not utf-8", "too long"],
)
def test_a_line_that_cannot_be_read_means_list_again(bad: bytes) -> None:
    """Rows 14 and 16; what came before it counts."""
    play = Play().watching(5)
    put, lost = play.says(line("ADDED", a_slice("x", 6))) + play.says(bad)
    assert isinstance(put, SliceUpdated)
    assert isinstance(lost, SyncLost)
    assert play.reflector.finished
    assert kind(play.asked()) == "list since 6"
    assert play.waits[-1] >= 0.4


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"kind": "Status"}', b"", json.dumps(a_list(0)).encode()[:-9]]
)
def test_a_list_that_cannot_be_read_is_no_empty_list(body: bytes) -> None:
    play = Play()
    play.asked()
    [lost] = play.answers(body)
    assert isinstance(lost, SyncLost)
    assert kind(play.asked()) == "list"


def test_html_with_status_200_says_what_it_is() -> None:
    """Row 22."""
    play = Play()
    play.asked()
    [lost] = play.answers(b"<html>Sign in</html>", 200, Content_Type="text/html; charset=utf-8")
    assert isinstance(lost, SyncLost)
    assert "text/html, expected JSON" in lost.reason


def test_a_refusal_that_never_ends_is_not_waited_for() -> None:
    play = Play().watching(5)
    play.ends(60.0)
    play.asked()
    assert play.reflector.deadline > play.now + 300
    play.head(503)
    assert play.reflector.deadline == play.now + 15
    assert play.says(b"x" * 10_000_000) == []
    [lost] = play.reflector.request_failed("silence", play.now)
    assert lost == SyncLost("HTTP 503", 503)


def test_ends_at_once_again_and_again() -> None:
    """Row 6, I5: at most 3 requests in the first second, and at most one in 20 s on average."""
    play = Play().watching(5)
    started, asked = play.now, []
    while play.now < started + 3600:
        play.ends()
        play.asked()
        asked.append(play.now - started)
        play.head()
    assert sum(at <= 1 for at in asked) <= 3
    assert len([at for at in asked if at > 60]) <= 3540 / 20


@pytest.mark.parametrize(
    "fail", [Play.breaks, lambda play: play.answers(status(503), 503)], ids=["refused", "503"]
)
def test_a_long_outage_costs_little(fail: Callable[[Play], object]) -> None:
    """Row 11, I5, and T ≤ 35 s when it is over."""
    play = Play()
    asked = []
    while play.now < 3600:
        play.asked()
        asked.append(play.now)
        fail(play)
    assert sum(at <= 1 for at in asked) <= 3
    assert len([at for at in asked if at > 60]) <= 3540 / 20
    assert max(play.waits) <= 30


def test_only_a_long_healthy_stream_resets_the_backoff() -> None:
    play = Play().watching(5)
    for _ in range(6):
        play.breaks(20.0)
        play.asked()
        play.head()
    assert play.waits[-1] > 10
    play.breaks(119.0)
    play.asked()
    assert play.waits[-1] > 10
    play.head()
    play.breaks(120.0)
    play.asked()
    assert play.waits[-1] <= 0.8


def test_an_older_list_is_not_believed_at_once() -> None:
    """Row 25: a stale replica; row 24: etcd was restored, which a second consistent list confirms."""
    play = Play().watching(50)
    play.says(line("ERROR", status(410)))
    assert kind(play.asked()) == "list since 50"
    assert isinstance(play.answers(a_list(40, "ghost"))[0], SyncLost)
    assert kind(play.asked()) == "list"
    assert isinstance(play.answers(a_list(40, "ghost"))[0], SyncLost)
    assert kind(play.asked()) == "list"
    [listed] = play.answers(a_list(40, "ghost"))
    assert isinstance(listed, SlicesListed)
    assert kind(play.asked()) == "watch 40"


def test_a_fresh_list_after_a_stale_one() -> None:
    """Row 25."""
    play = Play().watching(50)
    play.says(line("ERROR", status(410)))
    play.asked()
    play.answers(a_list(40))
    play.asked()
    [listed] = play.answers(a_list(51))
    assert isinstance(listed, SlicesListed)
    assert kind(play.asked()) == "watch 51"


def test_an_event_from_the_past_is_not_applied() -> None:
    """Row 20: such as a server that replays what is there, and a stream opened in another history."""
    play = Play().watching(50)
    assert play.says(line("ADDED", a_slice("x", 7))) == []
    assert play.reflector.finished
    assert kind(play.asked()) == "list"


@pytest.mark.parametrize(
    "fail", [lambda p: p.answers(status(410), 410), Play.breaks, lambda p: p.answers(b"x")]
)
def test_a_page_that_fails_starts_the_list_anew(fail: Callable[[Play], object]) -> None:
    """Row 4."""
    play = Play()
    play.asked()
    play.answers(a_list(9, "a", rest="t1"))
    play.asked()
    fail(play)
    assert kind(play.asked()) == "list"
    [listed] = play.answers(a_list(9, "b"))
    assert isinstance(listed, SlicesListed)
    assert [s.metadata.name for s in listed.slices] == ["b"]

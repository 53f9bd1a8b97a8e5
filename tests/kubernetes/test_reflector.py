"""The state machine without I/O, in virtual time: lists, watches, pages, loss of sync, lines, refusals."""

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.kubernetes.api.refusal import Status, StatusCause, StatusDetails, parse_refusal
from discovery.kubernetes.reflector.recovery import ObjectDeleted, ObjectsListed, ObjectUpdated, SyncRestored
from discovery.kubernetes.reflector.reflector import LineSplitter, LineTooLongError
from tests.kubernetes.reflector_harness import (
    TOO_LARGE,
    ReflectorHarness,
    a_list,
    a_slice,
    bookmark,
    kind,
    line,
    status,
)


def test_list_then_watch() -> None:
    harness = ReflectorHarness()
    assert harness.next_request() == {}
    [listed] = harness.answers(a_list(7, "x", "y"))
    assert isinstance(listed, ObjectsListed)
    assert [s.metadata.name for s in listed.objects] == ["x", "y"]
    watch = harness.next_request()
    seconds = int(watch.pop("timeoutSeconds"))
    assert watch == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}
    assert 300 <= seconds <= 601
    assert harness.reflector.deadline == harness.now + seconds + 15


def test_events_advance_the_version() -> None:
    harness = ReflectorHarness().watching(5)
    put, changed, gone = harness.sends(
        line("ADDED", a_slice("x", 6)) + line("MODIFIED", a_slice("x", 7)) + line("DELETED", a_slice("x", 8))
    )
    assert isinstance(put, ObjectUpdated)
    assert isinstance(changed, ObjectUpdated)
    assert gone == ObjectDeleted("x")
    assert harness.sends(bookmark(30)) == []
    assert harness.ends(60.0) == []
    assert kind(harness.next_request()) == "watch 30"
    assert harness.waits[-1] <= 0.1


@given(st.lists(st.integers(1, 30), min_size=1))
def test_events_cut_anywhere(cuts: list[int]) -> None:
    """Row 13, with a word that takes two bytes in UTF-8."""
    text = line("ADDED", a_slice("x", 6)).replace(b'"IPv4"', '"IPv4", "é": "\x85"'.encode()) + bookmark(9)
    harness, start = ReflectorHarness().watching(), 0
    for cut in [*cuts, len(text)]:
        harness.sends(text[start : start + cut])
        start += cut
    assert [type(news) for news in harness.events] == [ObjectsListed, ObjectUpdated]
    harness.ends(60.0)
    assert kind(harness.next_request()) == "watch 9"


def test_a_healthy_watch_is_relisted_periodically() -> None:
    """Rows 24 and 26: within half an hour, and never sooner than ten minutes."""
    harness = ReflectorHarness().watching(5)
    listed_at = [harness.now]
    while len(listed_at) < 10:
        harness.ends(harness.reflector.deadline - 15 - harness.now)
        asked = harness.next_request()
        if "watch" in asked:
            harness.head()
            continue
        assert kind(asked) == "list"
        listed_at.append(harness.now)
        harness.answers(a_list(5))
        harness.next_request()
        harness.head()
    gaps = [later - sooner for sooner, later in itertools.pairwise(listed_at)]
    assert all(600 <= gap <= 1802 for gap in gaps), gaps


def test_a_list_that_is_too_long_is_asked_for_in_pages() -> None:
    harness = ReflectorHarness()
    assert harness.next_request() == {}
    harness.head()
    piece = bytes(16 * 1024 * 1024)
    while not harness.reflector.finished:
        harness.sends(piece)
    assert harness.next_request() == {"limit": "500"}
    harness.answers(a_list(7, "x", rest="t1"))
    assert harness.next_request() == {"limit": "500", "continue": "t1"}
    [listed] = harness.answers(a_list(7, "y"))
    assert isinstance(listed, ObjectsListed)
    assert [one.metadata.name for one in listed.objects] == ["x", "y"]


def test_sync_is_restored_when_a_quiet_stream_lives_on() -> None:
    harness = ReflectorHarness().watching(5)
    harness.breaks(30.0)
    harness.next_request()
    harness.head()
    due = harness.reflector.timer_at
    assert due == harness.now + 1.0
    assert harness.reflector.timer_expired(harness.now + 0.9) == []
    assert harness.reflector.timer_expired(due) == [SyncRestored()]
    assert harness.reflector.timer_at is None
    assert harness.reflector.timer_expired(due + 5) == []


def test_sync_is_restored_by_the_first_bookmark() -> None:
    harness = ReflectorHarness().watching(5)
    harness.breaks(30.0)
    harness.next_request()
    harness.head()
    assert harness.sends(bookmark(6)) == [SyncRestored()]
    assert harness.sends(bookmark(7)) == []


def test_missing_bookmarks_shorten_the_deadline() -> None:
    harness = ReflectorHarness(watch_timeout=(3600.0, 3600.0), relist_interval=(9000.0, 9000.0)).watching(5)
    hard = harness.reflector.deadline
    harness.sends(bookmark(6), after=60.0)
    assert harness.reflector.deadline == hard
    harness.sends(bookmark(7), after=60.0)
    assert harness.reflector.deadline == harness.now + 150
    harness.sends(line("ADDED", a_slice("x", 8)), after=100.0)
    assert harness.reflector.deadline == harness.now + 150


def test_two_bookmarks_at_the_end_are_no_interval() -> None:
    """The server sends one or two just before its timeout."""
    harness = ReflectorHarness(watch_timeout=(3600.0, 3600.0), relist_interval=(9000.0, 9000.0)).watching(5)
    harness.sends(bookmark(6), after=60.0)
    harness.sends(bookmark(7), after=0.001)
    assert harness.reflector.deadline == harness.now + 75


server = st.sampled_from(
    [
        "list",
        "older",
        "page",
        "410",
        "429",
        "500",
        "504",
        "html",
        "break",
        "event",
        "bookmark",
        "past",
        "error",
        "end",
    ],
)


def react(harness: ReflectorHarness, what: str, params: dict[str, str], version: int) -> None:
    """The server does `what`, whatever was requested."""
    bodies: dict[str, Callable[[], object]] = {
        "410": lambda: harness.answers(status(410), 410),
        "429": lambda: harness.answers(status(429), 429, Retry_After="2"),
        "500": lambda: harness.answers(status(500), 500),
        "504": lambda: harness.answers(TOO_LARGE, 504),
        "html": lambda: harness.answers(b"<html>", 502, Content_Type="text/html"),
        "break": harness.breaks,
    }
    if what in bodies:
        bodies[what]()
    elif "watch" not in params:
        known = {"older": max(1, version - 30)}.get(what, version)
        harness.answers(a_list(known, "s", rest="t" if what == "page" else ""))
    else:
        harness.head()
        stream: dict[str, bytes] = {
            "event": line("MODIFIED", a_slice("s", version)),
            "bookmark": bookmark(version),
            "past": line("ADDED", a_slice("s", 1)),
            "error": line("ERROR", status(410)),
        }
        harness.sends(stream.get(what, b""), after=1.0)
        harness.ends()


@given(st.lists(server, max_size=40))
def test_random_histories_make_progress_without_a_hot_loop(history: Iterable[str]) -> None:
    """There is always a next request, a watch begins at a version that was listed or sent, and a healthy server ends it."""
    harness, count = ReflectorHarness(), 0
    for version, what in enumerate(history, 100):
        params = harness.next_request()
        count += 1
        if "watch" in params:
            assert params["resourceVersion"].isdigit()
            assert any(isinstance(news, ObjectsListed) for news in harness.events)
        react(harness, what, params, version)
    assert count <= 12 + 4 * harness.now
    for _ in range(4):
        params = harness.next_request()
        if "watch" in params:
            break
        harness.answers(a_list(1000, "s"))
    assert kind(harness.next_request() if "watch" not in params else params).startswith("watch")


@given(st.binary(max_size=40), st.lists(st.integers(1, 12)))
def test_lines_cut_anywhere(text: bytes, cuts: list[int]) -> None:
    whole = LineSplitter().feed(text)
    splitter, lines, start = LineSplitter(), [], 0
    for cut in cuts:
        lines += splitter.feed(text[start : start + cut])
        start += cut
    lines += splitter.feed(text[start:])
    assert lines == whole == [x for x in text.split(b"\n")[:-1] if x.strip()]


def test_only_newlines_end_a_line() -> None:
    text = '{"a": "\x85\u2028\r\x0b"}'.encode()
    assert LineSplitter().feed(text + b"\r\n\n \n") == [text + b"\r"]


def test_a_line_has_a_bound() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"0123456789") == []
    with pytest.raises(LineTooLongError):
        splitter.feed(b"a")
    with pytest.raises(LineTooLongError):
        LineSplitter(limit=10).feed(b"01234567890\n")


@pytest.mark.parametrize(
    ("code", "said", "headers", "wait"),
    [
        (429, Status(), {"Retry-After": "5"}, 5.0),
        (503, Status(details=StatusDetails(3)), {}, 3.0),
        (503, Status(), {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        (403, Status(), {"Retry-After": "5"}, None),
        (429, Status(), {"Retry-After": "99999"}, 300.0),
        (429, Status(), {"Retry-After": "-1"}, None),
    ],
)
def test_retry_after(code: int, said: Status, headers: dict[str, str], wait: float | None) -> None:
    assert parse_refusal(code, said, headers).retry_after == wait


def test_version_too_large_differs_from_other_504() -> None:
    assert parse_refusal(
        504, Status(details=StatusDetails(causes=(StatusCause("ResourceVersionTooLarge"),)))
    ).version_too_large
    assert not parse_refusal(504, Status(message="gateway timeout")).version_too_large

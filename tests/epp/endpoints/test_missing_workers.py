import asyncio

import pytest

from epp.endpoints.missing_workers import LeftOut


@pytest.fixture
def missing() -> dict[str, str]:
    return {}


@pytest.fixture
def left_out(missing: dict[str, str]) -> LeftOut:
    return LeftOut(lambda: dict(missing))


def taken(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


def test_each_is_named_once_per_reason(
    left_out: LeftOut, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    left_out.look()
    assert taken(caplog) == [], "it may be about to answer"
    left_out.look()
    left_out.look()
    assert taken(caplog) == ["a gets no requests: refused"]
    missing["a"] = "HTTP 500"
    left_out.look()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]
    missing.clear()
    left_out.look()
    missing["a"] = "HTTP 500"
    left_out.look()
    assert taken(caplog) == []
    left_out.look()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]


def test_a_pool_that_is_cut_off_does_not_fill_the_log(
    left_out: LeftOut, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing |= {f"w{number:03}": "refused" for number in range(100)}
    for _ in range(3):
        left_out.look()
    lines = taken(caplog)
    assert lines[0] == "w000 gets no requests: refused"
    assert lines[10:] == ["90 more get no requests; python -m discovery explain names them"]


async def test_who_is_missing_at_first_has_been_waited_for(
    left_out: LeftOut, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    running = asyncio.create_task(left_out.run(60.0))
    await asyncio.sleep(0)
    assert taken(caplog) == ["a gets no requests: refused"]
    running.cancel()
    await asyncio.wait({running})

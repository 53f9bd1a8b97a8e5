import asyncio

import pytest

from epp.endpoints.metadata_feed import MissingWorkers


@pytest.fixture
def missing() -> dict[str, str]:
    return {}


@pytest.fixture
def missing_workers(missing: dict[str, str]) -> MissingWorkers:
    return MissingWorkers(lambda: dict(missing))


def taken(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


def test_each_is_named_once_per_reason(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    missing_workers.check()
    assert taken(caplog) == [], "it may be about to answer"
    missing_workers.check()
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: refused"]
    missing["a"] = "HTTP 500"
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]
    missing.clear()
    missing_workers.check()
    missing["a"] = "HTTP 500"
    missing_workers.check()
    assert taken(caplog) == []
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]


def test_a_pool_that_is_cut_off_does_not_fill_the_log(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing |= {f"w{number:03}": "refused" for number in range(100)}
    for _ in range(3):
        missing_workers.check()
    lines = taken(caplog)
    assert lines[0] == "w000 gets no requests: refused"
    assert lines[10:] == ["90 more get no requests; adsum discovery explain names them"]


async def test_who_is_missing_at_first_has_been_waited_for(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    running = asyncio.create_task(missing_workers.run(60.0))
    await asyncio.sleep(0)
    assert taken(caplog) == ["a gets no requests: refused"]
    running.cancel()
    await asyncio.wait({running})

import asyncio

import pytest

from adsum.errors import os_reason
from tests.free_port import free_port


async def test_a_refused_connection_has_no_number() -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        await asyncio.open_connection("127.0.0.1", free_port())
    assert os_reason(caught.value) == "Connection refused"


async def test_several_addresses_give_each_reason_once() -> None:
    port = free_port()
    error = OSError(
        f"Multiple exceptions: [Errno 111] Connect call failed ('::1', {port}), [Errno 111] Connect call failed"
    )
    assert os_reason(error) == "Connection refused"


def test_the_cause_counts() -> None:
    error = RuntimeError("it did not work")
    error.__cause__ = FileNotFoundError(2, "No such file or directory")
    assert os_reason(error) == "No such file or directory"
    assert os_reason(RuntimeError("plain")) == "plain"
    assert os_reason(RuntimeError()) == "RuntimeError"

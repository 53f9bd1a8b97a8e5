"""SIGTERM and SIGINT in real processes: the first drains, the second ends the process at once."""

import asyncio
import signal
import sys
import textwrap
from contextlib import AbstractAsyncContextManager

import pytest

from tests.started import next_line, started

DRAINS_FOR_EVER = """
    import asyncio, sys
    from adsum.signals import stop_signals, until_signalled
    async def main():
        with stop_signals() as signals:
            print("ready", flush=True)
            await until_signalled(signals, asyncio.sleep(3600))
        print("drains", flush=True)
        await asyncio.sleep(3600)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
"""
INTERRUPTED_AS_IT_ENDS = """
    import asyncio, os, signal
    from adsum.signals import stop_signals, until_signalled
    async def main():
        with stop_signals() as signals:
            print("ready", flush=True)
            await until_signalled(signals, asyncio.sleep(3600))
        loop = asyncio.get_running_loop()
        ending = loop.shutdown_asyncgens
        def interrupted():
            work = ending()
            os.kill(os.getpid(), signal.SIGINT)
            return work
        loop.shutdown_asyncgens = interrupted
    asyncio.run(main())
"""
TOLD_AS_IT_SAYS_READY = """
    import asyncio, os, signal, sys
    from epp.process import serve
    class Picker:
        @property
        def ready_line(self):
            os.kill(os.getpid(), signal.SIGTERM)
            return "ready"
        async def wait_for_failure(self):
            await asyncio.sleep(3600)
        async def drain(self):
            print("drained", flush=True)
    sys.exit(asyncio.run(serve(Picker())))
"""
CANCELLED = """
    import asyncio, signal
    from adsum.signals import cancel_on
    async def main():
        cancel_on(signal.SIGTERM)
        print("ready", flush=True)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("cancelled", flush=True)
    asyncio.run(main())
"""


def start(program: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return started(sys.executable, "-c", textwrap.dedent(program), stderr=asyncio.subprocess.PIPE)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("second", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
async def test_the_first_signal_drains_and_the_second_ends_it(
    first: signal.Signals, second: signal.Signals, code: int
) -> None:
    async with start(DRAINS_FOR_EVER) as process:
        assert await next_line(process) == "ready\n"
        process.send_signal(first)
        assert await next_line(process) == "drains\n"
        process.send_signal(second)
        assert await asyncio.wait_for(process.wait(), 60) == code


async def test_a_second_interrupt_while_the_loop_is_closed_leaves_no_trace() -> None:
    """A KeyboardInterrupt there would be a traceback, or a coroutine that was never awaited."""
    async with start(INTERRUPTED_AS_IT_ENDS) as process:
        assert await next_line(process) == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, said) == (-signal.SIGINT, b"")


async def test_who_reads_the_ready_line_may_send_a_signal_at_once() -> None:
    async with start(TOLD_AS_IT_SAYS_READY) as process:
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, said) == (0, b"ready\ndrained\n")


async def test_a_signal_cancels_the_task() -> None:
    async with start(CANCELLED) as process:
        assert await next_line(process) == "ready\n"
        process.terminate()
        assert await next_line(process) == "cancelled\n"
        assert await asyncio.wait_for(process.wait(), 60) == 0

"""SIGTERM in real programs: drained first, then ended the way the program ends."""

import asyncio
import signal
import textwrap
from pathlib import Path

import pytest

import registry
from tests.eventually import eventually
from tests.warm_python import WARM_PYTHON

PLAIN = """
    import asyncio, registry, sys
    async def main():
        async with registry.open(URL).register_instance("dynamo", "decode") as handle:
            handle.drain_on_sigterm(timeout=90)
            handle.set_ready("ready")
            print("up", flush=True)
            with handle.busy():
                await asyncio.to_thread(sys.stdin.readline)
            print("work done", flush=True)
            await asyncio.sleep(300)
    try:
        asyncio.run(main())
    finally:
        print("end", flush=True)
"""
AIOHTTP = """
    import asyncio, registry, sys
    from aiohttp import web
    async def life(app):
        async with registry.open(URL).register_instance("dynamo", "decode") as handle:
            handle.drain_on_sigterm(timeout=90)
            handle.set_ready("ready")
            asyncio.get_running_loop().create_task(work(handle))
            yield
            print("end", flush=True)
    async def work(handle):
        with handle.busy():
            print("up", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print("work done", flush=True)
    app = web.Application()
    app.cleanup_ctx.append(life)
    web.run_app(app, host="127.0.0.1", port=0, print=None)
"""
UVICORN = """
    import asyncio, contextlib, fastapi, registry, sys, uvicorn
    from registry.asgi import ContractApp
    contract = registry.Contract()
    @contextlib.asynccontextmanager
    async def life(app):
        opened = registry.open(URL, port=8000, contract=contract)
        async with opened.register_instance("dynamo", "decode") as handle:
            handle.drain_on_sigterm(timeout=90)
            handle.set_ready("ready")
            task = asyncio.create_task(work(handle))
            yield
            print("end", flush=True)
    async def work(handle):
        with handle.busy():
            print("up", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print("work done", flush=True)
    app = fastapi.FastAPI(lifespan=life)
    app.mount("/", ContractApp(contract))
    uvicorn.run(app, host="127.0.0.1", port=0, log_level="warning")
"""


async def start(program: str, root: Path) -> asyncio.subprocess.Process:
    source = f"URL = {f'file://{root}'!r}\n{textwrap.dedent(program)}"
    process = await asyncio.create_subprocess_exec(
        WARM_PYTHON, "-c", source, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert await asyncio.wait_for(process.stdout.readline(), 90) == b"up\n"
    return process


@pytest.mark.parametrize(
    ("program", "exit_codes"),
    [(PLAIN, (0,)), (AIOHTTP, (0,)), (UVICORN, (-signal.SIGTERM,))],
    ids=["plain", "aiohttp", "uvicorn"],
)
async def test_sigterm_drains_first_and_then_ends_the_program(
    program: str, exit_codes: tuple[int, ...], tmp_path: Path
) -> None:
    process = await start(program, tmp_path)
    (record,) = (tmp_path / "dynamo" / "decode").glob("decode-*.json")
    assert '"ready"' in record.read_text()
    process.send_signal(signal.SIGTERM)
    await eventually(lambda: '"draining"' in record.read_text())
    output, _ = await asyncio.wait_for(process.communicate(b"go on\n"), 90)
    assert output.splitlines() == [b"work done", b"end"]
    assert process.returncode in exit_codes
    assert not record.exists()


async def test_a_second_sigterm_cuts_the_drain_short(tmp_path: Path) -> None:
    process = await start(
        PLAIN.replace("asyncio.to_thread(sys.stdin.readline)", "asyncio.sleep(300)"), tmp_path
    )
    (record,) = (tmp_path / "dynamo" / "decode").glob("decode-*.json")
    process.send_signal(signal.SIGTERM)
    await eventually(lambda: '"draining"' in record.read_text())
    process.send_signal(signal.SIGTERM)
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert (output, process.returncode) == (b"end\n", 0)
    assert not record.exists()


async def test_signals_outside_the_main_thread_are_refused() -> None:
    async def elsewhere() -> None:
        handle = await registry.open("memory://sigterm").register_instance("dynamo", "decode")
        try:
            with pytest.raises(RuntimeError, match="main thread only"):
                handle.drain_on_sigterm()
        finally:
            await handle.close()

    await asyncio.to_thread(asyncio.run, elsewhere())

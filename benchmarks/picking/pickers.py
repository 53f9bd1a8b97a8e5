"""Starts the compared pickers, each in a process on the core that no other part of the benchmark uses."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.ports import free_ports
from benchmarks.process_usage import processor_seconds, resident_megabytes
from benchmarks.profiles import GO_DEFAULT, over_endpoints_file
from release import compiled_wheel

SELDOM: Final = ("--refresh-metrics-interval=10s", "--metrics-staleness-threshold=1h")
"""Scrapes so rarely that the measurement shows the pick alone."""
_GO: Final = (
    "--pool-name=bench",
    "--tracing=false",
    "--zap-log-level=error",
    "--metrics-endpoint-auth=false",
)
_DEADLINE: Final = 150.0


@dataclass(frozen=True, slots=True)
class Picker:
    """A process whose processor time is measured, and the port for its requests."""

    name: str
    pid: int
    port: int

    @property
    def cpu(self) -> float:
        """Seconds of processor time since its start."""
        return processor_seconds(self.pid)

    @property
    def megabytes(self) -> float:
        return resident_megabytes(self.pid)


@dataclass(frozen=True, slots=True)
class Kind:
    """`binary` None: our picker with `transport`, from the project in `folder`, or from this one if that is None.

    `profile`: a configuration in place of the default profile of the Go picker.
    """

    name: str
    transport: str = "http2"
    binary: Path | None = None
    folder: Path | None = None
    profile: str = GO_DEFAULT


OURS: Final = Kind("http2")
GRPC: Final = Kind("grpc", "grpc")


def compiled_picker() -> Kind:
    """Our picker with its hot path compiled; raises CompileError."""
    return Kind("compiled", folder=compiled_wheel.build())


def go_picker(binary: Path) -> Kind:
    """`binary`: built from llm-d-router's cmd/epp."""
    return Kind("go", binary=binary.resolve())


def cores() -> tuple[int, int]:
    """Returns the core of the load and that of the picker; the same one if there is only one."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


@contextlib.asynccontextmanager
async def started(
    program: Sequence[str], core: int | None, *, silent: bool = False, folder: Path | None = None, **env: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process, killed at the end. `core`: the only one that it may run on. `folder`: its working directory."""
    process = await asyncio.create_subprocess_exec(
        *program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL if silent else asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if silent else None,
        env=os.environ | env,
        cwd=folder,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def workers(count: int, *, alike: bool = False) -> AsyncIterator[list[int]]:
    """Yields the ports of `count` workers on the core of the load. `alike`: all publish the same numbers."""
    options = (str(count), *["alike"] * alike)
    program = (sys.executable, "-m", "benchmarks.picking.many_workers", *options)
    async with started(program, cores()[0]) as process:
        assert process.stdout is not None
        yield [int(port) for port in (await process.stdout.readline()).split()]


@contextlib.asynccontextmanager
async def picker(
    kind: Kind,
    ports: Sequence[int],
    core: int | None,
    options: Sequence[str] = SELDOM,
    config: str | None = None,
    *,
    usage: bool = False,
) -> AsyncIterator[Picker]:
    """A picker that has scraped these workers; raises TimeoutError when it does not become ready.

    `usage`: ours counts the tokens of answers, as the Go picker always does.
    `config`: replaces the profile of the kind; ENDPOINTS stands in it for the file of endpoints.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = _configuration(Path(folder), ports, config or over_endpoints_file(kind.profile))
        grpc, health, metrics = free_ports(3)
        flags = [f"--grpc-port={grpc}", f"--grpc-health-port={health}", f"--metrics-port={metrics}"]
        flags += ["--secure-serving=false", f"--config-file={written}", "-v=0", *options]
        if kind.binary is None:
            ours = ("-m", "epp", "--host=127.0.0.1", f"--transport={kind.transport}")
            program, env = [sys.executable, *ours, *flags, *["--usage-metrics"] * usage], {}
        else:
            program, env = [str(kind.binary), *flags, *_GO], {} if core is None else {"GOMAXPROCS": "1"}
        silent = kind.binary is not None
        async with started(program, core, silent=silent, folder=kind.folder, **env) as process:
            async with asyncio.timeout(_DEADLINE):
                await _until_ready(metrics, len(ports), process)
            yield Picker(kind.name, process.pid, grpc)


async def _until_ready(metrics: int, endpoints: int, process: asyncio.subprocess.Process) -> None:
    """Waits until it exports a gauge for each endpoint, which both pickers have; ours does so after each first scrape."""
    gauge = "llm_d_epp_per_endpoint_queue_size{"
    async with aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None, f"the picker ended with {process.returncode}"
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{metrics}/metrics") as answer:
                    page = await answer.text()
                if page.count(f"\n{gauge}") >= endpoints:
                    break
            await asyncio.sleep(0.1)


def _configuration(folder: Path, ports: Sequence[int], text: str) -> Path:
    endpoints = folder / "endpoints.yaml"
    lines = (f'- {{name: w-{n}, address: 127.0.0.1, port: "{port}"}}' for n, port in enumerate(ports))
    endpoints.write_text("\n".join(("endpoints:", *lines, "")))
    config = folder / "config.yaml"
    config.write_text(text.replace("ENDPOINTS", str(endpoints)))
    return config

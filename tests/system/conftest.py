"""A real API server shared by these tests, with one Kubernetes namespace per test."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.dispatcher.target import target  # noqa: F401  # a fixture, as the next two
from tests.redis_server import redis_server, redis_url  # noqa: F401
from tests.system.api_client import Administrator
from tests.system.api_process import ApiProcess
from tests.system.browser import chromium
from tests.system.building import tools
from tests.system.cluster import Cluster, a_cluster

_HANGS = 900
"""Seconds after which a test of these hangs; they start many processes, and a busy machine is slow."""
MISSING = (
    "run `make test-system` (as root): it builds what these tests run and gives them a network of their own"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_HANGS))


@pytest.fixture(scope="session", autouse=True)
def prepared() -> None:
    """Checks that `python -m tests.system` has prepared the machine."""
    absent = [tool.name for tool in tools() if not tool.path.is_file()]
    if absent:
        pytest.exit(f"there is no {', '.join(absent)} in .build/bin: {MISSING}", returncode=2)
    try:
        socket.create_server(("10.244.255.254", 0)).close()
    except OSError:
        pytest.exit(f"10.244.0.0/16 is not ours: {MISSING}", returncode=2)


@pytest.fixture(scope="session")
def api_server(prepared: None) -> Iterator[ApiProcess]:
    """The shared API server; tests that kill a server start their own."""
    with ApiProcess() as server:
        yield server


@pytest.fixture
async def admin(api_server: ApiProcess) -> AsyncIterator[Administrator]:
    async with Administrator(api_server) as administrator:
        yield administrator


@pytest.fixture
async def cluster(admin: Administrator, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A Kubernetes namespace with the rights of charts/frontend, and nothing in it."""
    async with a_cluster(admin, tmp_path) as made:
        yield made


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`figure(text)`: one measured line, shown at the end of the run."""
    return lambda text: request.node.user_properties.append(("figure", text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ended = [
        one
        for reports in terminalreporter.stats.values()
        for one in reports
        if getattr(one, "when", "") == "call"
    ]
    if lines := [text for one in ended for name, text in one.user_properties if name == "figure"]:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)

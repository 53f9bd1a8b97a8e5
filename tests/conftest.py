"""Fixtures and options for all tests."""

import gc
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from adsum.config.problems import ConfigError
from adsum.portal import EventLoop
from dispatcher.broker.opening import checked_broker_url

# a machine that does other work is slow, not wrong; and what passes once passes again
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("searching", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

_LONG = (
    # of tests/system: test_compiled.py takes as long as all others beside it
    *("test_compiled.py", "test_dispatcher_alerts.py", "test_failing.py", "test_dispatcher_kill_matrix.py"),
    *("test_pickers_behind_envoy.py", "test_picker_lets_go.py", "test_etcd_faults.py", "test_dashboards.py"),
    # 10 s or more each, the longest first: most of them wait
    *("test_access_logs.py", "pump/test_queue_runner.py", "envoy/test_choices.py", "epp/test_processes.py", "test_serve.py"),
    *("redis/test_ledger.py", "metadata/test_silence.py", "test_held_answers.py", "test_outage_log.py"),
    *("test_main.py", "test_reload.py", "test_fault_catalogue_connection.py", "test_greedy_clients.py"),
    *("test_extending.py", "test_replicas.py", "test_listed.py", "envoy/test_envoy.py", "test_failures.py"),
    *("redis/test_faults.py", "test_intake.py", "static/test_source.py", "test_feed.py", "envoy/test_flow_control.py"),
    *("test_queue_claims.py", "test_eds.py", "test_pick_costs.py", "test_explain.py", "test_routing.py"),
    *("test_rewriting_exchange.py", "test_peers.py", "test_security_flags.py", "test_quota.py"),
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Each test has its own event loop, which must not hear of the gRPC calls of the test before."""
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """For tests that time one thing: no collection traverses what thousands of tests left, which takes 0.4 s."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips", action="store_true", help="a skipped test fails the run (continuous integration)"
    )

    parser.addoption(
        "--contract-url",
        help="run tests/contract over this source and its registry; UNIQUE and TMP become another name and directory for "
        "each test (docs/extending.md)",
    )

    parser.addoption(
        "--broker-url",
        help="run tests/dispatcher/broker/contract over this broker; UNIQUE and TMP as above (docs/brokers.md)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A wrong URL is one error, and not one for each test."""
    if (url := config.getoption("--broker-url")) is None:
        return
    try:
        checked_broker_url(url.replace("TMP", config.rootpath.as_posix()))
    except (ValueError, ConfigError) as error:
        raise pytest.UsageError(f"--broker-url: {error}") from error


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests live until the end: no garbage is sought among them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest files first: otherwise one pytest process still runs when the others are done."""
    paths = {item.path for item in items}
    places = {path: place for place, name in enumerate(_LONG) for path in paths if path.match(name)}
    items.sort(key=lambda item: places.get(item.path, len(_LONG)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Under --strict-skips nothing may be skipped, and something must have run."""
    if not session.config.getoption("--strict-skips") or exitstatus != pytest.ExitCode.OK:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

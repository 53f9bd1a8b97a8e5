"""Brokers of installed packages: opened by their URL's scheme, with errors that name the package."""

from argparse import Namespace
from pathlib import Path

import pytest

from adsum.config.problems import ConfigError
from dispatcher.__main__ import main
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueError, QueueRules
from dispatcher.broker.opening import checked_broker_url, open_broker
from dispatcher.cli.commands import open_queue
from dispatcher.config.config_file import read_config
from tests.dispatcher.dispatching import document
from tests.in_process import run_here
from tests.installed_package import install, see

MODULE = """\
from contextlib import asynccontextmanager
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.extension import QueueError

ENTERED = []


@asynccontextmanager
async def _shared(url):
    ENTERED.append(url)
    yield BROKER


BROKER = MemoryBroker()


def open_shared(url):
    if not url.endswith("/"):
        raise ValueError(f"expected acme-shared://[USER:PASSWORD@]HOST/, not {url}")
    return _shared(url)


def open_broken(url):
    raise KeyError("no such thing")


def open_five(url):
    return 5


@asynccontextmanager
async def open_half(url):
    yield Half()


class Half:
    async def now_ms(self): return 0
    async def ping(self): return True


@asynccontextmanager
async def open_away(url):
    raise QueueError("the store does not answer")
    yield


@asynccontextmanager
async def open_confused(url):
    raise RuntimeError(f"no idea what {url} is")
    yield


OPENED = object()
"""

SCHEMES = {
    "acme-shared": "open_shared",
    "acme-broken": "open_broken",
    "acme-five": "open_five",
    "acme-half": "open_half",
    "acme-away": "open_away",
    "acme-confused": "open_confused",
    "acme-object": "OPENED",
    "acme-absent": "NOTHING",
}


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {name: f"acme_brokers:{value}" for name, value in SCHEMES.items()}
    see(monkeypatch, install(tmp_path / "acme", "acme_brokers", {"adsum.brokers": points}, module=MODULE))


async def test_it_is_opened_by_the_scheme_of_the_url() -> None:
    url = checked_broker_url("acme-shared://user:secret@host/")
    async with open_broker(url) as broker, broker.queue("q", QueueRules()) as queue:
        request = Request("a", b"{}", await broker.now_ms() + 60_000)
        assert (await queue.submit(request)).id == "a"
    found = Namespace(config=None, broker=url, queue="q")
    async with open_queue(found) as opened:
        assert (await opened.queue.totals()).pending == 1


def test_a_configuration_may_name_it() -> None:
    config = read_config(document("http://127.0.0.1:9", {"name": "q"}, broker="acme-shared://host/"), {})
    assert config.broker == "acme-shared://host/"


def test_checking_a_url_enters_nothing() -> None:
    import acme_brokers  # type: ignore[import-not-found]

    checked_broker_url("acme-shared://host/")
    assert acme_brokers.ENTERED == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("acme-broken://", "of the installed package acme_brokers 1.0 cannot be opened: KeyError"),
        ("acme-five://", "opened a int without __aenter__, __aexit__; expected what dispatcher.extension.Op"),
        ("acme-object://", "is a object; expected a function like dispatcher.extension.OpenBroker"),
        ("acme-absent://", "cannot be loaded from acme_brokers:NOTHING: AttributeError"),
        (
            "acme-unknown://",
            r"expected redis://.*, or memory://.*; acme-absent://... \(acme_brokers 1.0\); acme-away://",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"broker: .*{said}"):
        read_config(document("http://127.0.0.1:9", {"name": "q"}, broker=url), {})


def test_no_password_is_quoted_though_the_package_quotes_its_url() -> None:
    with pytest.raises(ConfigError, match=r"expected acme-shared://.*, not \*\*\*") as raised:
        read_config(document("http://127.0.0.1:9", broker="acme-shared://user:p%40ss@host"), {})
    assert "p%40ss" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        (
            "acme-half://",
            ConfigError,
            "acme_brokers 1.0 entered a Half without queue, ledger, quotas; expected a dispatcher.extension.Broker",
        ),
        ("acme-away://", QueueError, "the store does not answer"),
        (
            "acme-confused://u:secret@h",
            ConfigError,
            r"cannot be opened: RuntimeError: no idea what \*\*\* is; mend",
        ),
    ],
)
async def test_one_that_cannot_be_entered_is_an_error(url: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        async with open_broker(url):
            pass


@pytest.mark.parametrize("more", [{"results": "go-list"}, {"intake": {}}])
def test_the_queues_of_go_producers_need_redis(more: dict[str, object]) -> None:
    text = document("http://127.0.0.1:9", {"name": "q", **more}, broker="acme-shared://host/")
    with pytest.raises(ConfigError, match="queues.q: intake and results: go-list need a Redis broker"):
        read_config(text, {})


def test_a_dispatcher_that_cannot_open_it_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "dispatcher.yaml"
    path.write_text(document("http://127.0.0.1:9", {"name": "q"}, broker="acme-confused://u:secret@h"))
    done = run_here(main, "--config", str(path))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "broker: the URL scheme 'acme-confused' of the installed package acme_brokers 1.0 cannot" in line
    assert "secret" not in line

"""URL schemes of installed packages: discovery watches them, workers register there, and each fault names its package."""

from pathlib import Path

import pytest

import discovery
import registry
from adsum.entry_points import PluginError
from discovery import InstanceAddedEvent
from tests.installed_package import install, see

MODULE = """\
from urllib.parse import urlsplit
from discovery.memory import MemorySource, named_store
from registry.memory import MemoryMembership


def open_source(url):
    return MemorySource(named_store(_name(url)))


def open_membership(url):
    store = named_store(_name(url))
    return lambda: MemoryMembership(store)


def _name(url):
    if not url.partition("://")[2].startswith("shelf-"):
        raise ValueError(f"{url!r} names no shelf; expected acme://shelf-NAME")
    return url


def broken(url):
    return {}[url]


def empty(url):
    return 5
"""

POINTS = {
    "acme": "acme_shelf:open_source",
    "broken": "acme_shelf:broken",
    "constant": "acme_shelf:MODULE",
    "empty": "acme_shelf:empty",
}


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registries = POINTS | {"acme": "acme_shelf:open_membership"}
    groups = {"adsum.sources": POINTS, "adsum.registries": registries}
    see(monkeypatch, install(tmp_path / "acme", "acme_shelf", groups, module=f"{MODULE}\n\nMODULE = 5\n"))


async def test_a_worker_registers_there_and_is_watched() -> None:
    async with (
        discovery.open("acme://shelf-1") as service,
        service.watch("prod", "decode", metadata=True) as stream,
        registry.open("acme://shelf-1").register_instance("prod", "decode") as worker,
    ):
        worker.set_metadata({"model": {"name": "tiny"}})
        worker.set_ready("ready")
        event = await anext(stream)
        assert isinstance(event, InstanceAddedEvent)
        assert (await event.instance.metadata())["model"]["name"] == "tiny"


@pytest.mark.parametrize("package", [discovery, registry])
def test_a_url_that_the_package_refuses_is_a_usage_error(package: object) -> None:
    with pytest.raises(ValueError, match="'acme://x' names no shelf; expected acme://shelf-NAME"):
        package.open("acme://x")  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [discovery, registry])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("broken://x", "cannot be opened: KeyError: 'broken://x'; mend, update or uninstall that package"),
        ("constant://x", "is a int; expected a function like "),
        ("empty://x", "opened a int without "),
    ],
)
def test_a_fault_of_the_package_names_it(package: object, url: str, said: str) -> None:
    with pytest.raises(PluginError, match="of the installed package acme_shelf 1.0 ") as refused:
        package.open(url)  # type: ignore[attr-defined]
    assert said in str(refused.value)


@pytest.mark.parametrize("package", [discovery, registry])
def test_the_schemes_of_installed_packages_are_listed(package: object) -> None:
    with pytest.raises(ValueError, match=r"expected one of file:.*, acme://... \(acme_shelf 1.0\), broken"):
        package.open("acmee://shelf-1")  # type: ignore[attr-defined]

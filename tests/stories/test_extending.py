"""The package of docs/extending*.md, installed by pip into an environment of its own, and used."""

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from tests.epp.conftest import envoy_running
from tests.eventually import eventually
from tests.installed_package import install
from tests.started import ready, started

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "acme"
PAGES = sorted((ROOT / "docs").glob("extending*.md"))
LOCAL = ["--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]

RIVAL = {
    "adsum.plugins": {"acme-session-scorer": "rival:SCORER"},
    "adsum.sources": {"acme-table": "rival:open_source"},
    "adsum.gates": {"acme-hours": "rival:GATE"},
}

pytestmark = pytest.mark.timeout(300)


class Installed:
    """A virtual environment that sees this checkout, what that needs, and what pip installs into it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.python = place / "bin" / "python"
        venv.create(place, with_pip=False, symlinks=True)
        [packages] = place.glob("lib/python*/site-packages")
        seen = [entry for entry in sys.path if entry.endswith("site-packages")]
        lines = [str(ROOT), *(f"import site; site.addsitedir({entry!r})" for entry in seen)]
        (packages / "seen.pth").write_text("\n".join(lines) + "\n")

    def install(self, project: Path) -> None:
        """By pip, of a copy: what builds it leaves files beside its sources."""
        copy = self.place / "projects" / project.name
        shutil.copytree(project, copy)
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index"]
        options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", str(copy)]
        subprocess.run([*pip, *options], check=True, timeout=120)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` there."""
        command = [str(self.python), *arguments]
        env = os.environ | environment
        return subprocess.run(command, cwd=self.place, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Where the package of the page is installed."""
    installed = Installed(tmp_path_factory.mktemp("acme"))
    installed.install(PROJECT)
    return installed


def shown() -> dict[str, str]:
    """The files that the pages show, by their path in the project."""
    return dict(found(r"^`([\w/.]+)`:?\n\n```\w+\n(.*?)^```$"))


def found(block: str) -> list[Any]:
    return [one for page in PAGES for one in re.findall(block, page.read_text(), re.DOTALL | re.MULTILINE)]


def test_the_pages_show_the_project_as_it_is() -> None:
    files = {
        str(path.relative_to(PROJECT)): path.read_text()
        for path in PROJECT.rglob("*")
        if path.suffix in (".py", ".toml")
    }
    broker = re.findall(
        r"^\| `(sqlite_\w+\.py)` \|", (ROOT / "docs" / "brokers.md").read_text(), re.MULTILINE
    )
    assert len(broker) == 3
    elsewhere = ("acme_adsum/__init__.py", *(f"acme_adsum/{name}" for name in broker))
    assert shown() == {path: text for path, text in files.items() if path not in elsewhere}


def test_it_needs_nothing_but_the_extension_modules() -> None:
    imported = set()
    for path in (PROJECT / "acme_adsum").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
    ours = {
        name for name in imported if name.partition(".")[0] in ("discovery", "registry", "epp", "dispatcher")
    }
    assert ours == {f"{package}.extension" for package in ("discovery", "registry", "epp", "dispatcher")}


def test_its_own_tests_pass(acme: Installed) -> None:
    done = acme.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PROJECT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr


PICKER = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- type: acme-session-scorer
"""


def test_validate_knows_its_plugins(acme: Installed, tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(PICKER)
    done = acme.run("-m", "epp", "validate", str(path))
    assert done.returncode == 0, done.stderr
    assert "  scorer acme-session-scorer of acme-adsum 1.0, weight 1\n" in done.stdout


def test_the_configurations_shown_are_sound(acme: Installed) -> None:
    configurations = found(r"^```yaml\n(.*?)^```$")
    program = f"""
import random
from dispatcher.config.config_file import read_config
from epp.config.picker_config import load_config
for text in {configurations!r}:
    read_config(text, {{}}) if "broker:" in text else load_config(text, rng=random.Random())
"""
    assert len(configurations) == 4
    done = acme.run("-c", program)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def worker(name: str) -> AsyncIterator[str]:
    """Its address; it answers with its name."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=name)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        yield f"127.0.0.1:{server.port}"


@asynccontextmanager
async def picker(acme: Installed, *arguments: str) -> AsyncIterator[dict[str, str]]:
    """Its addresses by name."""
    async with started(str(acme.python), "-m", "epp", *LOCAL, *arguments, cwd=acme.place) as running:
        yield await ready(running)


async def test_a_picker_routes_by_its_scorer(acme: Installed, tmp_path: Path) -> None:
    # nothing is scraped here
    (tmp_path / "picker.yaml").write_text(PICKER.replace("- {type: queue-scorer}\n", ""))
    any_port = Address("127.0.0.1", 0)
    async with worker("one") as one, worker("other") as other:
        endpoints = ("--endpoint", one, "--endpoint", other)
        async with picker(acme, "--config-file", str(tmp_path / "picker.yaml"), *endpoints) as addresses:
            settings = EnvoySettings(
                listen=any_port, admin=any_port, pickers=(Address.parse(addresses["grpc"]),)
            )
            async with envoy_running(render(settings)) as envoy, aiohttp.ClientSession() as client:

                async def served_by(session: str) -> str:
                    body: Any = {"model": "m", "prompt": "x"}
                    headers = {"x-session-id": session}
                    async with client.post(
                        envoy.url("/v1/completions"), json=body, headers=headers
                    ) as answer:
                        assert answer.status == 200
                        return await answer.text()

                first = {f"session-{number}": await served_by(f"session-{number}") for number in range(20)}
                assert set(first.values()) == {"one", "other"}

                async def told() -> bool:
                    """Envoy's log says who served, some milliseconds later."""
                    async with client.get(f"http://{addresses['metrics']}/status") as status:
                        return (await status.json())["outcomes"]["awaited"] == 0

                await eventually(told)
                again = {session: await served_by(session) for session in first}
                assert again == first


def test_its_url_scheme_is_watched_and_written(acme: Installed, tmp_path: Path) -> None:
    program = f"""
import asyncio, discovery, registry
async def main():
    url = "acme-table://{tmp_path}/workers.db"
    async with discovery.open(url) as service, service.watch("prod", "decode", metadata=True) as stream:
        async with registry.open(url).register_instance("prod", "decode") as worker:
            worker.set_ready("ready")
            print((await anext(stream)).instance_id == worker.instance_id())
        async for event in stream:
            if isinstance(event, discovery.InstanceRemovedEvent):
                return print(event.reason)
asyncio.run(main())
"""
    done = acme.run("-c", program)
    assert done.stdout.split() == ["True", "deleted"], done.stderr


def _dispatcher(place: Path, opens: str, closes: str) -> str:
    path = place / "dispatcher.yaml"
    gate = {"type": "acme-hours", "params": {"opens": opens, "closes": closes}}
    targets = [{"name": "pool", "url": "http://127.0.0.1:9"}]
    queues = [{"name": "batch", "target": "pool", "gate": gate}]
    path.write_text(json.dumps({"broker": "memory://", "targets": targets, "queues": queues}))
    return str(path)


def test_a_dispatcher_asks_its_gate(acme: Installed, tmp_path: Path) -> None:
    done = acme.run("-m", "dispatcher", "--dry-run", "--config", _dispatcher(tmp_path, "00:00", "23:59"))
    assert "gate acme-hours: budget " in done.stdout, done.stderr


def test_a_wrong_url_of_a_broker_is_one_error(acme: Installed) -> None:
    suite = str(ROOT / "tests" / "dispatcher" / "broker" / "contract")
    program = f"""
import pytest
for url in ("acme-sqlite://", "acme-sqlight:///x"):
    print(int(pytest.main(["-p", "no:cacheprovider", "--broker-url", url, {suite!r}])))
"""
    done = acme.run("-c", program)
    assert done.stdout.split() == [f"{pytest.ExitCode.USAGE_ERROR:d}"] * 2
    assert "--broker-url: it names no file; expected acme-sqlite:///path/to/file.db" in done.stderr
    assert "--broker-url: expected redis://" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_batch_goes_through_its_broker(acme: Installed, tmp_path: Path) -> None:
    url = f"acme-sqlite://{tmp_path}/queues.db"
    batch, results, config = (tmp_path / name for name in ("batch.jsonl", "answers.jsonl", "dispatcher.yaml"))
    line = {"method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
    batch.write_text("".join(json.dumps({"custom_id": f"r{n}", **line}) + "\n" for n in range(20)))
    async with worker("one") as one:
        targets = [{"name": "pool", "url": f"http://{one}"}]
        queues = [{"name": "batch", "target": "pool", "gate": {"type": "constant"}}]
        document = {"broker": url, "http": {"port": 0}, "targets": targets, "queues": queues}
        config.write_text(json.dumps(document))
        command = ("submit", str(batch), "--config", str(config), "--results", str(results))
        async with started(str(acme.python), "-m", "dispatcher", "--config", str(config), cwd=acme.place):
            done = await asyncio.to_thread(acme.run, "-m", "dispatcher", *command)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"r{n}" for n in range(20))
    assert {answer["response"]["status_code"] for answer in answers} == {200}


def test_a_wrong_url_of_its_broker_is_one_line(acme: Installed) -> None:
    done = acme.run("-m", "dispatcher", "status", "--broker", "acme-sqlite://host/", "--queue", "batch")
    assert done.returncode == 2
    assert done.stderr == "error: --broker: it names no file; expected acme-sqlite:///path/to/file.db\n"


def test_names_of_two_packages_are_errors_that_name_both(acme: Installed, tmp_path: Path) -> None:
    rival = install(tmp_path / "rival", "rival", RIVAL, version="2.0")
    (tmp_path / "picker.yaml").write_text(PICKER)
    said = {
        "plugin type 'acme-session-scorer'": ("epp", "--config-file", str(tmp_path / "picker.yaml")),
        "URL scheme 'acme-table'": (
            "discovery",
            "list",
            "prod",
            "decode",
            "--discovery",
            "acme-table:///a.db",
        ),
        "gate 'acme-hours'": ("dispatcher", "--config", _dispatcher(tmp_path, "00:00", "23:59")),
    }
    for name, command in said.items():
        done = acme.run("-m", *command, PYTHONPATH=str(rival))
        assert done.returncode == 2
        _, *quoted = done.stderr.splitlines()
        assert quoted in ([], ["    5 | - type: acme-session-scorer"])
        assert (
            f"two installed packages declare the {name}: acme-adsum 1.0 and rival 2.0; uninstall"
            in done.stderr
        )

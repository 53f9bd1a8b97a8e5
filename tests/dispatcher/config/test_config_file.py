"""The dispatcher's configuration file, and how it is read again."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from adsum.tasks import background
from dispatcher.broker.contract.queue import QueueError, QueueLimits
from dispatcher.config.config_file import Config, read_config
from dispatcher.config.reloader import ConfigReloader, load
from dispatcher.delivery.verdict import AttemptLimits
from tests.eventually import eventually

TARGET = {"name": "pool", "url": "http://gateway:8080/base/"}
QUEUE = {"name": "batch", "target": "pool", "gate": {"type": "constant"}}
SOUND = {"broker": "redis://127.0.0.1:6379/0", "targets": [TARGET], "queues": [QUEUE]}


def read(document: dict[str, Any], **environment: str) -> Config:
    return read_config(yaml.safe_dump(document), environment)


def queue(**changes: Any) -> dict[str, Any]:
    return {**SOUND, "queues": [{**QUEUE, **changes}]}


def target(**changes: Any) -> dict[str, Any]:
    return {**SOUND, "targets": [{**TARGET, **changes}]}


def test_the_defaults() -> None:
    config = read(SOUND)
    [queue_] = config.queues
    assert config.target("pool").url == "http://gateway:8080/base"
    assert config.target("pool").request_timeout == 300
    assert queue_.rules.lease_ms == 15_000
    assert queue_.rules.result_list == ""
    assert queue_.route(config.target("pool")).request_path() == "/v1/chat/completions"
    assert config.drain_timeout == 120


def test_everything_said() -> None:
    said = {
        "path": "/v1/embeddings",
        "objective": "low",
        "weights": {"a": 2.0, "b": 1},
        "strict_tiers": True,
        "lease": "9s",
        "max_deliveries": 3,
        "max_attempts": 9,
        "max_disconnects": 2,
        "result_ttl": "1h30m",
        "max_payload": "64KiB",
        "max_requests": 9,
        "max_tenant_bytes": "1KiB",
        "results": "go-list",
        "result_list": "answers",
    }
    rules = read(queue(**said)).queues[0].rules
    assert read(queue(**said)).queues[0].attempt_limits == AttemptLimits(9, 2)
    assert (rules.lease_ms, rules.max_deliveries, rules.result_ttl_ms) == (9000, 3, 5_400_000)
    assert (rules.max_payload, rules.weights, rules.strict_tiers) == (65_536, {"a": 2.0, "b": 1.0}, True)
    assert rules.limits == QueueLimits(requests=9, tenant_bytes=1024)
    assert rules.result_list == "answers"


def test_secrets_come_from_the_environment_and_are_not_shown() -> None:
    document = target(headers={"Authorization": "Bearer ${TOKEN}"}) | {"broker": "redis://:${WORD}@r:6379"}
    config = read(document, TOKEN="t0psecret", WORD="passw0rd")
    assert config.queues[0].route(config.target("pool")).headers == {"authorization": "Bearer t0psecret"}
    assert config.broker == "redis://:passw0rd@r:6379"
    assert "t0psecret" not in repr(config)
    assert "passw0rd" not in repr(config)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "broker: it is missing; this field has no default"),
        ([], "expected a mapping"),
        ({**SOUND, "brokers": 1}, "unknown field 'brokers'; did you mean 'broker'? known: broker, http"),
        ({**SOUND, "broker": "kafka://x"}, "broker: expected redis://"),
        ({**SOUND, "broker": "redis://${NOWHERE}"}, "broker: the environment has no variable NOWHERE"),
        ({**SOUND, "targets": []}, "targets: List should have at least 1 item"),
        ({**SOUND, "targets": [TARGET, TARGET]}, "targets: the name 'pool' appears twice"),
        ({**SOUND, "queues": [QUEUE, QUEUE]}, "queues: the name 'batch' appears twice"),
        ({**SOUND, "drain_timeout": "soon"}, "drain_timeout: 'soon' is not a duration"),
        ({**SOUND, "front_door": {"queue": "other"}}, "front_door.queue: there is no queue 'other'; there are: batch"),
        (queue(target="other"), "queues.batch.target: there is no target 'other'; there are: pool"),
        (queue(gate={"type": "open"}), "queues.batch.gate.type: 'open' is no known gate"),
        (queue(gate={"type": "constant", "params": {"x": 1}}), "queues.batch.gate.params: unknown field 'x'"),
        (queue(gate={}), "queues.batch.gate: expected a mapping with a type"),
        (queue(lease="60s"), "queues[0].lease: expected less than or equal to 15"),
        (queue(max_payload="11MiB"), "queues[0].max_payload: expected less"),
        (queue(weights={"a": 0}), "queues[0].weights.a: expected greater than"),
        (queue(path="/admin"), "queues.batch.path: the path '/admin' is not allowed"),
        (queue(results="list"), "queues[0].results: expected 'leased' or 'go-list'"),
        (queue(name="a b"), "queues[0].name: String should match"),
        (target(url="gateway:8080"), "targets[0].url: expected http://"),
        (target(url="http://u:secret@gateway"), "targets[0].url: a user and a password belong"),
        (target(paths=["v1"]), "targets[0]: the path 'v1' is not an absolute path"),
        (target(paths=[]), "targets[0].paths: List should have at least 1 item"),
        (target(headers={"Content-Length": "1"}), "targets[0]: the header 'Content-Length' cannot be set"),
        (target(headers={"a": "${B}"}), "targets[0].headers.a: the environment has no variable B"),
        (target(url="http://gateway:99999"), "targets[0].url: expected http://"),
        (target(url="http://gateway:port"), "targets[0].url: expected http://"),
        (target(url="http://gateway/a b"), "targets[0].url: expected http://"),
        (target(timeout_header="x-time\r\nout"), "targets[0]: the header 'x-time\\r\\nout' cannot be set"),
        ({**SOUND, "broker": "redis://:pa/secret@r:6379/0"}, "broker: expected redis://"),
        ({**SOUND, "broker": "redis://r:99999/0"}, "broker: expected redis://"),
        ({**SOUND, "broker": "redis://:secret@r:port/0"}, "broker: expected redis://"),
        ({**SOUND, "broker": "redis://r/0?max_connections=secret"}, "broker: 'max_connections' cannot"),
        ({**SOUND, "broker": "redis://r/0?nothing=secret"}, "broker: 'nothing' cannot"),
        (queue(result_ttl="999999999999d"), "queues[0].result_ttl: expected less"),
        (queue(weights={"a": 1e-320}), "queues[0].weights.a: expected greater than or equal"),
        ({**SOUND, "front_door": {"queue": "batch", "tokens": {"a": ""}}}, "token of tenant 'a' is empty"),
        ({**SOUND, "front_door": {"queue": "batch", "tokens": {"a": "secret", "b": "secret"}}}, "'a' and 'b' have the same token"),
        ({**SOUND, "front_door": {"queue": "batch", "tokens": {"a\n": "secret"}}}, "tenant 'a\\n'"),
        (queue(results="go-list", result_list="in", intake={"key": "in"}), "queues.batch.result_list: it is 'in', which is an intake"),
        (queue(intake={"result_lists": ["adsum:x"]}), "queues.batch.intake.result_lists: it is 'adsum:x', and that prefix is reserved"),
        (target(concurrency=0), "targets[0].concurrency: expected greater"),
        (target(concurrency="64"), "targets[0].concurrency: expected a valid integer"),
    ],
)  # fmt: skip
def test_what_is_not_sound(document: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(document)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["broker: [", "a: b: c", "&a [*a]", "- x", "", "\x00"])
def test_what_is_no_yaml_mapping(text: str) -> None:
    with pytest.raises(ConfigError):
        read_config(text, {})


def test_what_is_counted_at_one_target_is_counted_in_one_unit() -> None:
    def scrape(name: str, unit: str) -> dict[str, Any]:
        params = {"url": "http://w/metrics", "metric": "load", "unit": unit, "allow_unreachable": True}
        return {**QUEUE, "name": name, "gate": {"type": "endpoint-scrape", "params": params}}

    read({**SOUND, "queues": [scrape("a", "bytes"), scrape("b", "bytes"), QUEUE]})
    with pytest.raises(ConfigError, match="by 'a' in bytes and by 'b' in requests"):
        read({**SOUND, "queues": [scrape("a", "bytes"), scrape("b", "requests")]})


def test_weights_and_numbers_of_yaml() -> None:
    assert read(queue(weights={"a": 3})).queues[0].weights == {"a": 3.0}


def test_faults_of_all_kinds_are_told_at_once_with_what_was_meant() -> None:
    text = """\
broker: redis://r
brokr: 1
targets:
- {name: pool, url: "http://x"}
- {name: other, url: x, concurency: 4}
- {url: "http://x"}
queues:
- name: batch
  target: pol
  leese: 15s
  lease: 60s
  gate: {type: constnt}
- {name: a.b, target: pool, path: /admin, gate: {type: constant, params: {x: 1, y: 2}}}
- {name: a.b, target: pool, gate: {type: constant}}
front_door: {queue: bach}
"""
    with pytest.raises(ConfigError) as caught:
        read_config(text, {})
    assert [(problem.line, problem.place) for problem in caught.value.problems] == [
        (2, ""),
        (5, "targets[1].url"),
        (5, "targets[1]"),
        (6, "targets[2].name"),
        (7, "queues"),
        (9, "queues.batch.target"),
        (10, "queues[0]"),
        (11, "queues[0].lease"),
        (12, "queues.batch.gate.type"),
        (13, "queues.a.b.gate.params"),
        (13, "queues.a.b.gate.params"),
        (13, "queues.a.b.path"),
        (15, "front_door.queue"),
    ]
    assert str(caught.value).startswith(
        "13 problems:\n  line 2: unknown field 'brokr'; did you mean 'broker'?"
    )
    for meant in ("concurrency", "pool", "lease", "constant", "batch"):
        assert f"did you mean {meant!r}?" in str(caught.value)


def test_tokens_are_not_shown() -> None:
    door = {"queue": "batch", "tokens": {"a": "t0psecret"}}
    assert "t0psecret" not in repr(read({**SOUND, "front_door": door}))


def test_a_key_that_appears_twice_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="appears twice|twice in line 2"):
        read_config("broker: redis://:passw0rd@a\nbroker: redis://:passw0rd@b", {})


VALID = """
broker: redis://127.0.0.1:6379/0
targets: [{name: m, url: "http://127.0.0.1:9"}]
queues: [{name: q, target: m, gate: {type: constant}}]
"""


class Server:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.accepted: list[bool] = []

    async def reconfigure(self, config: Config) -> None:
        raise AssertionError("the configuration did not change")

    def set_config_in_force(self, in_force: bool) -> None:
        self.accepted.append(in_force)


class Failing(Server):
    """Refuses one target; notes the targets of what it takes."""

    def __init__(self, refused: str, error: Exception) -> None:
        super().__init__()
        self.applied: list[str] = []
        self._refused = refused
        self._error = error

    async def reconfigure(self, config: Config) -> None:
        name = config.targets[0].name
        if name == self._refused:
            raise self._error
        self.applied.append(name)


async def test_a_named_pipe_in_place_of_the_file_stops_no_dispatcher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Server()
    reloader = ConfigReloader(path, load(path), server)
    path.unlink()
    os.mkfifo(path)
    async with background(reloader.run(), "reloader"):
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [False])
        assert "is a named pipe; expected a regular file" in caplog.text
        path.unlink()
        path.write_text(VALID)
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [True])


@pytest.mark.parametrize("error", [QueueError("away"), TypeError("of a plugin"), ValueError("of a broker")])
async def test_what_comes_after_a_failure_is_applied_also_what_was_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Failing("n", error)
    reloader = ConfigReloader(path, load(path), server)
    async with background(reloader.run(), "reloader"):
        path.write_text(VALID.replace("name: m", "name: n").replace("target: m", "target: n"))
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [False])
        assert f"the old one stays in force: {error}"[:-1] in caplog.text.replace(
            f"{type(error).__name__}: ", ""
        )
        path.write_text(VALID)
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [True])
    assert server.applied == ["m"]


async def test_an_unchanged_file_is_not_parsed_again(tmp_path: Path) -> None:
    """Refused or not: 1 MiB takes the time of many requests."""
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Server()
    reloader = ConfigReloader(path, load(path), server)
    large = VALID.replace("queues: [", "queues: [" + "{name: x, target: y, gate: {type: z}}," * 1_000)
    path.write_text(large)

    async def read_again() -> float:
        """The processor seconds that it took."""
        before, seen = time.process_time(), len(server.accepted)
        reloader.trigger()
        await eventually(lambda: len(server.accepted) > seen)
        return time.process_time() - before

    async with background(reloader.run(), "reloader"):
        first = await read_again()
        second = await read_again()
    assert second < first / 4


def test_a_file_without_an_end(tmp_path: Path) -> None:
    endless = tmp_path / "config.yaml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is larger than 1048576 bytes"):
        load(endless)

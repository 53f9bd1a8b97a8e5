from pathlib import Path

import pytest

from epp import flags
from epp.protocol import ProtocolVersion
from epp.settings import Settings, TransportKind


def test_no_flags_are_the_go_pickers_defaults() -> None:
    settings, verbosity, ignored = flags.parse([])
    assert settings == Settings()
    assert (settings.grpc_port, settings.grpc_health_port, settings.metrics_port) == (9002, 9003, 9090)
    assert settings.secure_serving
    assert (verbosity, ignored) == (2, [])


def test_every_flag_reaches_its_setting() -> None:
    arguments = (
        "--grpc-port 1 --grpc-health-port=2 --metrics-port 3 --secure-serving=true --cert-path /certs "
        "--enable-cert-reload --client-ca-file /ca.pem --transport grpc "
        "--config-file f.yaml --pool-name pool --refresh-metrics-interval 100ms --metrics-staleness-threshold 1m "
        "--disable-endpoint-subset-filter --emit-endpoint-scores=true "
        "--drain-timeout 1m30s --grpc-max-recv-msg-size 5 --max-body-bytes 6 --max-buffered-bytes 7 --host 127.0.0.1 "
        "--metrics-address 127.0.0.2 --discovery file:///x --namespace n --component c "
        "--protocol-version 0.3.0 --model a --model b --objective low=-1 --objective high=2 -v 4"
    )
    settings, verbosity, ignored = flags.parse(arguments.split())
    assert settings == Settings(
        discovery="file:///x",
        namespace="n",
        component="c",
        host="127.0.0.1",
        grpc_port=1,
        grpc_health_port=2,
        metrics_address="127.0.0.2",
        metrics_port=3,
        secure_serving=True,
        cert_path=Path("/certs"),
        enable_cert_reload=True,
        client_ca_file=Path("/ca.pem"),
        transport=TransportKind.GRPC,
        config_file=Path("f.yaml"),
        pool_name="pool",
        disable_endpoint_subset_filter=True,
        emit_endpoint_scores=True,
        refresh_metrics_interval=0.1,
        metrics_staleness_threshold=60,
        drain_timeout=90,
        grpc_max_recv_msg_size=5,
        max_body_bytes=6,
        max_buffered_bytes=7,
        protocol_version=ProtocolVersion.V0_3,
        models=frozenset({"a", "b"}),
        objectives={"low": -1, "high": 2},
    )
    assert (verbosity, ignored) == (4, [])


def test_endpoints_are_static_discovery() -> None:
    settings, _, _ = flags.parse(["--endpoint", "10.0.0.1:8000", "--endpoint", "[fd00::1]:8000"])
    assert settings.discovery == "static://10.0.0.1:8000,[fd00::1]:8000"


@pytest.mark.parametrize(
    ("text", "value"), [([], True), (["--secure-serving"], True), (["--secure-serving=0"], False)]
)
def test_booleans_are_written_as_in_go(text: list[str], value: bool) -> None:
    assert flags.parse(text)[0].secure_serving is value


def test_go_flags_without_effect_are_accepted_and_named() -> None:
    _, _, ignored = flags.parse(
        ["--enable-pprof", "--tracing=false", "--pool-group", "g", "--zap-encoder=json"]
    )
    assert ignored == ["enable-pprof", "pool-group", "tracing", "zap-encoder"]


@pytest.mark.parametrize(
    "flag",
    [
        "total-queued-requests-metric",
        "kv-cache-usage-percentage-metric",
        "lora-info-metric",
        "cache-info-metric",
    ],
)
def test_flags_that_the_go_picker_only_parses_any_more_are_accepted(flag: str) -> None:
    assert flags.parse([f"--{flag}=x"])[2] == [flag]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--grpc-port 70000", "0 to 65535"),
        ("--grpc-port x", "0 to 65535"),
        ("--drain-timeout 30", "write a number with a unit"),
        ("--secure-serving=maybe", "neither true nor false"),
        ("--objective low", "NAME=PRIORITY"),
        ("--objective low=x", "NAME=PRIORITY"),
        ("--objective =1", "NAME=PRIORITY"),
        ("--max-body-bytes 0", "from 1 to"),
        ("--max-body-bytes 2147483648", "--max-buffered-bytes"),
        ("--max-buffered-bytes 5", "--max-body-bytes"),
        ("--grpc-max-recv-msg-size 2147483648", "from 1 to 2147483647"),
        ("--drain-timeout " + "9" * 30 + "s", "is not a duration"),
        pytest.param("--grpc-port " + "9" * 5000, "0 to 65535", id="a long port"),
        pytest.param("--max-body-bytes " + "9" * 5000, "from 1 to", id="a long size"),
        pytest.param("--objective a=" + "9" * 5000, "NAME=PRIORITY", id="a long priority"),
        pytest.param("--drain-timeout " + "9" * 5000, "is not a duration", id="a long duration"),
        ("--protocol-version 9", "protocol-version"),
        ("--transport quic", "--transport"),
        ("--client-ca-file f --secure-serving=false", "needs --secure-serving"),
        ("--discovery file:///x --endpoint 10.0.0.1:1", "exclude each other"),
        ("--config-file f --config-text x", "exclude each other"),
        ("--no-such-flag", "no-such-flag"),
        ("--grpc-por 1", "--grpc-por"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parse(arguments.split())
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert complaint in line
    assert line.count("\n") == 1
    assert len(line) < 300

"""docs/shutdown.md names the time-outs that the code and the charts have."""

import inspect
import re
from pathlib import Path

import pytest
import yaml

from adsum.serving.pages import ConnectionLimits
from dispatcher.config.config_file import Config, QueueConfig
from dispatcher.pump.queue_runner import STORE_TIMEOUT
from epp.config.settings import LAME_DUCK, Settings
from epp.data_plane_ports import RECENT
from epp.wire.server.transport import GOAWAY_TIMEOUT
from registry.handle import _IDLE_SECONDS, RegisteredInstance
from registry.server import _SHUTDOWN_TIMEOUT
from registry.sidecar.sidecar import FollowedServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "shutdown.md").read_text()
WORKER_DRAIN = inspect.signature(RegisteredInstance.drain_on_sigterm).parameters["timeout"].default


@pytest.mark.parametrize(
    ("section", "row", "seconds"),
    [
        ("Worker", "drain", WORKER_DRAIN),
        ("Worker", "idle", _IDLE_SECONDS),
        ("Worker", "answers", _SHUTDOWN_TIMEOUT),
        ("Picker", "all of it", inspect.signature(Settings).parameters["drain_timeout"].default),
        ("Picker", "lame duck", LAME_DUCK),
        ("Picker", "no lame duck", RECENT),
        ("Picker", "between the GOAWAY", GOAWAY_TIMEOUT),
        ("Picker", "for a peer", GOAWAY_TIMEOUT),
        ("Dispatcher", "drain", Config.model_fields["drain_timeout"].default),
        ("Dispatcher", "storing", STORE_TIMEOUT),
        ("Dispatcher", "clients", ConnectionLimits().shutdown_timeout),
        ("Dispatcher", "after a kill", QueueConfig.model_fields["lease"].default),
    ],
)
def test_a_timeout_is_the_one_in_the_code(section: str, row: str, seconds: float) -> None:
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    [named] = re.findall(rf"^\| {row}[^|]*\| ([\d.]+) s", text, re.MULTILINE)
    assert float(named) == seconds


def test_the_sidecar_drains_as_long_as_is_said() -> None:
    default = inspect.signature(FollowedServer).parameters["drain_timeout"].default
    assert f"at most `--drain-timeout` ({default:g} s)" in PAGE


@pytest.mark.parametrize(("row", "chart"), [("worker", "worker"), ("picker", "epp")])
def test_the_charts_have_the_grace_periods_that_are_said(row: str, chart: str) -> None:
    drain = yaml.safe_load((ROOT / "charts" / chart / "values.yaml").read_text())["drain"]
    [template] = re.findall(
        r"terminationGracePeriodSeconds: {{ add .Values.drain.preStopSeconds .Values.drain.timeoutSeconds (\d+) }}",
        "".join(path.read_text() for path in (ROOT / "charts" / chart / "templates").iterdir()),
    )
    said = f"| {row} | {drain['preStopSeconds']} s, `drain.preStopSeconds` | {drain['timeoutSeconds']} s, "
    assert f"{said}`drain.timeoutSeconds` | their sum and {template} s |" in PAGE

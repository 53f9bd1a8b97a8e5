"""The sections `outlierDetection` and `slowStart`: their defaults, their bounds, and what the docs say of both."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from epp.config.picker_config import PickerConfig, load_config
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings

PAGE = (Path(__file__).parents[3] / "docs" / "failing-workers.md").read_text()


def load(**sections: Any) -> PickerConfig:
    head = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
    return load_config(yaml.safe_dump(head | sections), rng=random.Random(1))


def test_a_file_without_the_sections_ejects_nothing_and_warms_up_nothing() -> None:
    config = load()
    assert (config.outliers, config.slow_start) == (None, None)


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_without_a_configuration_both_are_on(text: str | None) -> None:
    config = load_config(text, rng=random.Random(1))
    assert (config.outliers, config.slow_start) == (OutlierSettings(), SlowStartSettings())
    assert config.steps[:2] == load(outlierDetection={}, slowStart={}).steps[:2]


def test_empty_sections_are_the_defaults() -> None:
    config = load(outlierDetection={}, slowStart={})
    assert config.outliers == OutlierSettings()
    assert config.slow_start == SlowStartSettings()


def test_every_field() -> None:
    config = load(
        outlierDetection={
            "consecutive5xx": 1, "consecutiveLocalOriginFailure": 0, "failurePercentageThreshold": 50,
            "failurePercentageMinimumHosts": 3, "failurePercentageRequestVolume": 4, "interval": "5s",
            "baseEjectionTime": "1m", "maxEjectionTime": "2m", "maxEjectionPercent": 12.5,
            "stallTimeout": "0", "suspectTimeout": "2s", "stalledRequests": 7, "probePath": "", "probeTimeout": "500ms",
        },
        slowStart={"window": "10s", "aggression": 2, "minWeightPercent": 0},
    )  # fmt: skip
    assert config.outliers == OutlierSettings.model_construct(
        consecutive_5xx=1, consecutive_local_origin_failure=0, failure_percentage_threshold=50.0,
        failure_percentage_minimum_hosts=3, failure_percentage_request_volume=4, interval=5.0,
        base_ejection_time=60.0, max_ejection_time=120.0, max_ejection_percent=12.5,
        stall_timeout=0.0, suspect_timeout=2.0, stalled_requests=7, probe_path="", probe_timeout=0.5,
    )  # fmt: skip
    assert config.slow_start == SlowStartSettings.model_construct(
        window=10.0, aggression=2.0, min_weight_percent=0.0
    )


def test_what_they_do_is_said_for_people() -> None:
    assert load(outlierDetection={}, slowStart={}).steps[:2] == (
        "outlier detection: an endpoint that fails is ejected for 30 to 300 s, at most 50 % of the pool at once",
        "slow start: a new endpoint gets its full share after 30 s",
    )
    assert not any("outlier" in step or "slow" in step for step in load().steps)


def test_a_long_base_is_the_longest_time_too() -> None:
    config = load(outlierDetection={"baseEjectionTime": "10m"})
    assert config.outliers is not None
    assert config.outliers.longest_ejection == 600.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"consecutive5xx": -1}, "outlierDetection.consecutive5xx"),
        ({"consecutive5xx": 10**9}, "outlierDetection.consecutive5xx"),
        ({"consecutive5xx": "5"}, "outlierDetection.consecutive5xx"),
        ({"consecutive5xxErrors": 5}, "did you mean 'consecutive5xx'"),
        ({"maxEjectionPercent": 101}, "outlierDetection.maxEjectionPercent"),
        ({"maxEjectionPercent": float("nan")}, "outlierDetection.maxEjectionPercent"),
        ({"interval": "0s"}, "outlierDetection.interval"),
        ({"interval": "10"}, "is not a duration"),
        ({"baseEjectionTime": "100h"}, "outlierDetection.baseEjectionTime"),
        ({"stallTimeout": -1}, "outlierDetection.stallTimeout"),
        ({"stalledRequests": 0}, "outlierDetection.stalledRequests"),
        ({"failurePercentageRequestVolume": 0}, "outlierDetection.failurePercentageRequestVolume"),
        ({"failurePercentageRequestVolume": 1001}, "outlierDetection.failurePercentageRequestVolume"),
        ({"probePath": "health"}, "expected a path such as /health"),
        ({"probePath": "/a b"}, "expected a path such as /health"),
        ({"probePath": "/a\r\nX: y"}, "expected a path such as /health"),
        ({"probePath": "/" + "a" * 1024}, "expected a path such as /health"),
        ({"baseEjectionTime": "30s", "maxEjectionTime": "20s"}, "maxEjectionTime is shorter"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(outlierDetection=given)


@pytest.mark.parametrize(
    "given", [{"window": "0s"}, {"aggression": 0}, {"aggression": float("inf")}, {"minWeightPercent": 200}]
)
def test_a_slow_start_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="slowStart"):
        load(slowStart=given)


def test_the_docs_have_every_field_and_its_default() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| `?([^|` ]*)", PAGE, re.MULTILINE))
    for section in (OutlierSettings, SlowStartSettings):
        for name, field in section.model_fields.items():
            default = 300.0 if name == "max_ejection_time" else field.default
            text = said.pop(field.alias or name)
            assert text.removesuffix("s") in (
                str(default),
                default if isinstance(default, str) else f"{default:g}",
            ), name
    assert not said


@pytest.mark.parametrize("shown", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_configurations_shown_are_sound(shown: str) -> None:
    config = load_config(shown, rng=random.Random(1))
    assert not config.warnings
    assert config.outliers is not None

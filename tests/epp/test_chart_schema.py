"""What the charts let through is what the code knows."""

import argparse
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dispatcher.config.config_file import Config, FrontDoorConfig, IntakeConfig, QueueConfig, TargetConfig
from epp.config.declared_flags import duration
from epp.config.document import (
    ConfigDocument,
    FlowControl,
    PluginSpec,
    PriorityBandSection,
    ProfilePlugin,
    ProfileSpec,
)
from epp.config.flags import build_parser
from epp.envoy import flags as envoy_flags
from epp.scraping.engines import ENGINES

CHARTS = Path(__file__).parents[2] / "charts"


def schema(chart: str) -> Any:
    return json.loads((CHARTS / chart / "values.schema.json").read_text())


def long_flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """By name, without --help and --version, which end the program."""
    options = {option: action for action in parser._actions for option in action.option_strings}
    named = {option[2:]: action for option, action in options.items() if option.startswith("--")}
    return {name: action for name, action in named.items() if name not in ("help", "version")}


def test_what_the_charts_tell_people_names_the_command_in_one_form() -> None:
    """`adsum discovery explain`, as the pages have it. What a container runs is a list."""
    module = re.compile(r"python3? -m (adsum|epp|discovery|registry|dispatcher)\b.*")
    found = {path.name: module.findall(path.read_text()) for path in CHARTS.rglob("*") if path.is_file()}
    assert [name for name, texts in found.items() if texts] == []


def test_the_worker_chart_takes_the_engines_that_the_picker_knows() -> None:
    known = {engine.name for engine in ENGINES}
    assert set(schema("worker")["properties"]["engine"]["enum"]) == {"", *known}
    comments = (CHARTS / "worker" / "values.yaml").read_text().split()
    assert known <= {word.strip(".,") for word in comments}


def test_the_picker_chart_gives_no_flag_that_the_picker_does_not_know() -> None:
    _, given = schema("epp")["definitions"]["ownFlag"]["allOf"]
    assert set(given["not"]["enum"]) < long_flags(build_parser()).keys()


@pytest.mark.parametrize(
    "text", ["0s", "1.5h", ".5s", "1m30s", "100us", "1", "s", "1d", "1 s", "", "-1s", "1s "]
)
def test_the_picker_chart_knows_a_duration(text: str) -> None:
    try:
        duration(text)
        known = True
    except argparse.ArgumentTypeError:
        known = False
    pattern = schema("epp")["definitions"]["duration"]["pattern"]
    assert (re.search(pattern, text) is not None) is known


def test_the_picker_chart_takes_the_sections_that_a_configuration_has() -> None:
    known = schema("epp")["definitions"]["pickerConfig"]["properties"]
    plugin, profile = known["plugins"]["items"], known["schedulingProfiles"]["items"]
    band = schema("epp")["definitions"]["priorityBand"]
    sections: list[tuple[type[BaseModel], Any]] = [
        (ConfigDocument, known),
        (PluginSpec, plugin["properties"]),
        (ProfileSpec, profile["properties"]),
        (ProfilePlugin, profile["properties"]["plugins"]["items"]["properties"]),
        (FlowControl, known["flowControl"]["properties"]),
        (PriorityBandSection, band["properties"]),
    ]
    for model, properties in sections:
        assert set(properties) == {field.alias or name for name, field in model.model_fields.items()}, model
    versions = get_args(ConfigDocument.model_fields["api_version"].annotation)
    assert tuple(known["apiVersion"]["enum"]) == versions


def test_the_gateway_chart_takes_the_flags_of_envoy_config_that_it_does_not_give_itself() -> None:
    known = set(long_flags(envoy_flags.build_parser()))
    given = {"listen-port", "admin-address", "admin-port", "status-port", "epp", "ca-file"}
    given |= {"secure", "secure-serving", "client-cert", "client-key"}
    # of workers that are listed, which Pods are not, and of a file on Envoy's machine
    given |= {"endpoint", "eds-file"}
    given |= {"peers", "picker-config"}  # of the values peers and pickerConfig
    given |= {"remove-request-header"}  # of the value removeRequestHeaders
    assert set(schema("gateway")["properties"]["flags"]["properties"]) == known - given


def test_the_dispatcher_chart_takes_the_fields_that_the_dispatcher_knows() -> None:
    config = schema("dispatcher")["properties"]["config"]["properties"]
    queue = config["queues"]["items"]["properties"]
    sections: list[tuple[type[BaseModel], Any, set[str]]] = [
        (Config, config, {"broker", "http", "drain_timeout"}),  # the chart gives these itself
        (TargetConfig, config["targets"]["items"]["properties"], set()),
        (QueueConfig, queue, set()),
        (IntakeConfig, queue["intake"]["properties"], set()),
        (FrontDoorConfig, config["front_door"]["properties"], set()),
    ]
    for model, properties, own in sections:
        assert set(properties) == set(model.model_fields) - own, model

"""Settings of flow control with the policies that a file gets if it names none."""

import random
from dataclasses import replace
from typing import Any, Final

from epp.config.picker_config import load_config
from epp.flow_control.settings import FlowControlSettings, PriorityBand

_FILE: Final = "{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, featureGates: [flowControl]}"


def flow_settings(**given: Any) -> FlowControlSettings:
    settings = load_config(_FILE, rng=random.Random(1)).flow_control
    assert settings is not None
    return replace(settings, **given)


def band_settings(**given: Any) -> PriorityBand:
    return replace(flow_settings().default_band, **given)

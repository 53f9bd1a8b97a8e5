"""Pages that are asked over https by anybody's certificate: said once."""

import json

import pytest

from epp.config.settings import Settings
from epp.server import PickerServer

DOCUMENT = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "dataLayer": {"sources": [{"pluginRef": "metrics-data-source"}]},
}


@pytest.mark.parametrize(
    ("parameters", "is_said"),
    [({"scheme": "https"}, True), ({"scheme": "https", "insecureSkipVerify": False}, False), ({}, False)],
)
async def test_that_no_certificate_is_verified_is_said_once(
    parameters: dict[str, object], is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = [{"type": "metrics-data-source", "parameters": parameters}, {"type": "queue-scorer"}]
    profiles = [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]
    config = json.dumps(DOCUMENT | {"plugins": plugins, "schedulingProfiles": profiles})
    ports = {"grpc_port": 0, "grpc_health_port": 0, "metrics_port": 0}
    settings = Settings(
        discovery="memory://nobody", host="127.0.0.1", secure_serving=False, config_text=config, **ports
    )
    async with PickerServer(settings):
        pass
    lines = [record.getMessage() for record in caplog.records if "https" in record.getMessage()]
    assert len(lines) == is_said
    assert all("insecureSkipVerify: false or caCertPath" in line for line in lines)

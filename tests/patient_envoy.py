"""An Envoy that waits for its picker, for tests of anything else than how soon it gives one up."""

from typing import Any, Final

_PATIENCE: Final = "90s"


def patient(config: dict[str, Any]) -> dict[str, Any]:
    """The same bootstrap configuration, in which no picker is too slow: on a busy machine it answers PINGs and health checks late."""
    for cluster in config["static_resources"]["clusters"]:
        if cluster["name"] == "picker" or cluster["name"].startswith("outcomes-"):
            cluster["connect_timeout"] = _PATIENCE
            for options in cluster["typed_extension_protocol_options"].values():
                http2 = options["explicit_http_config"]["http2_protocol_options"]
                http2["connection_keepalive"] = {"interval": _PATIENCE, "timeout": _PATIENCE}
            for check in cluster.get("health_checks", ()):
                check["timeout"] = _PATIENCE
    return config

"""Picker configurations that several benchmarks use, all derived from the default one."""

from typing import Final

from epp.config.picker_config import DEFAULT_CONFIG

GO_DEFAULT: Final = "".join(
    line for line in DEFAULT_CONFIG.splitlines(keepends=True) if "in-flight-scorer" not in line
)
"""The default profile of the Go picker: the in-flight scorer is the only one that our default adds to it."""
_FILE: Final = """\
plugins:
- {type: file-discovery, parameters: {path: ENDPOINTS, watchFile: WATCHED}}
"""
_DISCOVERY: Final = "dataLayer: {discovery: {pluginRef: file-discovery}}\n"


def over_endpoints_file(config: str, *, watched: bool = False) -> str:
    """Reads the endpoints from the file ENDPOINTS: the only source that the Go picker has without Kubernetes."""
    return config.replace("plugins:\n", _FILE.replace("WATCHED", str(watched).lower()), 1) + _DISCOVERY

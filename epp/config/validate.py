"""`python -m epp validate FILE`: reports all problems of a configuration file, or describes the picker that it configures."""

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from epp.config.installed import GROUP
from epp.config.picker_config import PickerConfig, load_config
from runtime.command_line import FAILED, WRONG_INPUT, print_error
from runtime.config.problems import ConfigError
from runtime.entry_points import PluginError

_MAX_SIZE: Final = 1024 * 1024
"""Bytes; a ConfigMap holds at most 1 MiB."""


def read_config(path: Path, *, rng: random.Random, staleness: float = 2.0) -> PickerConfig:
    """Load a configuration file; raises ConfigError, whose text names the file."""
    text = read_text(path)
    try:
        return load_config(text, rng=rng, staleness=staleness)
    except ConfigError as error:
        raise error.in_file(path) from error


def read_text(path: Path) -> str:
    """The text of a configuration file; raises ConfigError, whose text names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), _read_failure(error)) from error
    if len(content) > _MAX_SIZE:
        raise ConfigError(str(path), f"is larger than {_MAX_SIZE} bytes, the limit of a ConfigMap")
    return text


def _read_failure(error: OSError | UnicodeDecodeError) -> str:
    problem = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
    return f"cannot be read: {problem}; expected an EndpointPickerConfig in YAML"


def validate(path: Path) -> int:
    """The exit code: 0 for a valid file, 1 for an invalid one, 2 if it cannot be read."""
    try:
        config = read_config(path, rng=random.Random())
        installed = GROUP.packages()
    except PluginError as error:
        return print_error(error, FAILED)
    except ConfigError as error:
        return print_error(error.with_lines, WRONG_INPUT if isinstance(error.__cause__, OSError) else FAILED)
    sys.stdout.writelines(
        f"{line}\n" for line in (f"{path} is valid", *_describe(config), *_installed_types(installed))
    )
    return 0


def _installed_types(installed: Mapping[str, str]) -> Iterator[str]:
    """The plugin types of installed packages, which a file may name too."""
    if installed:
        types = ", ".join(f"{name} ({package})" for name, package in installed.items())
        yield f"  plugin types of installed packages: {types}"


def _describe(config: PickerConfig) -> Iterator[str]:
    yield from (f"  {step}" for step in config.steps)
    source = config.metrics
    if source is None:
        yield "  metrics are not read"
    else:
        port = "the port of requests" if source.port is None else f"port {source.port}"
        yield f"  metrics from {source.scheme}, {port}, {source.path}, unless a worker's metadata name another page"
    file = config.file_discovery
    yield "  workers from the source that the flags name" if file is None else f"  workers from {file.path}"
    if config.passthrough:
        yield "  bodies are not parsed"
    yield from (f"  warning: {warning}" for warning in config.warnings)

"""The configuration as a file: read, refused with all that is wrong, or told in words: `python -m epp validate FILE`."""

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

_LONGEST: Final = 1024 * 1024
"""Bytes: more than a ConfigMap holds."""


def read_config(path: Path, *, rng: random.Random, staleness: float = 2.0) -> PickerConfig:
    """Raises ConfigError, whose text names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), _why(error)) from error
    if len(content) > _LONGEST:
        raise ConfigError(str(path), f"is larger than {_LONGEST} bytes, which no ConfigMap is")
    try:
        return load_config(text, rng=rng, staleness=staleness)
    except ConfigError as error:
        raise error.in_file(path) from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    said = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
    return f"cannot be read: {said}; expected an EndpointPickerConfig in YAML"


def validate(path: Path) -> int:
    """The exit code: 0 the file is sound, 1 it is not, 2 there is none."""
    try:
        config = read_config(path, rng=random.Random())
        installed = GROUP.packages()
    except PluginError as error:
        return print_error(error, FAILED)
    except ConfigError as error:
        return print_error(error, WRONG_INPUT if isinstance(error.__cause__, OSError) else FAILED)
    sys.stdout.writelines(
        f"{line}\n" for line in (f"{path} is sound", *_in_words(config), *_offered(installed))
    )
    return 0


def _offered(installed: Mapping[str, str]) -> Iterator[str]:
    """What a file could name besides what is built in."""
    if installed:
        types = ", ".join(f"{name} ({package})" for name, package in installed.items())
        yield f"  plugin types of installed packages: {types}"


def _in_words(config: PickerConfig) -> Iterator[str]:
    yield from (f"  {step}" for step in config.steps)
    source = config.metrics
    if source is None:
        yield "  metrics are not read"
    else:
        port = "the port that serves" if source.port is None else f"port {source.port}"
        yield f"  metrics from {source.scheme}, {port}, {source.path}, unless a worker says otherwise"
    file = config.file_discovery
    yield "  workers as the flags say" if file is None else f"  workers from {file.path}"
    if config.passthrough:
        yield "  bodies are not looked into"
    yield from (f"  warning: {warning}" for warning in config.warnings)

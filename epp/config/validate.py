"""`python -m epp validate FILE`: reports all problems of a configuration file, or describes the picker that it configures."""

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from adsum import changing_files
from adsum.command_line import FAILED, WRONG_INPUT, print_error
from adsum.config.problems import ConfigError
from adsum.config.yaml_document import parse_yaml
from adsum.entry_points import PluginError
from epp.config.document import ConfigDocument
from epp.config.embedded_configs import EXPECTED, EmbeddedConfig, documents_of, embedded_configs
from epp.config.installed import GROUP
from epp.config.picker_config import DEFAULT_CONFIG, PickerConfig, build_config, parse_document

_EXPECTED: Final = "an EndpointPickerConfig in YAML"


def read_text(path: Path) -> str:
    """The text of a configuration file; raises ConfigError, whose text names the file."""
    return changing_files.read_text(path, _EXPECTED)


def validate(path: Path) -> int:
    """The exit code: 0 if all configurations of the file are valid, 1 if one is not, 2 if it cannot be read."""
    code = 0
    try:
        installed = GROUP.packages()
        for one in _configs(path):
            name = f"{path}: {one.place}" if one.place else str(path)
            try:
                config = build_config(parse_document(one.written), rng=random.Random())
            except ConfigError as error:
                code = print_error(error.in_file(name).with_lines, FAILED)
                continue
            sys.stdout.writelines(
                f"{line}\n" for line in (f"{name} is valid", *_describe(config), *_installed_types(installed))
            )
    except PluginError as error:
        return print_error(error, FAILED)
    except ConfigError as error:
        return print_error(error.with_lines, WRONG_INPUT if isinstance(error.__cause__, OSError) else FAILED)
    return code


def _configs(path: Path) -> list[EmbeddedConfig]:
    """Raises ConfigError for a file that has none and is none."""
    text = read_text(path)
    try:
        if not text.strip():
            return [EmbeddedConfig("", parse_yaml(DEFAULT_CONFIG))]
        documents = documents_of(text)
        if found := list(embedded_configs(documents)):
            return found
    except ConfigError as error:
        raise error.in_file(path) from error
    whole, *more = documents
    if more or (isinstance(whole.given, dict) and not whole.given.keys() & _FIELDS):
        raise ConfigError(str(path), f"holds no configuration of a picker; {EXPECTED}")
    return [EmbeddedConfig("", whole)]  # its kind is missing, or misspelt


_FIELDS: Final = {field.alias or name for name, field in ConfigDocument.model_fields.items()} - {
    "apiVersion",
    "kind",
}


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

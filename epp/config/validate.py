"""`python -m epp validate FILE`: reports all problems of a configuration file, or describes the picker that it configures."""

import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from adsum import changing_files
from adsum.command_line import FAILED, WRONG_INPUT, print_error
from adsum.config.problems import ConfigError
from adsum.config.yaml_document import YamlDocument, parse_yaml
from adsum.entry_points import PluginError
from epp.config.document import KIND, ConfigDocument
from epp.config.installed import GROUP
from epp.config.picker_config import DEFAULT_CONFIG, PickerConfig, build_config, parse_document

_EXPECTED: Final = "an EndpointPickerConfig in YAML"
_HOLDERS: Final = (
    "expected an EndpointPickerConfig as the file itself, in a ConfigMap under data, in the values of llm-d-router's charts "
    "under router.epp.pluginsCustomConfig, or in the values of charts/epp under config"
)
_SEPARATOR: Final = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)


class _EmbeddedConfig(NamedTuple):
    """`place`: such as `document 2, data["picker.yaml"]`, "" for the file itself."""

    place: str
    written: YamlDocument


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


def _configs(path: Path) -> list[_EmbeddedConfig]:
    """Raises ConfigError for a file that has none and is none."""
    text = read_text(path)
    try:
        if not text.strip():
            return [_EmbeddedConfig("", parse_yaml(DEFAULT_CONFIG))]
        documents = _documents_of(text)
        if found := list(_embedded_configs(documents)):
            return found
    except ConfigError as error:
        raise error.in_file(path) from error
    whole, *more = documents
    if more or (isinstance(whole.given, dict) and not whole.given.keys() & _FIELDS):
        raise ConfigError(str(path), f"holds no configuration of a picker; {_HOLDERS}")
    return [_EmbeddedConfig("", whole)]  # its kind is missing, or misspelt


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


def _documents_of(text: str) -> list[YamlDocument]:
    """Raises ConfigError for what is no YAML."""
    starts = [0, *(found.start() for found in _SEPARATOR.finditer(text))]
    parts = ((start, text[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True))
    return [
        parse_yaml(part, first_line=text.count("\n", 0, start)) for start, part in parts if part.strip("-\n ")
    ]


def _embedded_configs(documents: Sequence[YamlDocument]) -> Iterator[_EmbeddedConfig]:
    """Raises ConfigError for a text that says it is a configuration and is no YAML."""
    for number, document in enumerate(documents, 1):
        where = f"document {number}" if len(documents) > 1 else ""
        for one in _inside(document, document.root, document.given, ""):
            yield _EmbeddedConfig(", ".join(filter(None, (where, one.place))), one.written)


def _inside(document: YamlDocument, node: Any, given: Any, place: str) -> Iterator[_EmbeddedConfig]:
    if isinstance(node, yaml.MappingNode) and isinstance(given, dict):
        if given.get("kind") == KIND:
            yield _EmbeddedConfig(place, replace(document, root=node, given=given))
            return
        for key, value in node.value:
            name = str(key.value)
            inner = f'{place}["{name}"]' if "." in name else f"{place}.{name}".lstrip(".")
            yield from _inside(document, value, given.get(name), inner)
    elif isinstance(node, yaml.SequenceNode) and isinstance(given, list):
        for index, (one, value) in enumerate(zip(node.value, given, strict=False)):
            yield from _inside(document, one, value, f"{place}[{index}]")
    elif isinstance(node, yaml.ScalarNode) and isinstance(given, str) and KIND in given:
        yield from _in_text(document, node, given, place)


def _in_text(
    document: YamlDocument, node: yaml.ScalarNode, given: str, place: str
) -> Iterator[_EmbeddedConfig]:
    block = node.style in ("|", ">")
    first = document.first_line + node.start_mark.line + block
    try:
        held = parse_yaml(given, first_line=first)
    except ConfigError as error:
        if re.search(rf"^kind: *{KIND}", given, re.MULTILINE):  # else it only mentions the name
            raise error.in_file(place) from error
        return
    if isinstance(held.given, dict) and held.given.get("kind") == KIND:
        yield _EmbeddedConfig(place, held)

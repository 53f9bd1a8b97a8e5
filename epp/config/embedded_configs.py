"""Finds each EndpointPickerConfig in a file: the documents, what helm values and ConfigMaps hold (pure)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import yaml

from adsum.config.problems import ConfigError
from adsum.config.yaml_document import YamlDocument, parse_yaml
from epp.config.document import KIND

EXPECTED: Final = (
    "expected an EndpointPickerConfig as the file itself, in a ConfigMap under data, in the values of llm-d-router's charts "
    "under router.epp.pluginsCustomConfig, or in the values of charts/epp under config"
)
_SEPARATOR: Final = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)


class EmbeddedConfig(NamedTuple):
    """`place`: such as `document 2, data["picker.yaml"]`, "" for the file itself."""

    place: str
    written: YamlDocument


def documents_of(text: str) -> list[YamlDocument]:
    """Raises ConfigError for what is no YAML."""
    starts = [0, *(found.start() for found in _SEPARATOR.finditer(text))]
    parts = ((start, text[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True))
    return [
        parse_yaml(part, first_line=text.count("\n", 0, start)) for start, part in parts if part.strip("-\n ")
    ]


def embedded_configs(documents: Sequence[YamlDocument]) -> Iterator[EmbeddedConfig]:
    """Raises ConfigError for a text that says it is a configuration and is no YAML."""
    for number, document in enumerate(documents, 1):
        where = f"document {number}" if len(documents) > 1 else ""
        for one in _inside(document, document.root, document.given, ""):
            yield EmbeddedConfig(", ".join(filter(None, (where, one.place))), one.written)


def _inside(document: YamlDocument, node: Any, given: Any, place: str) -> Iterator[EmbeddedConfig]:
    if isinstance(node, yaml.MappingNode) and isinstance(given, dict):
        if given.get("kind") == KIND:
            yield EmbeddedConfig(place, replace(document, root=node, given=given))
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
) -> Iterator[EmbeddedConfig]:
    block = node.style in ("|", ">")
    first = document.first_line + node.start_mark.line + block
    try:
        held = parse_yaml(given, first_line=first)
    except ConfigError as error:
        if re.search(rf"^kind: *{KIND}", given, re.MULTILINE):  # else it only mentions the name
            raise error.in_file(place) from error
        return
    if isinstance(held.given, dict) and held.given.get("kind") == KIND:
        yield EmbeddedConfig(place, held)

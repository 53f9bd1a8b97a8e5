"""Parses a configuration as Go does, from YAML or JSON, and finds the line of each place (pure)."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import yaml

from runtime.config.problems import ConfigError
from runtime.config.yaml_problem import yaml_problem


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed document: `given` is the mapping without nulls, `root` its YAML node."""

    given: dict[str, Any]
    root: yaml.Node | None

    def line(self, place: str) -> int | None:
        """The line of `plugins[1].parameters.path`, or of the closest parent that exists; None if there is none."""
        found: int | None = None
        node: yaml.Node | None = self.root
        for part in _PART.findall(place):
            at, node = _find_child(node, part)
            if at is None:
                break
            found = at.start_mark.line + 1
        return found


_PART = re.compile(r"[^.\[\]]+")


def _find_child(node: yaml.Node | None, part: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The node of an element or a key of `node`, and the node of its value."""
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    if isinstance(node, yaml.MappingNode):
        return next((pair for pair in node.value if pair[0].value == part), (None, None))
    return None, None


def read_yaml(text: str, expected: str) -> YamlDocument:
    """Raises ConfigError for anything but a YAML mapping; `expected` describes the mapping in the error."""
    try:
        loader = _Loader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
            given = None if root is None else without_nulls(loader.construct_document(root))
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigError("", "the configuration is nested too deeply, or contains itself") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError("", f"the configuration is not YAML: {yaml_problem(error)}") from error
    if not isinstance(given, dict):
        raise ConfigError("", f"the configuration is not a mapping; expected {expected}")
    return YamlDocument(given, root)


class _Loader(yaml.SafeLoader):
    """YAML as Go's strict decoder reads it: a duplicate key is an error, where PyYAML takes the last value; 1e1 is a float."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, count in Counter(keys).items():
            if count > 1:
                problem = f"the key {key!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node


# PyYAML implements YAML 1.1, whose floats need a point and a signed exponent; YAML 1.2 and Go do not
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def without_nulls(given: Any) -> Any:
    """Go's decoder leaves a field that is null at its default; so remove nulls."""
    if isinstance(given, dict):
        return {name: without_nulls(value) for name, value in given.items() if value is not None}
    return [without_nulls(value) for value in given] if isinstance(given, list) else given

"""The text of a configuration: YAML or JSON, read as Go reads it, and where in it things stand (pure)."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import yaml

from runtime.config.problems import ConfigError
from runtime.config.yaml_problem import yaml_problem


@dataclass(frozen=True, slots=True)
class Written:
    """A mapping without nulls, and the nodes that it was read from."""

    given: dict[str, Any]
    root: yaml.Node | None

    def line(self, place: str) -> int | None:
        """Of `plugins[1].parameters.path`, or of what is nearest above it; None for what names no place."""
        found: int | None = None
        node: yaml.Node | None = self.root
        for part in _PART.findall(place):
            at, node = _child(node, part)
            if at is None:
                break
            found = at.start_mark.line + 1
        return found


_PART = re.compile(r"[^.\[\]]+")


def _child(node: yaml.Node | None, part: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """Where an element or a key of `node` stands, and its value."""
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    if isinstance(node, yaml.MappingNode):
        return next((pair for pair in node.value if pair[0].value == part), (None, None))
    return None, None


def read_yaml(text: str, expected: str) -> Written:
    """Raises ConfigError for what is no YAML, or no mapping; `expected` is what the mapping holds."""
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
    return Written(given, root)


class _Loader(yaml.SafeLoader):
    """YAML as Go reads it strictly: a key that stands twice is a fault, not the last one's victory; 1e1 is a number."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, count in Counter(keys).items():
            if count > 1:
                problem = f"the key {key!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node


# YAML 1.1, which yaml follows, wants a point and a sign of the exponent; YAML 1.2 and Go do not
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def without_nulls(given: Any) -> Any:
    """As Go decodes: null is absent."""
    if isinstance(given, dict):
        return {name: without_nulls(value) for name, value in given.items() if value is not None}
    return [without_nulls(value) for value in given] if isinstance(given, list) else given

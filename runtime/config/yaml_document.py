"""Parses a configuration as Go does, from YAML or JSON, and finds the line of each place (pure)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from runtime.config.problems import ConfigError
from runtime.config.yaml_problem import yaml_problem
from runtime.quoting import quoted


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed document: `given` is its value, `root` its YAML node, `lines` its text."""

    given: Any
    root: yaml.Node | None
    lines: Sequence[str]

    def line(self, place: str) -> int | None:
        """The line of `plugins[1].parameters.path`, or of the closest parent that exists; None if there is none.

        `queues.batch` may also be the element of a list whose `name` is batch.
        """
        found: int | None = None
        node: yaml.Node | None = self.root
        parts = _PART.findall(place)
        while parts:
            at, node, taken = _find_child(node, parts)
            if at is None:
                break
            found = at.start_mark.line + 1
            parts = parts[taken:]
        return found

    def text(self, line: int | None) -> str:
        """The text of a line, for a problem; "" if there is none."""
        return self.lines[line - 1] if line is not None and line <= len(self.lines) else ""


_PART = re.compile(r"[^.\[\]]+")

_Found = tuple[yaml.Node | None, yaml.Node | None, int]


def _find_child(node: yaml.Node | None, parts: Sequence[str]) -> _Found:
    """The node of an element or a key of `node`, the node of its value, and how many `parts` name it."""
    first = parts[0]
    if isinstance(node, yaml.SequenceNode):
        if first.isdecimal() and len(first) < 10 and int(first) < len(node.value):
            return node.value[int(first)], node.value[int(first)], 1
        return _find_named(node, parts)
    if isinstance(node, yaml.MappingNode):
        key, value = next((pair for pair in node.value if pair[0].value == first), (None, None))
        return key, value, 1
    return None, None, 0


def _find_named(node: yaml.SequenceNode, parts: Sequence[str]) -> _Found:
    """The first element whose `name` is made of the first parts: a name may have dots."""
    for element in node.value:
        _, name, _ = _find_child(element, ["name"]) if isinstance(element, yaml.MappingNode) else _NOTHING
        for taken in range(len(parts), 0, -1):
            if isinstance(name, yaml.ScalarNode) and name.value == ".".join(parts[:taken]):
                return element, element, taken
    return _NOTHING


_NOTHING: Final[_Found] = (None, None, 0)


def parse_yaml(text: str, *, secrets: bool = False) -> YamlDocument:
    """Raises ConfigError for anything but YAML. `secrets`: it quotes nothing of the text."""
    lines = [] if secrets else text.split("\n")
    try:
        loader = _Loader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
            given = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigError("", "the configuration is nested too deeply, or contains itself") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = f"the configuration is not YAML: {yaml_problem(error, secrets=secrets)}"
        mark = getattr(error, "problem_mark", None)
        if mark is not None and mark.line < len(lines):
            problem += f": {quoted(lines[mark.line].strip(), 80)}"
        raise ConfigError("", problem) from error
    return YamlDocument(given, root, lines)


def read_yaml(text: str, expected: str) -> YamlDocument:
    """As `parse_yaml`, without nulls; ConfigError for anything but a mapping, which `expected` describes."""
    parsed = parse_yaml(text)
    try:
        given = without_nulls(parsed.given)
    except RecursionError as error:
        raise ConfigError("", "the configuration is nested too deeply, or contains itself") from error
    if not isinstance(given, dict):
        raise ConfigError("", f"the configuration is not a mapping; expected {expected}")
    return replace(parsed, given=given)


class _Loader(yaml.SafeLoader):
    """YAML as Go's strict decoder reads it: a duplicate key is an error, where PyYAML takes the last value; 1e1 is a float."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


# PyYAML implements YAML 1.1, whose floats need a point and a signed exponent; YAML 1.2 and Go do not
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


_MAX_VALUES: Final = 1_000_000
"""Values of a document; one of 1 MiB has fewer, unless its aliases repeat them."""


def without_nulls(given: Any) -> Any:
    """Go's decoder leaves a field that is null at its default; so remove nulls. Raises ConfigError for too many values."""
    return _without_nulls(given, iter(range(_MAX_VALUES)))


def _without_nulls(given: Any, room: Iterator[int]) -> Any:
    if next(room, None) is None:
        raise ConfigError(
            "", f"the configuration has more than {_MAX_VALUES} values with those that its aliases repeat"
        )
    if isinstance(given, dict):
        return {name: _without_nulls(value, room) for name, value in given.items() if value is not None}
    return [_without_nulls(value, room) for value in given] if isinstance(given, list) else given

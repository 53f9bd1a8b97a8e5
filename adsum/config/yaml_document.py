"""Parses a configuration as Go does, from YAML or JSON, and finds the line of each place (pure)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from adsum.config.problems import ConfigError, yaml_problem
from adsum.quoting import quoted


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed document: `given` is its value, `root` its YAML node, `lines` its text.

    `first_line`: how many lines are before it in its file.
    """

    given: Any
    root: yaml.Node | None
    lines: Sequence[str]
    first_line: int = 0

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
            found = at.start_mark.line + 1 + self.first_line
            parts = parts[taken:]
        return found

    def text(self, line: int | None) -> str:
        """The text of a line, for a problem; "" if there is none."""
        row = -1 if line is None else line - 1 - self.first_line
        return self.lines[row] if 0 <= row < len(self.lines) else ""


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


def parse_yaml(text: str, *, secrets: bool = False, first_line: int = 0) -> YamlDocument:
    """Raises ConfigError for anything but YAML. `secrets`: it quotes nothing of the text."""
    # bounded: the operator's file
    lines = [] if secrets else text.split("\n")
    try:
        loader = _Loader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
            given = None if root is None else loader.construct_document(root)
            if root is not None:
                _check_repeated(root)
        finally:
            loader.dispose()
    except ConfigError:  # too many values
        raise
    except RecursionError as error:
        raise ConfigError("", "the configuration is nested too deeply, or contains itself") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = f"the configuration is not YAML: {yaml_problem(error, secrets=secrets)}"
        mark = getattr(error, "problem_mark", None)
        if mark is not None and mark.line < len(lines):
            problem += f": {quoted(lines[mark.line].strip(), 80)}"
        raise ConfigError("", problem) from error
    return YamlDocument(given, root, lines, first_line)


def without_null_fields(parsed: YamlDocument, expected: str) -> YamlDocument:
    """Raises ConfigError for anything but a mapping."""
    given = without_nulls(parsed.given)
    if not isinstance(given, dict):
        raise ConfigError("", f"the configuration is not a mapping; expected {expected}")
    return replace(parsed, given=given)


_MAX_VALUES: Final = 50_000
"""Keys and values of a document. PyYAML reads 50,000 of them in about a second."""
_MAX_REPEATED: Final = 1_000_000
"""The same with those that aliases repeat."""
_MAX_NUMBER: Final = 1000
"""Characters of a number. YAML 1.1 has numbers to base 60, `1:59:59`; to read a long one takes time by the square of it."""


class _Loader(yaml.SafeLoader):
    """YAML as Go's strict decoder reads it: a duplicate key is an error, where PyYAML takes the last value; 1e1 is a float.

    It counts keys and values while it reads, with those that a merge key (`<<`) copies: many mappings may copy a large one.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > _MAX_VALUES:
            raise ConfigError(
                "",
                f"the configuration has more than {_MAX_VALUES:,} keys and values, with those that merge keys (<<) copy; "
                "expected fewer",
            )

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._count(1)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if len(node.value) > _MAX_NUMBER and node.tag in _NUMBERS:
            problem = f"a number of {len(node.value)} characters; expected at most {_MAX_NUMBER}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Return what `<<` copies, as YAML's merge key says: a mapping's own keys win, then the first of several sources.

        PyYAML 6.0.4 takes a source's older value where two key texts are one object, which short ones are.
        """
        own, copied = [], dict[object, tuple[yaml.Node, yaml.Node]]()
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                own.append((key, value))
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if not isinstance(source, yaml.MappingNode):
                    problem = f"expected a mapping or a list of mappings to merge, not a {source.id}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                self.flatten_mapping(source)
                self._count(len(source.value))
                for pair in source.value:
                    copied.setdefault(_key_of(pair[0]), pair)
        for key, _ in own if copied else ():
            copied.pop(_key_of(key), None)
        node.value = [*copied.values(), *own]
        super().flatten_mapping(node)  # the key `=`

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


def _key_of(key: yaml.Node) -> object:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

# PyYAML implements YAML 1.1, whose floats need a point and a signed exponent; YAML 1.2 and Go do not
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def _check_repeated(root: yaml.Node) -> None:
    """Raises ConfigError if aliases make too many values of it; RecursionError if it contains itself."""
    counts: dict[int, int] = {}

    def count(node: yaml.Node) -> int:
        if id(node) not in counts:
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            pairs = inner if isinstance(node, yaml.MappingNode) else ((one,) for one in inner)
            counts[id(node)] = 1 + sum(count(one) for pair in pairs for one in pair)
        return counts[id(node)]

    if count(root) > _MAX_REPEATED:
        raise ConfigError(
            "", f"the configuration has more than {_MAX_REPEATED:,} values with those that its aliases repeat"
        )


def without_nulls(given: Any) -> Any:
    """Go's decoder leaves a field that is null at its default; so remove nulls."""
    if isinstance(given, dict):
        return {name: without_nulls(value) for name, value in given.items() if value is not None}
    return [without_nulls(value) for value in given] if isinstance(given, list) else given

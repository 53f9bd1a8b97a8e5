"""Finds keys of a metadata document that readers ignore although they were meant: misspelt ones, and values of the wrong type.

Unknown keys are allowed, for the worker's own readers. So only those count that look like a known one. Pure.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias

from adsum.quoting import quoted
from discovery.metadata.document import MOST_RANKS, read_port

_SIMILARITY: Final = 0.7
"""The least similarity of a known key, 0 to 1 (difflib): that of `prot` and `port` is 0.75."""
_MAX_KEYS: Final = 100
"""Keys of one object that are looked at."""
_MAX_KEY: Final = 40
"""Characters of a key that may be a misspelt one; the longest known has 14."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_port(value: object) -> bool:
    return read_port(value) is not None


def _is_ranks(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_RANKS


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/") and value.isascii() and value.isprintable()


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


_Rule: TypeAlias = tuple[str, Callable[[object], bool]]
_TEXT: Final[_Rule] = "a string", _is_text
_NAMES: Final[_Rule] = "a list of strings", _is_list_of_text
_OBJECT: Final[_Rule] = "an object", _is_object
_PORT: Final[_Rule] = "a port from 1 to 65535", _is_port
_RANKS: Final[_Rule] = f"a number from 1 to {MOST_RANKS}", _is_ranks
_PATH: Final[_Rule] = "a path that begins with / and is printable ASCII", _is_path

_RULES: Final[Mapping[str, Mapping[str, _Rule]]] = {
    "": {"model": _OBJECT, "transport": _OBJECT, "mdc": _OBJECT, "labels": _OBJECT},
    "model": {"name": _TEXT, "type": _TEXT, "aliases": _NAMES, "adapters": _NAMES, "runtime_config": _OBJECT},
    "transport": {"http": _OBJECT, "kv_events": _OBJECT},
    "transport.http": {"port": _PORT, "metrics_port": _PORT, "metrics_path": _PATH, "engine": _TEXT},
    "transport.kv_events": {"port": _PORT, "replay_port": _PORT, "topic": _TEXT, "ranks": _RANKS},
}
"""By the path of an object: its keys, and what each must be."""
_CAPITALISED: Final = {"Model": "model", "Transport": "transport", "MDC": "mdc"}


def ignored_keys(document: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each key that is ignored although it was meant."""
    yield from _ignored(document, "", "")
    labels = document.get("labels")
    if isinstance(labels, Mapping):
        wrong = [str(name) for name, value in islice(labels.items(), _MAX_KEYS) if not isinstance(value, str)]
        yield from (f"labels has {quoted(name)} with a value that is no string; ignored" for name in wrong)


def _ignored(found: Mapping[str, Any], path: str, shown: str) -> Iterator[str]:
    """`path`: of the object as the rules have it; `shown`: as the worker wrote it."""
    rules = _RULES[path]
    for key, value in islice(found.items(), _MAX_KEYS):
        name = _CAPITALISED.get(key, key) if not path else key
        if name not in rules:
            if near := _near(key, rules):
                yield f"{shown}{quoted(key)} is not a known key, did you mean {shown}{near}?"
            continue
        expected, fits = rules[name]
        inner = f"{path}.{name}".lstrip(".")
        if value is not None and not fits(value):
            yield f"{shown}{key} is not {expected}; ignored"
        elif inner in _RULES and isinstance(value, Mapping):
            yield from _ignored(value, inner, f"{shown}{key}.")


def _near(key: str, known: Mapping[str, _Rule]) -> str | None:
    if len(key) > _MAX_KEY:
        return None
    return next(iter(difflib.get_close_matches(key.lower(), known, n=1, cutoff=_SIMILARITY)), None)

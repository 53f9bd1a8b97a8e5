"""Parses the labels of a sample in Prometheus' text format (pure)."""

import re
from typing import Final

# A worker's page is untrusted: every quantifier is possessive, and labels are matched one after the other, so that the
# expression never backtracks (catastrophic backtracking, CWE-1333).
_LABEL: Final = re.compile(rb'[ \t]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+,?')
_ESCAPE: Final = re.compile(r"\\(.)")


def read_labels(text: bytes) -> dict[str, str]:
    """The labels of the text between the braces, up to the first one that is malformed."""
    labels: dict[str, str] = {}
    at = 0
    while (found := _LABEL.match(text, at)) is not None:
        labels[found[1].decode()] = _unescape(found[2])
        at = found.end()
    return labels


def _unescape(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), text) if "\\" in text else text

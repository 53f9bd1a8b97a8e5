"""The labels of a sample in Prometheus' text format (pure)."""

import re
from typing import Final

# A page is a stranger's: every quantifier is possessive, and labels are read one after the other, so that no byte is looked
# at twice for want of what should follow it.
_LABEL: Final = re.compile(rb'[ \t]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+,?')
_ESCAPE: Final = re.compile(r"\\(.)")


def read_labels(inside: bytes) -> dict[str, str]:
    """What stands between the braces, as far as it is written by the rules."""
    labels: dict[str, str] = {}
    at = 0
    while (found := _LABEL.match(inside, at)) is not None:
        labels[found[1].decode()] = _text(found[2])
        at = found.end()
    return labels


def _text(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), text) if "\\" in text else text

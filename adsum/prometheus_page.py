"""Finds the samples of one metric on a page in Prometheus' text format by byte search, without parsing the rest. Pure.

A page is untrusted: every quantifier is possessive, and labels are matched one after the other, so that no expression ever
backtracks (catastrophic backtracking, CWE-1333). Only a line feed ends a line (text format 0.0.4).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

Page: TypeAlias = bytes | bytearray

_MAX_LINE_BYTES: Final = 64 * 1024
"""Bytes of a line after the name; a longer line counts as malformed."""
_AFTER_NAME: Final = (b"{", b" ", b"\t", b"\r", b"\n")
_SAMPLE: Final = re.compile(
    rb'[ \t]*+(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+)\}[ \t]*+)?'
    rb"([^\s#{]++)(?!\{)(?:[ \t]++(-?[0-9]{1,19}+)(?![0-9]))?"
)


def name_ends(page: Page, key: bytes, most: int) -> Iterator[int]:
    """The end of the name on each line that begins with exactly this name.

    `key`: a newline and the name. `most`: lines that are looked at, those that begin with a longer name included.
    """
    starts = page.startswith(key[1:])  # no newline is before the first line
    at = -1 if starts else page.find(key)
    if at < 0 and not starts:
        return
    for _ in range(most):
        end = at + len(key)
        if page[end : end + 1] in _AFTER_NAME:
            yield end
        at = page.find(key, end)
        if at < 0:
            return


def match_sample(page: Page, start: int, stop: int) -> re.Match[bytes] | None:
    """Labels, value and timestamp as they are written, from the end of a name to the end of its line; None: malformed.

    The rest of the line is the caller's to judge: an exemplar, or something that should not be there.
    """
    return _SAMPLE.match(page, start, stop) if stop - start <= _MAX_LINE_BYTES else None


def has_labels(text: bytes, wanted: Mapping[str, str]) -> bool:
    """Whether the text between the braces has all these labels."""
    have = read_labels(text) if wanted else {}
    return all(have.get(name) == value for name, value in wanted.items())


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

"""Finds the usage in an answer that comes in pieces, streamed or not, and holds no more of it than the usage itself. Pure."""

import re
from typing import Final

from epp.response.field_scanner import FieldScanner
from epp.response.usage import NO_USAGE, Usage, read_usage

_NAME: Final = b'"usage"'
_USAGE: Final = re.compile(rb'"usage"[ \t]{0,64}+:[ \t]{0,64}+\{')
"""A line without it has no usage: so an event costs one search. `"usage": null`, as most events say, is none."""
MAX_OBJECT: Final = 4096
"""Bytes of a usage object; a longer one is not kept. Real ones have up to 500."""
_MOST_OBJECTS: Final = 4
"""Usage objects that `read_end` reads, the last first: what a worker writes does not decide how long that takes."""


def read_end(text: bytes) -> Usage:
    """The last usage that says the tokens of the prompt, in the end of an answer that begins anywhere.

    Workers write it last or nearly so. In text that begins within a string, strings cannot be known from what is between
    them; but within a JSON string a quote has a backslash, so text that talks about usage does not match. How deep an object
    lies is not known: `usage` of something else than the answer counts if it has the same fields.
    """
    stop = len(text)
    for found in list(_USAGE.finditer(text))[: -_MOST_OBJECTS - 1 : -1]:
        document = _Document(FieldScanner(usage=True))
        document.feed(b"{" + text[found.start() : stop])
        stop = found.start()
        usage = NO_USAGE if document.found is None else read_usage(document.found)
        if usage.input is not None:
            return usage
    return NO_USAGE


class _Document:
    """One JSON document in pieces. `found`: the last usage object so far, as text; None: there was none."""

    __slots__ = ("_held", "_scanner", "found")

    def __init__(self, scanner: FieldScanner) -> None:
        # an escaped name does not count, as in the lines of a streamed answer
        scanner.reset()
        self._scanner = scanner
        self._held = b""
        """The beginning of an object that is not complete."""
        self.found: bytes | None = None

    def feed(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        at, end = 0, len(data)
        while True:
            spans, stop = self._scanner.find(data, at, end)
            for start, behind in spans:
                if behind - start <= MAX_OBJECT:
                    self.found = data[start:behind]
            if end - stop <= MAX_OBJECT:
                break
            self._scanner.skip_value()
            at = stop + 1
        self._held = data[stop:]


class UsageReader:
    """`streamed`: the answer is server-sent events, one JSON document a line (HTML standard, 9.2.6), not one document.

    `usage`: what the answer has said so far. Later events count instead of earlier ones: with `continuous_usage_stats`
    every event says the sum so far. The usage of an answer that takes more work than it may is unknown.
    """

    __slots__ = ("_document", "_given_up", "_scanner", "_streamed", "usage")

    def __init__(self, *, streamed: bool) -> None:
        self.usage = NO_USAGE
        self._streamed = streamed
        self._scanner = FieldScanner(usage=True)
        self._given_up = False
        self._document: _Document | None = None
        """The document, or the line, that earlier pieces began."""

    def feed(self, data: bytes) -> None:
        if self._given_up or (
            self._document is None and self._streamed and data.endswith(b"\n") and _NAME not in data
        ):
            return  # of most answers' pieces all but the last
        self._scanner.allow(len(data))
        if self._streamed:
            self._feed_lines(data)
        elif data:
            self._continue(data)
        if self._scanner.steps <= 0:
            self._given_up, self._document, self.usage = True, None, NO_USAGE

    def end(self) -> Usage:
        """The answer is complete."""
        self._finish()
        return self.usage

    def _feed_lines(self, data: bytes) -> None:
        at = 0
        if self._document is not None:
            end = data.find(b"\n")
            self._continue(data if end < 0 else data[:end])
            if end < 0:
                return
            self._finish()
            at = end + 1
        last = data.rfind(b"\n") + 1
        while at < last and self._scanner.steps > 0 and (found := _USAGE.search(data, at, last)) is not None:
            start, at = data.rfind(b"\n", 0, found.start()) + 1, data.find(b"\n", found.start()) + 1
            self._continue(data[start:at])
            self._finish()
        if last < len(data):
            self._continue(data[last:])

    def _continue(self, data: bytes) -> None:
        if self._document is None:
            self._document = _Document(self._scanner)
        self._document.feed(data)

    def _finish(self) -> None:
        document, self._document = self._document, None
        if document is not None and document.found is not None:
            self.usage = self.usage.updated(read_usage(document.found))

"""Gives an answer the model's name that its client asked for, where a rule or a header had replaced it. Pure."""

import re
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from epp.ext_proc.response_body import ResponseHead
from epp.request.body import Buffer
from epp.response.field_scanner import FieldScanner, Span
from epp.scheduling.pick import Pick

_EVENT_STREAM: Final = "text/event-stream"
_JSON: Final = ("application/json", "application/x-ndjson", "application/jsonl")
_LINE_END: Final = re.compile(rb"[\r\n]")
_DATA: Final = b"data:"
_CHUNK: Final = re.compile(
    rb'\s*+\{(?:\s*+"(?!model")[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.\w]++)\s*+,)*+\s*+"model"\s*+:\s*+("[^"\\]*+")'
)
"""The beginning of an event as model servers write it: no member before the model but strings and numbers, no escapes."""
_ESCAPED: Final = b"\\u006"
"""Every letter of `model` is escaped so (RFC 8259, section 7): without it no member of that name is hidden."""
_MAX_HEAD: Final = 4096
"""Bytes of an event up to its model's name that are kept, to know the next event by them. Real ones have up to 200."""
_MAX_NAME: Final = 1024
"""Bytes of a name, as JSON. A client's longer name is not restored: it would be copied into every event of the answer."""
_MAX_SPELLING: Final = 6 * _MAX_NAME
"""The same with every letter escaped. A string that goes on is no name of ours, and is not held back."""


def open_restorer(
    pick: Pick, head: ResponseHead, given_up: Callable[[], None] = lambda: None
) -> "ModelRestorer | None":
    """A reader, if the client named another model than serves it, and if the answer can be read."""
    request = pick.request
    if request.rewritten_from is None or head.encoded:
        return None
    events = head.media_type == _EVENT_STREAM
    if not (events or head.media_type in _JSON or head.media_type.endswith("+json")):
        return None
    restorer = ModelRestorer(request.model, request.rewritten_from, events=events, given_up=given_up)
    return restorer if restorer.names_are_short else None


class ModelRestorer:
    """A `ResponseBodyReader` that replaces the model's name `served` by `named`; `events`: in server-sent events.

    An answer that is all brackets and commas takes more work than it may: from there on it passes with the worker's name,
    and `given_up` is called once. It holds back nothing but the beginning of a model's name. Events are known by their lines
    (https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation).
    """

    changes_body: ClassVar[bool] = True
    __slots__ = (
        "_after_return",
        "_begun",
        "_events",
        "_fields",
        "_given_up",
        "_head",
        "_held",
        "_line",
        "_named",
        "_named_head",
        "_plain",
        "_served",
        "_skipped",
    )

    def __init__(
        self, served: str, named: str, *, events: bool, given_up: Callable[[], None] = lambda: None
    ) -> None:
        self._served = served
        self._plain = msgspec.json.encode(served)
        self._named = msgspec.json.encode(named)
        self._events = events
        self._fields = FieldScanner()
        self._given_up: Callable[[], None] | None = given_up
        self._held = b""
        self._head = b""
        """The last event up to its model's name, if most are like it: they differ in their text, which comes behind."""
        self._named_head = b""
        self._line = b""
        """The first bytes of the present line, as many as _DATA has."""
        self._after_return = False
        """The last byte was a carriage return: a newline would belong to it."""
        self._begun = False
        """Some data of the present event have been read."""
        self._skipped = b""
        """The first line of data of the present event, if its structure need not be known unless a second one comes."""

    @property
    def names_are_short(self) -> bool:
        return max(len(self._plain), len(self._named)) <= _MAX_NAME

    def read(self, piece: Buffer, now: float) -> Buffer | None:
        """The piece with the client's name, without the beginning of a name that is not complete."""
        if self._given_up is None:
            return None
        if self._head and self._are_alike(begun := bytes(piece)):
            return begun.replace(self._head, self._named_head)
        self._fields.allow(len(piece))
        data = b"".join((self._held, piece))
        find = self._find_in_events if self._events else self._find_in_json
        spans, stop = find(data)
        if len(data) - stop > _MAX_SPELLING:
            self._fields.skip_value()
            _, stop = self._fields.find(data, stop + 1, len(data))
        if self._fields.steps <= 0:
            self._given_up()
            self._given_up, stop = None, len(data)
        unchanged = not self._held and stop == len(data)
        self._held = data[stop:]
        spans = [(start, end) for start, end in spans if self._is_served(data[start:end])]
        return None if unchanged and not spans else self._replaced(data[:stop], spans)

    def end(self, now: float) -> bytes:
        """Returns the rest of a body that ends within a name."""
        held, self._held = self._held, b""
        return held

    def _are_alike(self, data: bytes) -> bool:
        """Whether these are whole events, and names of models stand only where one before had it.

        In the first line of data of each: behind it the structure decides nothing any more.
        """
        head = self._head
        if self._line or self._begun or not data.startswith(head) or not data.endswith(_EVENT_END):
            return False
        return data.count(_EVENT_END + head) + 1 == data.count(_NAME) and _ESCAPED not in data

    def _find_in_json(self, data: bytes) -> tuple[list[Span], int]:
        return self._fields.find(data, 0, len(data))

    def _find_in_events(self, data: bytes) -> tuple[list[Span], int]:
        spans: list[Span] = []
        at, end = 0, len(data)
        while at < end and self._fields.steps > 0:
            self._fields.steps -= 1
            found = _LINE_END.search(data, at)
            stop = end if found is None else found.start()
            if stop > at:
                self._after_return = False
                at = self._read_field_name(data, at, stop)
            if self._line == _DATA and at < stop:
                names, unfinished = self._find_in_data(data, at, stop, line_ends=stop < end)
                spans += names
                if unfinished < stop:
                    return spans, unfinished
            if stop < end:
                self._end_line(data[stop])
            at = stop + 1
        return spans, end

    def _find_in_data(self, data: bytes, at: int, stop: int, *, line_ends: bool) -> tuple[list[Span], int]:
        """The names in one line of data, or in a part of it, and where an unfinished one begins, else `stop`."""
        if line_ends and not self._begun and (found := _names_in_chunk(data, at, stop)) is not None:
            self._begun, self._skipped = True, data[at:stop]
            for start, end in found:
                if data[start:end] == self._plain and end - at <= _MAX_HEAD:
                    self._head = _DATA + data[at:end]
                    self._named_head = b"".join((_DATA, data[at:start], self._named))
            return found, stop
        if self._skipped:
            self._fields.find(self._skipped, 0, len(self._skipped))
            self._skipped = b""
        self._begun = True
        names, unfinished = self._fields.find(data, at, stop)
        if line_ends and unfinished < stop:  # no line ends within a name
            self._fields.skip_value()
            _, unfinished = self._fields.find(data, unfinished + 1, stop)
        return names, unfinished

    def _read_field_name(self, data: bytes, at: int, stop: int) -> int:
        begin = data[at : min(stop, at + len(_DATA) - len(self._line))]
        self._line += begin
        return at + len(begin)

    def _end_line(self, terminator: int) -> None:
        if terminator == _NEWLINE and self._after_return:
            self._after_return = False
            return
        if not self._line:  # an empty line ends the event
            self._fields.reset()
            self._begun, self._skipped = False, b""
        self._line = b""
        self._after_return = terminator != _NEWLINE

    def _is_served(self, name: bytes) -> bool:
        if name == self._plain:
            return True
        if b"\\" not in name or len(name) > _MAX_SPELLING:
            return False
        try:
            return msgspec.json.decode(name, type=str) == self._served
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False

    def _replaced(self, data: bytes, spans: list[Span]) -> bytes:
        pieces: list[bytes] = []
        at = 0
        for start, end in spans:
            pieces += (data[at:start], self._named)
            at = end
        return b"".join((*pieces, data[at:]))


_NEWLINE: Final = ord("\n")
_EVENT_END: Final = b"\n\n"
_NAME: Final = b'"model"'


def _names_in_chunk(data: bytes, at: int, stop: int) -> list[Span] | None:
    """The names in a whole event that is as simple as most are; None: it has to be read letter by letter."""
    found = _CHUNK.match(data, at, stop)
    behind = at if found is None else found.end()
    if data.find(_NAME, behind, stop) >= 0 or data.find(_ESCAPED, behind, stop) >= 0:
        return None
    return [] if found is None else [found.span(1)]

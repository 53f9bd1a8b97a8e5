"""Readers of response bodies: what they implement, when they are asked for, and what is logged if Envoy hides what they need. Pure.

The picker does not need response bodies. It reads one only if a reader is opened for that answer, and if the data plane
sends it (`response_body_mode`): Envoy ignores `mode_override` where the request body is FULL_DUPLEX_STREAMED (ext_proc.cc).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from epp.request.body import Buffer

if TYPE_CHECKING:  # `--help` reads the settings, and must not load numpy
    from epp.scheduling.pick import Pick

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The start of a response. `headers`: by lower-case name, the first of repeated ones; `status` None: malformed."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in lower case; empty if there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def encoded(self) -> bool:
        """Whether the body is compressed, so that no reader can read it (RFC 9110 section 8.4)."""
        return self.headers.get("content-encoding", "identity").strip().lower() not in ("identity", "")


class ResponseBodyReader(Protocol):
    """Reads the body of one response as it passes. Times are the exchange's; a fault of a reader never cuts the answer."""

    @property
    def changes_body(self) -> bool:
        """Whether `read` or `end` may change the body: then the response loses its Content-Length."""

    def read(self, piece: Buffer, now: float) -> Buffer | None:
        """Take the next piece; return the bytes to send on in its place, or None: unchanged.

        Pieces end anywhere. Bytes that are held back go out with a later piece, or are returned by `end`.
        """

    def end(self, now: float) -> bytes:
        """The body is complete; return what was held back. Not called for a body that breaks off."""


class ResponseReaderOpener(Protocol):
    """Decides at the response headers whether a body is read."""

    def __call__(
        self, pick: "Pick", head: ResponseHead, started: float, now: float
    ) -> ResponseBodyReader | None:
        """A reader for the body of that response, None: nothing to read. `started`: when the request's headers came."""


class UnreadBodies:
    """Logs once that response bodies are needed and do not come."""

    def __init__(self) -> None:
        self._logged = False

    def missing(self) -> None:
        """A body had to be read, and the data plane does not send it whole."""
        if self._logged:
            return
        self._logged = True
        log.warning(
            "the data plane sends no response bodies, so answers name the model that served, not the one that was asked "
            "for, and have no token usage; let it send them: envoy-config --response-body STREAMED (docs/envoy.md)"
        )


_SOON: Final = 0.1
"""Seconds from the response headers in which hardly any streamed answer ends."""
_ENOUGH: Final = 10
"""Answers in a row; one that lasts longer proves that ends are seen."""


class EarlyEnds:
    """Logs once that streams end with the response headers, which a streamed answer begins with."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._logged = False

    def ended(self, seconds: float) -> None:
        """The ext_proc stream of a streamed answer ended so long after its response headers."""
        self._in_a_row = self._in_a_row + 1 if seconds < _SOON else 0
        if self._in_a_row < _ENOUGH or self._logged:
            return
        self._logged = True
        log.warning(
            "Envoy ends its streams with the response headers, so concurrency-detector does not count answers that are being "
            "streamed, and the pool never counts as full; let Envoy show their ends: envoy-config --response-trailer SEND "
            "(docs/flow-control.md)"
        )

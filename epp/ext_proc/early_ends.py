"""Notices that Envoy shows the picker no ends of answers, although it counts requests until then. Pure."""

import logging
from typing import Final

log = logging.getLogger(__name__)

_SOON: Final = 0.1
"""Seconds from the response headers in which hardly any streamed answer ends."""
_ENOUGH: Final = 10
"""Answers in a row; one that lasts longer proves that ends are seen."""


class EarlyEnds:
    """Logs once that streams end with the response headers, which a streamed answer begins with."""

    __slots__ = ("_in_a_row", "_logged")

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

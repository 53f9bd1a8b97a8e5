"""The queues of flow control as the page shows them."""

import heapq
from typing import Final

import msgspec

from epp.flow_control.controller import FlowController

_MOST_FLOWS: Final = 8
"""Flows of one priority that are named: the longest ones."""
_MOST_TEXT: Final = 100


def queues(controller: FlowController | None, now: float) -> bytes:
    """A topic of a LiveFeed: what waits at each priority, the highest first; null: flow control is off."""
    if controller is None:
        return b"null"
    bands = []
    for band in controller.bands:
        oldest = band.oldest()
        longest = heapq.nlargest(_MOST_FLOWS, band.lengths().items(), key=lambda flow: flow[1])
        bands.append(
            {
                "priority": band.priority,
                "ceiling": round(band.ceiling, 3),
                "waiting": len(band.waiting),
                "bytes": band.bytes,
                "max_requests": band.settings.max_requests,
                "oldest": None if oldest is None else round(now - oldest.arrived_at, 1),
                "longest": [{"flow": name[:_MOST_TEXT], "waiting": count} for name, count in longest],
            }
        )
    return msgspec.json.encode({"priorities": bands})

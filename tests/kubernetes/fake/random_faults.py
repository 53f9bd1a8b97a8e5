"""One fault of each kind, for random histories."""

from tests.kubernetes.fake import faults
from tests.kubernetes.fake.faults import Fault, Verb
from tests.kubernetes.fake.status import StatusError, expired, too_large

_BUSY = StatusError(429, "TooManyRequests", "busy", retry_after=1)
_INTERNAL = StatusError(500, "InternalError", "leader changed")
_CUTS = [
    *(faults.cut(after=n, inside=0.5, how="reset") for n in (0, 1)),
    *(faults.cut(after=n, inside=None, how="fin") for n in (0, 1)),
]
FAULTS: list[tuple[Fault, Verb]] = [
    *((cut, "any") for cut in _CUTS),
    (faults.cut(inside=0.5, how="end"), "any"),
    (faults.cut(inside=None, how="end"), "watch"),
    (faults.broken_before_headers, "any"),
    (faults.no_answer, "any"),
    (faults.html(200), "any"),
    (faults.html(503), "any"),
    (faults.refuses(_BUSY), "any"),
    (faults.in_stream(_BUSY), "watch"),
    (faults.refuses(_INTERNAL), "any"),
    (faults.in_stream(_INTERNAL), "watch"),
    (faults.refuses(expired("too old")), "any"),
    (faults.in_stream(expired("too old")), "watch"),
    (faults.refuses(too_large(9999, 1)), "any"),
    (faults.in_stream(too_large(9999, 1)), "watch"),
    (faults.refuses(StatusError(403, "Forbidden", "no")), "any"),
    (faults.sends(b'{"type":"MODIFIED","object":{}}\n'), "watch"),
    (faults.preceded(b"{]\n"), "watch"),
    (faults.drip(50), "any"),
]

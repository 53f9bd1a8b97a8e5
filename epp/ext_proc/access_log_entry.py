"""Reads what an entry of Envoy's gRPC access log says of a request that this picker picked for. Pure.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/data/accesslog/v3/accesslog.proto
"""

from functools import lru_cache
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from epp.outliers.settings import Failure
from epp.request.control_headers import MOST_TEXT, PREFILL_FALLBACK
from epp.request.rejection import UnreadableError
from epp.wire.messages.access_log_pb2 import (
    AccessLogCommon,
    Address,
    HTTPAccessLogEntry,
    ResponseFlags,
    StreamAccessLogsMessage,
)

ACCESS_LOG: Final = "envoy.service.accesslog.v3.AccessLogService"
"""The gRPC service to which Envoy streams its log."""
OUTCOMES_HEADER: Final = "x-adsum-outcomes"
"""A header of ext_proc's streams, from our configuration of Envoy."""
BY_ACCESS_LOG: Final = "access-log"
"""Its value: outcomes come by the log, and the stream ends with the request."""
REPORT_INTERVAL: Final = 1.0
"""Seconds until the first entry of a request under way, and between two occasions for a further one."""
REPORTED_SHARE: Final = 30
"""Percent of these occasions that are used, at random: one entry in three seconds is enough for a lease."""
PICK_NAMESPACE: Final = "adsum.pick"
"""The namespace of the dynamic metadata in which a pick has its name for the log."""
PICK_KEY: Final = "token"
TOKEN_LENGTH: Final = 28
BODY_TAG: Final = "body"
"""A custom tag of an entry: `=` and the microseconds from the request's first byte to the first of the answer's body."""
_BEFORE_TOKEN: Final = b"\n\x05token\x12\x1e\x1a\x1c"
"""These bytes stand before a token in an entry: key and value of a google.protobuf.Struct. So it is found without reading all
metadata, a third of what an entry cost. No client can write that: Envoy takes no control characters in headers and paths.
"""
MOST_ENTRIES: Final = 10_000
"""Entries of one message; Envoy sends what it has every 30 ms, and at 256 KiB at the latest (epp/envoy/access_logs.py)."""
_PERIODIC: Final = 5
"""`DownstreamPeriodic`: the request is under way."""
_LONGEST: Final = 1e7
"""Seconds; a duration that is not below makes no sense."""
_MOST_DIGITS: Final = 13
"""The same of microseconds."""
CLIENT_LEFT: Final = "the client left"
CUT: Final = "the answer was cut"
ANSWERED: Final = "end of the answer"


class LoggedOutcome:
    """`token`: of the pick. `status`: of the answer, 0: nobody has answered; `failure`: the data plane answered in place of the
    worker. `fell_back`: why the decode worker computed the prompt instead of a prefill worker; empty: it did not. `served_by`: the
    destination, empty: none. `first_byte`, of the answer's headers, `body_byte`, of its body, and
    `duration`: seconds from the request's first byte, None: not yet. `ended`: the request is over, because of `cause`.
    """

    __slots__ = (
        "attempts",
        "body_byte",
        "cause",
        "duration",
        "ended",
        "failure",
        "fell_back",
        "first_byte",
        "served_by",
        "status",
        "token",
    )

    def __init__(self, token: str) -> None:
        self.token = token
        self.ended = True
        self.status = self.attempts = 0
        self.failure: Failure | None = None
        self.served_by = self.fell_back = ""
        self.first_byte: float | None = None
        self.body_byte: float | None = None
        self.duration: float | None = None
        self.cause = ANSWERED


def read_entries(payload: bytes) -> list[bytes]:
    """The entries of one message of a log, each still to be read; raises UnreadableError."""
    try:
        return list(StreamAccessLogsMessage.FromString(payload).http_logs.log_entry[:MOST_ENTRIES])
    except DecodeError:
        raise UnreadableError("a message that is no StreamAccessLogsMessage") from None


def read_outcome(entry: bytes) -> LoggedOutcome | None:
    """None: of a request without a pick, or no entry at all."""
    at = entry.find(_BEFORE_TOKEN) + len(_BEFORE_TOKEN)
    token = entry[at : at + TOKEN_LENGTH]
    if at < len(_BEFORE_TOKEN) or not token.isalnum():
        return None
    outcome = LoggedOutcome(token.decode())
    try:
        read = HTTPAccessLogEntry.FromString(entry)
        common = read.common_properties
        _read_common(outcome, common)
    except DecodeError:
        return None
    status = read.response.response_code.value
    if read.response.response_headers:
        outcome.fell_back = read.response.response_headers.get(PREFILL_FALLBACK, "")[:MOST_TEXT]
    if common.HasField("response_flags"):
        _read_flags(outcome, common.response_flags, status)
    # with neither a byte of a worker nor a flag that says why, Envoy answered for a reason of its own
    if outcome.failure is not None or outcome.first_byte is not None:
        outcome.status = status if 100 <= status <= 999 else 0
    return outcome


def _read_common(outcome: LoggedOutcome, common: AccessLogCommon) -> None:
    outcome.ended = common.access_log_type != _PERIODIC
    outcome.attempts = common.upstream_request_attempt_count
    if where := common.upstream_remote_address:
        outcome.served_by = _authority(where)
    if common.HasField("time_to_first_upstream_rx_byte"):
        outcome.first_byte = outcome.body_byte = _seconds(common.time_to_first_upstream_rx_byte)
    if (tag := common.custom_tags.get(BODY_TAG)) is not None:
        outcome.body_byte = _tagged(tag)
    if common.HasField("duration"):
        outcome.duration = _seconds(common.duration)


def _read_flags(outcome: LoggedOutcome, flags: ResponseFlags, status: int) -> None:
    """The flags that `epp/envoy/local_replies.py` answers for, in its order."""
    failure: Failure | None = None
    if flags.upstream_request_timeout:
        failure = Failure.TIMEOUT
    elif flags.upstream_connection_failure or flags.no_healthy_upstream:
        failure = Failure.CONNECT
    elif (
        flags.upstream_connection_termination or flags.upstream_remote_reset or flags.upstream_protocol_error
    ):
        failure = Failure.RESET
    if status >= 500:
        outcome.failure = failure
    elif flags.downstream_connection_termination or flags.downstream_remote_reset:
        outcome.cause = CLIENT_LEFT
    elif failure is not None:
        outcome.cause = CUT


@lru_cache(maxsize=8192)
# bounded: addresses to which Envoy sent requests
def _authority(where: bytes) -> str:
    """The `host:port` of an encoded Address; empty: it is no socket's. Raises DecodeError."""
    found = Address.FromString(where).socket_address
    address, port = found.address, found.port_value
    if not address:
        return ""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _tagged(tag: str) -> float | None:
    """Seconds; None: not yet, or it makes no sense."""
    digits = tag[1:]
    return int(digits) * 1e-6 if len(digits) <= _MOST_DIGITS and digits.isdecimal() else None


def _seconds(duration: Duration) -> float | None:
    """None: it makes no sense."""
    seconds = duration.seconds + duration.nanos * 1e-9
    return seconds if 0.0 <= seconds < _LONGEST else None

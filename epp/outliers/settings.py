"""When an endpoint is ejected, for how long, and how many at once; names and defaults are those of Envoy. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """No connection; the connection ended before the answer began; no answer in the time that the data plane allows."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSettings:
    """Times in seconds; 0 turns a rule off.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/outlier_detection.proto has the fields and their
    defaults. Bounds differ, because pools of workers are small and their requests few: Envoy ejects 10 % at most, which is none
    of 3 workers, and looks at percentages where 5 hosts have answered 50 requests each, at the end of an interval; here the last
    answers of a worker are compared with those of the others at each failure. Failures of the data plane's own
    (`consecutive_local_origin_failure`) count apart from the answers of workers, as with Envoy's
    `split_external_local_origin_errors`.

    An endpoint that has not answered `stalled_requests` requests for `suspect_timeout`, while others answer, is avoided until
    it answers one of them; after `stall_timeout` it is ejected. `probe_path`: asked for before an endpoint gets requests again; empty: nothing is asked.
    """

    consecutive_5xx: int = 5
    consecutive_local_origin_failure: int = 5
    failure_percentage_threshold: float = 50.0
    failure_percentage_minimum_hosts: int = 2
    failure_percentage_request_volume: int = 12
    interval: float = 10.0
    base_ejection_time: float = 30.0
    max_ejection_time: float = 300.0
    max_ejection_percent: float = 50.0
    suspect_timeout: float = 0.5
    stall_timeout: float = 10.0
    stalled_requests: int = 3
    probe_path: str = "/health"
    probe_timeout: float = 2.0

    def ejectable(self, endpoints: int) -> int:
        """How many of so many endpoints may be ejected at once: at least one, never all."""
        share = int(endpoints * self.max_ejection_percent / 100.0)
        return min(max(share, 1), endpoints - 1) if self.max_ejection_percent else 0

    def pause(self, ejections: int) -> float:
        """Seconds of the ejection after so many others in short succession."""
        return min(self.base_ejection_time * (ejections + 1), self.max_ejection_time)

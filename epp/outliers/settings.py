"""When an endpoint is ejected, for how long, and how many at once. Pure.

Names and defaults are those of https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/outlier_detection.proto,
but where a default of Envoy's is given: pools of workers are small and their requests few. Envoy ejects 10 % at most, which is
none of 3 workers, and looks at percentages at the end of an interval; here the last answers of a worker are compared with those
of the others at each failure. Failures that the data plane itself saw count apart, as with Envoy's
`split_external_local_origin_errors`.
"""

import re
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from epp.plugins.section import Duration, Section

_PROBE_PATH: Final = re.compile(r"(?:/[!-~]{0,1023})?")
_LONGEST: Final = 300.0
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Pause = Annotated[Duration, Field(ge=0.1, le=86_400)]
"""A time after which something happens, in seconds."""
Patience = Annotated[Duration, Field(ge=0, le=86_400)]


class Failure(StrEnum):
    """No connection; the connection ended before the answer began; no answer in the time that the data plane allows."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"


class OutlierSettings(Section):
    """Times in seconds; 0 turns a rule off."""

    consecutive_5xx: Count = Field(default=5, alias="consecutive5xx")
    """This many answers in a row with a 5xx eject a worker."""
    consecutive_local_origin_failure: Count = 5
    """This many requests in a row that could not be sent there, were cut, or timed out, eject it."""
    failure_percentage_threshold: Percent = 50.0
    """This many percent of its last requests that failed eject it, if at most half as many of the others' did. Envoy: 85."""
    failure_percentage_minimum_hosts: Count = 2
    """That rule needs so many workers with enough requests. Envoy: 5."""
    failure_percentage_request_volume: Annotated[Count, Field(ge=1, le=1_000)] = 12
    """This many of its last requests make a percentage. Envoy: 50 of one `interval`."""
    interval: Pause = 10.0
    """After one without an ejection the next pause is shorter; a failed probe is repeated after one."""
    base_ejection_time: Pause = 30.0
    """The first pause; each further ejection in short succession makes it longer by as much."""
    max_ejection_time: Pause | None = None
    """The longest pause; without it 300s, or `baseEjectionTime` if that is longer."""
    max_ejection_percent: Percent = 50.0
    """Never more of the pool at once, rounded down; one of two or more always may be. Envoy: 10."""
    stall_timeout: Patience = 10.0
    """Silence for so long, while others answered what was sent later, ejects it."""
    suspect_timeout: Patience = 0.5
    """After silence of so long it is avoided until it answers."""
    stalled_requests: Annotated[Count, Field(ge=1)] = 3
    """Both rules of silence need so many requests that wait."""
    probe_path: str = "/health"
    """Asked for on the port that serves when a pause is over; empty: nothing is asked."""
    probe_timeout: Pause = 2.0
    """The timeout of that request."""

    @field_validator("probe_path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not _PROBE_PATH.fullmatch(path):
            raise ValueError(
                "expected a path such as /health, at most 1,024 visible ASCII characters, or nothing"
            )
        return path

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.longest_ejection < self.base_ejection_time:
            raise ValueError(
                "maxEjectionTime is shorter than baseEjectionTime; expected at least as long, or none"
            )
        return self

    @property
    def longest_ejection(self) -> float:
        """Envoy too has the base as the longest time if that is longer than the default."""
        return self.max_ejection_time or max(_LONGEST, self.base_ejection_time)

    def ejectable(self, endpoints: int) -> int:
        """How many of so many endpoints may be ejected at once: at least one, never all."""
        share = int(endpoints * self.max_ejection_percent / 100.0)
        return min(max(share, 1), endpoints - 1) if self.max_ejection_percent else 0

    def pause(self, ejections: int) -> float:
        """Seconds of the ejection after so many others in short succession."""
        return min(self.base_ejection_time * (ejections + 1), self.longest_ejection)

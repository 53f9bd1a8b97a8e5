"""The parameters of each gate. Names are those of llm-d's Go processor where it has them."""

from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dispatcher.broker.budget import parse_decimal
from dispatcher.gates.credentials import SourceCredentials
from runtime.config.sections import ConfigSection, parsed_by
from runtime.durations import parse_duration


def _fraction(value: object) -> object:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a number")  # noqa: TRY004  # pydantic takes no TypeError for an answer
    number = parse_decimal(str(value)) if not isinstance(value, float) or isfinite(value) else None
    if number is None:
        raise ValueError(f"{value!r:.40} is not a decimal number")
    return number


Number = Annotated[Fraction, BeforeValidator(_fraction)]
"""Exact: a float of 0.1 would open or close a gate one request early."""
Share = Annotated[Number, Field(ge=0, le=1)]
Duration = Annotated[float, parsed_by(parse_duration), Field(gt=0, le=86_400, allow_inf_nan=False)]
"""In seconds; text has a unit, as 500ms or 1m30s."""
Delay = Annotated[float, parsed_by(parse_duration), Field(ge=0, le=86_400, allow_inf_nan=False)]
Url = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")]
PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
MetricName = Annotated[str, Field(pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*$")]


class Parameters(ConfigSection):
    """Numbers and flags may be written as text."""

    model_config = ConfigDict(strict=False, arbitrary_types_allowed=True)


class NoGateParameters(Parameters):
    """For gates without parameters."""


class MetricParameters(Parameters):
    """Common to all gates that read a metric.

    `max_concurrency`: max_SYS of one ready model server, in `unit`. `lag`: how long a request takes to show in the metric.
    A reading is invalid `stale_after` times `interval` after its sample. `fallback`: the spare budget without a valid
    reading; absent: closed. `allow_unreachable`: accept a gate that closes at a load which this process alone cannot reach.
    """

    max_concurrency: Number = Field(default=Fraction(100), gt=0)
    unit: Literal["requests", "bytes"] = "requests"
    interval: Duration = 5.0
    lag: Delay = 0.0
    stale_after: float = Field(default=3.0, ge=1.0, le=1000.0)
    timeout: Duration = 10.0
    fallback: Share | None = None
    allow_unreachable: bool = False
    bearer_token_file: str = ""
    ca_file: str = ""

    @property
    def credentials(self) -> SourceCredentials:
        return SourceCredentials(ca_file=self.ca_file, bearer_token_file=self.bearer_token_file)

    @property
    def reserve(self) -> Fraction:
        """The baseline B: the gate is closed at D <= B."""
        return Fraction(0)

    @property
    def known_servers(self) -> Fraction | None:
        """The number of ready model servers, if the configuration has it."""
        return None


class PrometheusParameters(MetricParameters):
    """`lag` must cover Prometheus' scrape interval. The number of ready model servers is `pods`, or the result of
    `pods_query`, or what the picker's metrics say of `pool`.
    """

    url: Url
    pool: PoolName = ""
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,63}$")] = ""
    pods: Number | None = Field(default=None, gt=0)
    pods_query: str = ""
    lag: Delay = 15.0

    @model_validator(mode="after")
    def _servers_can_be_counted(self) -> Self:
        if self.pods is None and not self.pods_query and not self.pool:
            raise ValueError(
                "set pool, or pods, or pods_query: max_SYS is max_concurrency x ready model servers"
            )
        return self

    @property
    def known_servers(self) -> Fraction | None:
        return self.pods


class SaturationParameters(PrometheusParameters):
    """Closed at a saturation of `threshold`: B = 1 - threshold."""

    pool: PoolName
    threshold: Number = Field(default=Fraction("0.8"), gt=0, le=1)

    @property
    def reserve(self) -> Fraction:
        return 1 - self.threshold


class BudgetParameters(PrometheusParameters):
    """`query`: the load, instead of the picker's metrics. Closed at D <= `baseline`."""

    pool: PoolName = ""
    query: str = ""
    baseline: Number = Field(default=Fraction("0.05"), ge=0, lt=1)

    @model_validator(mode="after")
    def _load_can_be_read(self) -> Self:
        if not self.query and not self.pool:
            raise ValueError("set pool, or a query that gives the load")
        return self

    @property
    def reserve(self) -> Fraction:
        return self.baseline


class QueryParameters(PrometheusParameters):
    """`query` gives the budget itself, from 0 to 1."""

    query: str = Field(min_length=1)
    baseline: Number = Field(default=Fraction(0), ge=0, lt=1)

    @property
    def reserve(self) -> Fraction:
        return self.baseline


class ScrapeParameters(MetricParameters):
    """With `max_count_per_pod` the metrics are counts, and samples are summed; without it saturations, and the largest counts.

    `metric`: one name, or several whose values are added, such as waiting and running requests.
    """

    url: Url
    metric: list[MetricName] = Field(min_length=1)
    labels: dict[str, str] = Field(default_factory=dict)
    max_count_per_pod: Number = Field(default=Fraction(0), ge=0)
    absent_value: Number | None = Field(default=None, ge=0)
    baseline: Number = Field(default=Fraction(0), ge=0, lt=1)
    pods: Number = Field(default=Fraction(1), gt=0)
    pods_url: Url | None = None
    pods_metric: MetricName | None = None
    pods_labels: dict[str, str] = Field(default_factory=dict)
    interval: Duration = 1.0
    lag: Delay = 1.0

    @field_validator("metric", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _pods_together(self) -> Self:
        if self.pods_url is not None and self.pods_metric is None:
            raise ValueError("pods_url needs pods_metric, the name of the metric that is there")
        return self

    @property
    def reserve(self) -> Fraction:
        return self.baseline

    @property
    def known_servers(self) -> Fraction | None:
        return self.pods if self.pods_metric is None else None


class LocalParameters(Parameters):
    """Both modes mean the same here: a refused request waits and holds nothing."""

    limit: int = Field(ge=1)
    gating_mode: Literal["classifying", "blocking"] = "blocking"


class QuotaParameters(Parameters):
    """Quotas are kept in the broker. `attribute` always means the tenant. `lease`: how soon the slots of a killed replica
    are released; a rate has a `window` instead.
    """

    limit: int = Field(ge=1)
    mode: Literal["concurrency", "rate-limit"] = "rate-limit"
    window: Duration = 60.0
    lease: Annotated[Duration, Field(ge=0.3, le=15)] = 15.0
    prefix: str = Field(default="quota:", max_length=200)
    attribute: Literal["tenant", "userid"] = "tenant"
    gating_mode: Literal["classifying", "blocking"] = "blocking"


class AllOfParameters(Parameters):
    """The gates as the file has them; the catalogue parses them."""

    gates: list[Any] = Field(min_length=1)


class WaitOnRefuseParameters(Parameters):
    """The gate as the file has it; the catalogue parses it."""

    gate: Any

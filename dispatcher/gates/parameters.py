"""The parameters of each gate. Names are those of llm-d's Go processor where it has them."""

import ssl
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from adsum.config.sections import ConfigSection, parsed_by
from adsum.units import parse_duration
from dispatcher.broker.capacity.budget import parse_decimal


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


class GateSourceError(Exception):
    """A source gave no valid number; the text says why. The gate counts it as a budget of 0."""


class Parameters(ConfigSection):
    """Numbers and flags may be written as text."""

    model_config = ConfigDict(strict=False, arbitrary_types_allowed=True)


class NoGateParameters(Parameters):
    """For gates without parameters."""


class MetricParameters(Parameters):
    """Common to all gates that read a metric."""

    max_concurrency: Number = Field(default=Fraction(100), gt=0)
    """One ready worker takes at most so much, in `unit`."""
    unit: Literal["requests", "bytes"] = "requests"
    """`max_concurrency` counts requests, or the bytes of their bodies."""
    interval: Duration = 5.0
    """The metric is read this often."""
    lag: Delay = 0.0
    """A request takes this long to show in the metric."""
    stale_after: float = Field(default=3.0, ge=1.0, le=1000.0)
    """A reading counts for so many intervals after its sample."""
    timeout: Duration = 10.0
    """The timeout of one reading."""
    fallback: Share | None = None
    """The dispatch budget while nothing can be read; without it the gate is closed then."""
    allow_unreachable: bool = False
    """Accept a gate that closes at a load which this process alone cannot reach."""
    bearer_token_file: str = ""
    """A file with the bearer token that is sent."""
    ca_file: str = ""
    """PEM: who signed the certificate of `url`; without it the system's authorities."""

    def tls(self) -> ssl.SSLContext | bool:
        """For aiohttp's `ssl`; raises OSError if the file cannot be read or holds no certificate."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True

    def headers(self) -> dict[str, str]:
        """Read for each request: the kubelet renews the tokens of service accounts in place.

        Raises GateSourceError if the file cannot be read; the text quotes nothing of it.
        """
        if not self.bearer_token_file:
            return {}
        try:
            token = Path(self.bearer_token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GateSourceError(f"no token in {self.bearer_token_file}: {type(error).__name__}") from error
        return {"Authorization": f"Bearer {token}"}

    @property
    def reserve(self) -> Fraction:
        """The baseline B: the gate is closed at D <= B."""
        return Fraction(0)

    @property
    def known_servers(self) -> Fraction | None:
        """The number of ready model servers, if the configuration has it."""
        return None

    @property
    def fallback_capacity(self) -> Fraction:
        """max_SYS while no reading has told it."""
        return self.max_concurrency * (self.known_servers or 1)


class PrometheusParameters(MetricParameters):
    """The number of ready workers is `pods`, or the result of `pods_query`, or what the picker's metrics say of `pool`."""

    url: Url
    """The URL of Prometheus, such as `http://prometheus:9090`."""
    pool: PoolName = ""
    """The name of the InferencePool in the picker's metrics, which also say how many workers are ready."""
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,63}$")] = ""
    """The namespace of the pool, where several have its name."""
    pods: Number | None = Field(default=None, gt=0)
    """This many workers are ready, if not the metrics of `pool` say so."""
    pods_query: str = ""
    """PromQL for the number of ready workers."""
    lag: Delay = 15.0
    """A request takes this long to show in the metric; at least Prometheus' scrape interval."""

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
    """Closed at a saturation of `threshold`: the baseline is 1 - `threshold`."""

    pool: PoolName
    """The name of the InferencePool in the picker's metrics."""
    threshold: Number = Field(default=Fraction("0.8"), gt=0, le=1)
    """The saturation from which on nothing is sent."""

    @property
    def reserve(self) -> Fraction:
        return 1 - self.threshold


class BudgetParameters(PrometheusParameters):
    """Closed at a dispatch budget of `baseline` or less."""

    pool: PoolName = ""
    """The name of the InferencePool in the picker's metrics."""
    query: str = ""
    """PromQL for the load, instead of the picker's metrics."""
    baseline: Number = Field(default=Fraction("0.05"), ge=0, lt=1)
    """The share of the pool that stays free for interactive requests."""

    @model_validator(mode="after")
    def _load_can_be_read(self) -> Self:
        if not self.query and not self.pool:
            raise ValueError("set pool, or a query that gives the load")
        return self

    @property
    def reserve(self) -> Fraction:
        return self.baseline


class QueryParameters(PrometheusParameters):
    """Closed at a dispatch budget of `baseline` or less."""

    query: str = Field(min_length=1)
    """PromQL for the dispatch budget, from 0 to 1."""
    baseline: Number = Field(default=Fraction(0), ge=0, lt=1)
    """The gate is closed at a budget up to this."""

    @property
    def reserve(self) -> Fraction:
        return self.baseline


class ScrapeParameters(MetricParameters):
    """Reads a metrics page. Closed at a dispatch budget of `baseline` or less."""

    url: Url
    """The URL of the metrics page."""
    metric: list[MetricName] = Field(min_length=1)
    """Its name, or several whose values are added, such as waiting and running requests."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Only samples with these labels count."""
    max_count_per_pod: Number = Field(default=Fraction(0), ge=0)
    """The metrics are counts, and this is what one worker takes at most: samples are summed. 0: they are
    saturations, and the largest counts."""
    absent_value: Number | None = Field(default=None, ge=0)
    """A page without the metric means this number; without it the reading is invalid."""
    baseline: Number = Field(default=Fraction(0), ge=0, lt=1)
    """The share of the pool that stays free for interactive requests."""
    pods: Number = Field(default=Fraction(1), gt=0)
    """This many workers are ready, unless `pods_metric` says so."""
    pods_url: Url | None = None
    """The page that has `pods_metric`; without it `url`."""
    pods_metric: MetricName | None = None
    """The metric that is the number of ready workers."""
    pods_labels: dict[str, str] = Field(default_factory=dict)
    """Only samples of `pods_metric` with these labels count."""
    interval: Duration = 1.0
    """The page is read this often."""
    lag: Delay = 1.0
    """A request takes this long to show on the page."""

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
    """Limits the requests of this process."""

    limit: int = Field(ge=1)
    """This many requests of this process may be in flight."""
    gating_mode: Literal["classifying", "blocking"] = "blocking"
    """Both mean the same here: a refused request waits and holds nothing."""


class QuotaParameters(Parameters):
    """Quotas of tenants, kept in the broker."""

    limit: int = Field(ge=1)
    """One tenant's requests in flight, or its requests in one `window`."""
    mode: Literal["concurrency", "rate-limit"] = "rate-limit"
    """`concurrency`: requests in flight; `rate-limit`: requests in one `window`."""
    window: Duration = 60.0
    """The window of `rate-limit`."""
    lease: Annotated[Duration, Field(ge=0.3, le=15)] = 15.0
    """For `concurrency`, how soon the slots of a process that was killed are released."""
    prefix: str = Field(default="quota:", max_length=200)
    """The prefix of its keys in the broker."""
    attribute: Literal["tenant", "userid"] = "tenant"
    """Both mean the tenant."""
    gating_mode: Literal["classifying", "blocking"] = "blocking"
    """Both mean the same here: a refused request waits and holds nothing."""


class AllOfParameters(Parameters):
    """Closed if one of its gates is."""

    gates: list[Any] = Field(min_length=1)
    """Gates as `{type: NAME, params: {...}}`."""


class WaitOnRefuseParameters(Parameters):
    """Its gate, as it is: here a refused request waits behind every gate."""

    gate: Any
    """A gate as `{type: NAME, params: {...}}`."""

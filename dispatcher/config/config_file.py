"""The schema of the configuration file; parses and checks it and reports all problems at once."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from dispatcher.broker.queue import QueueRules
from dispatcher.broker.result_lists import ResultLists
from dispatcher.broker.validation import LEAST_WEIGHT, LONGEST_KEPT_MS, LONGEST_LEASE_MS, is_valid_tenant
from dispatcher.config.urls import broker_url, http_url
from dispatcher.delivery.route import (
    DEFAULT_PATHS,
    TIMEOUT_HEADER,
    IllegalRequestError,
    Route,
    operator_headers,
)
from dispatcher.gates.catalogue import GateSpec, parse_gate
from runtime.config.problems import ConfigError, Problems
from runtime.config.sections import ConfigSection, parsed_by, read_section
from runtime.config.yaml_document import YamlDocument, parse_yaml
from runtime.durations import parse_duration
from runtime.sizes import parse_size

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_YAML_RULE = "put a value in quotes if it begins with * & ! % @ or `, or has a colon and a space"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


def _expand_variables(value: object, info: ValidationInfo) -> object:
    """Replace ${NAME} by the environment variable, so that the file need not hold secrets."""
    environment: Mapping[str, str] = info.context or {}

    def variable_value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ValueError(f"the environment has no variable {match[1]}")
        return environment[match[1]]

    return _VARIABLE.sub(variable_value, value) if isinstance(value, str) else value


Duration = Annotated[float, parsed_by(parse_duration), Field(gt=0, allow_inf_nan=False)]
"""In seconds."""
Size = Annotated[int, parsed_by(parse_size), Field(gt=0)]
Secret = Annotated[str, BeforeValidator(_expand_variables)]
Secrets = Annotated[dict[str, Secret], Field(repr=False)]
Name = Annotated[str, Field(pattern=_NAME)]
HttpUrl = Annotated[str, BeforeValidator(_expand_variables), AfterValidator(http_url)]


class HttpConfig(ConfigSection):
    """The address of the health and metrics pages and of the front door."""

    host: str = "127.0.0.1"
    port: int = Field(default=8081, ge=0, le=65535)


class TargetConfig(ConfigSection):
    """A gateway. `concurrency`: requests in flight from one process, over all its queues."""

    name: Name
    url: HttpUrl
    paths: list[str] = Field(default=list(DEFAULT_PATHS), min_length=1)
    headers: Secrets = Field(default_factory=dict)
    concurrency: int = Field(default=64, ge=1, le=100_000)
    request_timeout: Duration = 300.0
    timeout_header: str = TIMEOUT_HEADER
    ca_file: str | None = None

    @model_validator(mode="after")
    def _sendable(self) -> "TargetConfig":
        operator_headers(self.headers | {self.timeout_header: ""})
        for path in self.paths:
            Route(path=path, paths=(path,)).request_path()
        return self


class IntakeConfig(ConfigSection):
    """A sorted set that producers of llm-d's Go processor fill. `tenant_attribute`: the metadata key that names the tenant.

    `result_lists`: the only lists that a message may name for its result; empty: all but the keys that are in use here.
    """

    key: str = Field(default="request-sortedset", min_length=1)
    tenant_attribute: str = "userid"
    result_lists: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)


class QueueConfig(ConfigSection):
    """One queue, its gate and its target. `lease`: how soon the requests of a killed replica are taken over."""

    name: Name
    target: str
    path: str | None = None
    objective: Annotated[str, Field(max_length=256)] = ""
    gate: dict[str, Any]
    weights: dict[str, Annotated[float, Field(gt=0, ge=LEAST_WEIGHT, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    strict_tiers: bool = False
    lease: Annotated[Duration, Field(ge=1, le=LONGEST_LEASE_MS / 1000)] = 15.0
    max_deliveries: int = Field(default=10, ge=1)
    result_ttl: Annotated[Duration, Field(le=LONGEST_KEPT_MS / 1000)] = 7 * 86400.0
    max_payload: Annotated[Size, Field(le=10 * 1024 * 1024)] = 10 * 1024 * 1024
    results: Literal["leased", "go-list"] = "leased"
    result_list: str = "result-list"
    intake: IntakeConfig | None = None

    @property
    def rules(self) -> QueueRules:
        """The part that the broker needs."""
        return QueueRules(
            lease_ms=int(self.lease * 1000),
            max_deliveries=self.max_deliveries,
            result_ttl_ms=int(self.result_ttl * 1000),
            max_payload=self.max_payload,
            weights=self.weights,
            strict_tiers=self.strict_tiers,
            result_list=self.result_list if self.results == "go-list" else "",
        )

    def gate_spec(self) -> GateSpec:
        """Parse the gate; raises ConfigError."""
        return parse_gate(self.gate, f"queues.{self.name}.gate")

    def route(self, target: TargetConfig) -> Route:
        return Route(
            path=self.path or target.paths[0],
            paths=tuple(target.paths),
            headers=operator_headers(target.headers),
            objective=self.objective,
            timeout_header=target.timeout_header,
        )


class FrontDoorConfig(ConfigSection):
    """The OpenAI-compatible HTTP API. `tokens`: tenant → bearer token; without any, everybody is tenant "default"."""

    queue: str
    deadline: Duration = 86400.0
    tokens: Secrets = Field(default_factory=dict)

    @model_validator(mode="after")
    def _tells_tenants_apart(self) -> "FrontDoorConfig":
        tenants: dict[str, str] = {}
        for tenant, token in self.tokens.items():
            if not is_valid_tenant(tenant):
                raise ValueError(f"tenant {tenant[:80]!r} cannot be named in a header")
            if (
                not token.strip()
            ):  # its variable may be empty: then a client without a token would be that tenant
                raise ValueError(f"the token of tenant {tenant!r} is empty")
            if token in tenants:
                raise ValueError(f"tenants {tenants[token]!r} and {tenant!r} have the same token")
            tenants[token] = tenant
        return self


class Config(ConfigSection):
    """A checked configuration file."""

    broker: Annotated[str, BeforeValidator(_expand_variables), AfterValidator(broker_url), Field(repr=False)]
    http: HttpConfig = HttpConfig()
    drain_timeout: Duration = 120.0
    targets: list[TargetConfig] = Field(min_length=1)
    queues: list[QueueConfig] = Field(default_factory=list)
    front_door: FrontDoorConfig | None = None

    @property
    def intake_keys(self) -> frozenset[str]:
        """The keys of all intakes: a result written there would be read as a request."""
        return frozenset(queue.intake.key for queue in self.queues if queue.intake is not None)

    def target(self, name: str) -> TargetConfig:
        """The target of that name; `read_config` checks that it exists."""
        return next(target for target in self.targets if target.name == name)

    def queue(self, name: str) -> QueueConfig:
        """Raises ConfigError if there is no such queue."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        raise ConfigError(
            "", f"there is no queue {name!r}; there are {_listed([q.name for q in self.queues])}"
        )


def read_config(text: str, environment: Mapping[str, str]) -> Config:
    """Parse and check YAML; raises ConfigError with all problems. It quotes no value: one may be a secret."""
    written = _parse(text)
    problems = Problems()
    config = problems.of(lambda: read_section(Config, written.given, "", secrets=True, context=environment))
    if config is not None:
        _check(config, problems)
    if problems or config is None:
        raise problems.error(written.line)
    return config


def _parse(text: str) -> YamlDocument:
    try:
        written = parse_yaml(text, secrets=True)
    except ConfigError as error:
        raise ConfigError("", f"{error}; {_YAML_RULE}") from error
    if not isinstance(written.given, dict):
        raise ConfigError("", "expected a mapping with broker, targets and queues")
    return written


def _check(config: Config, problems: Problems) -> None:
    """Add what does not fit together."""
    _check_names(config, problems)
    for queue in config.queues:
        _check_queue(queue, config, problems)
    if not problems:
        problems.of(lambda: _check_units(config))
    if config.front_door is not None:
        problems.of(partial(config.queue, config.front_door.queue))


def _check_names(config: Config, problems: Problems) -> None:
    named = {
        "targets": [target.name for target in config.targets],
        "queues": [queue.name for queue in config.queues],
    }
    for place, names in named.items():
        for name, count in Counter(names).items():
            if count > 1:
                problems.add(place, f"the name {name!r} appears twice")


def _check_queue(queue: QueueConfig, config: Config, problems: Problems) -> None:
    place = f"queues.{queue.name}"
    if config.broker.startswith("memory:") and (queue.intake or queue.results == "go-list"):
        problems.add(place, "intake and results: go-list need a Redis broker")
    problems.of(queue.gate_spec)
    names = [target.name for target in config.targets]
    if queue.target not in names:
        problems.add(f"{place}.target", f"there is no target {queue.target!r}; there are {_listed(names)}")
    else:
        try:
            queue.route(config.target(queue.target)).request_path()
        except IllegalRequestError as error:
            problems.add(f"{place}.path", str(error))
    _check_results(queue, config, problems)


def _check_results(queue: QueueConfig, config: Config, problems: Problems) -> None:
    """No result may be written where an intake reads requests."""
    listed = queue.intake.result_lists if queue.intake is not None else []
    used = [("result_list", queue.rules.result_list), *(("intake.result_lists", name) for name in listed)]
    for field, name in used:
        if refusal := ResultLists(config.intake_keys).refusal(name):
            problems.add(f"queues.{queue.name}.{field}", refusal.replace("result_queue_name", "it", 1))


def _check_units(config: Config) -> None:
    """All queues of a target must count in one unit: its ledger adds up what they have sent."""
    first: dict[str, tuple[str, str]] = {}
    for queue in config.queues:
        for unit in sorted(queue.gate_spec().units):
            name, other = first.setdefault(queue.target, (queue.name, unit))
            if unit != other:
                raise ConfigError(
                    f"queues.{queue.name}.gate",
                    f"target {queue.target!r} is counted by {name!r} in {other} and by {queue.name!r} in {unit}; "
                    "expected one unit for all gates of a target",
                )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

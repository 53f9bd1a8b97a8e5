"""The schema of the configuration file; parses and checks it and reports all problems at once."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from dispatcher.broker.opening import checked_broker_url, has_go_queues
from dispatcher.broker.queue import QueueRules
from dispatcher.broker.result_lists import ResultLists
from dispatcher.broker.validation import LEAST_WEIGHT, LONGEST_KEPT_MS, LONGEST_LEASE_MS, is_valid_tenant
from dispatcher.config.urls import http_url
from dispatcher.delivery.route import (
    DEFAULT_PATHS,
    TIMEOUT_HEADER,
    IllegalRequestError,
    Route,
    operator_headers,
)
from dispatcher.gates.catalogue import GateSpec, parse_gate
from runtime.addresses import split_authority
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


def _host_and_port(text: str) -> str:
    split_authority(text, min_port=0)
    return text


class HttpConfig(ConfigSection):
    """The address of the pages and of the front door."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8081, ge=0, le=65535)
    """0 is any free one."""
    debug_token_file: str | None = None
    """A file with a token: who sends it sees the dispatcher's page. Without it only the dispatcher's machine does."""
    debug_address: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """`HOST:PORT`, a port of its own for the page, open to all who reach it unless there is a token."""


class TargetConfig(ConfigSection):
    """Where requests of one or more queues are sent: a gateway, or a worker."""

    name: Name
    """By which queues name it."""
    url: HttpUrl
    """`http://HOST[:PORT]` or `https://...`; a path there stands before the path of each request."""
    paths: list[str] = Field(default=list(DEFAULT_PATHS), min_length=1)
    """The paths that requests may name; one that ends in `/` allows everything below it."""
    headers: Secrets = Field(default_factory=dict)
    """Sent with every request, such as `authorization`; no caller overrides them."""
    concurrency: int = Field(default=64, ge=1, le=100_000)
    """Requests in flight from one process, over all its queues."""
    request_timeout: Duration = 300.0
    """For one attempt; the deadline of the request, if that is sooner."""
    timeout_header: str = TIMEOUT_HEADER
    """The header that tells the gateway the remaining time, in milliseconds."""
    ca_file: str | None = None
    """PEM: who signed the gateway's certificate; without it the system's authorities."""

    @model_validator(mode="after")
    def _sendable(self) -> "TargetConfig":
        operator_headers(self.headers | {self.timeout_header: ""})
        for path in self.paths:
            Route(path=path, paths=(path,)).request_path()
        return self


class IntakeConfig(ConfigSection):
    """A sorted set that producers of llm-d's Go processor fill."""

    key: str = Field(default="request-sortedset", min_length=1)
    """The key of the sorted set in Redis."""
    tenant_attribute: str = "userid"
    """The metadata key of a message that names the tenant."""
    result_lists: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """The only lists that a message may name for its result; empty: all but the keys that are in use here."""


class QueueConfig(ConfigSection):
    """One queue, its gate and its target."""

    name: Name
    """Unique in the file."""
    target: str
    """The `name` of its target."""
    path: str | None = None
    """For requests that name no path; without it the first of the target's `paths`."""
    objective: Annotated[str, Field(max_length=256)] = ""
    """The header `x-llm-d-inference-objective` of every request; without it the request's own."""
    gate: dict[str, Any]
    """`{type: NAME, params: {...}}`: [parameters of gates](#parameters-of-gates)."""
    weights: dict[str, Annotated[float, Field(gt=0, ge=LEAST_WEIGHT, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    """Shares by tenant; a tenant that is not named has 1."""
    strict_tiers: bool = False
    """Requests with a lower `tier` go first, whatever the shares."""
    lease: Annotated[Duration, Field(ge=1, le=LONGEST_LEASE_MS / 1000)] = 15.0
    """The requests of a process that was killed are taken over after this."""
    max_deliveries: int = Field(default=10, ge=1)
    """After so many leases that expired, a request becomes a dead letter."""
    result_ttl: Annotated[Duration, Field(le=LONGEST_KEPT_MS / 1000)] = 7 * 86400.0
    """How long results are kept."""
    max_payload: Annotated[Size, Field(le=10 * 1024 * 1024)] = 10 * 1024 * 1024
    """The largest body of a request."""
    results: Literal["leased", "go-list"] = "leased"
    """`go-list`: results go to a Redis list, as llm-d's Go processor of batch requests writes them."""
    result_list: str = "result-list"
    """The name of that list."""
    intake: IntakeConfig | None = None
    """Moves what Go producers submit into this queue."""

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
    """The OpenAI-compatible HTTP API."""

    queue: str
    """The `name` of the queue that takes its requests."""
    deadline: Duration = 86400.0
    """Of requests that name none."""
    tokens: Secrets = Field(default_factory=dict)
    """Bearer tokens by tenant; without any, everybody is tenant `default`."""

    @model_validator(mode="after")
    def _tells_tenants_apart(self) -> "FrontDoorConfig":
        tenants: dict[str, str] = {}
        for tenant, token in self.tokens.items():
            if not is_valid_tenant(tenant):
                raise ValueError(f"tenant {tenant[:80]!r} cannot be named in a header")
            # its variable may be empty: then a client without a token would be that tenant
            if not token.strip():
                raise ValueError(f"the token of tenant {tenant!r} is empty")
            if token in tenants:
                raise ValueError(f"tenants {tenants[token]!r} and {tenant!r} have the same token")
            tenants[token] = tenant
        return self


class Config(ConfigSection):
    """`broker` and `http` need a restart; everything else is read again when the file changes."""

    broker: Annotated[
        str, BeforeValidator(_expand_variables), AfterValidator(checked_broker_url), Field(repr=False)
    ]
    """Where requests wait: `redis://HOST:PORT/DB`, `rediss://`, `unix:///PATH`, `memory://`, or a scheme of
    an installed package."""
    http: HttpConfig = HttpConfig()
    """The pages and the front door."""
    drain_timeout: Duration = 120.0
    """How long requests in flight may take after SIGTERM."""
    targets: list[TargetConfig] = Field(min_length=1)
    """The gateways; at least one."""
    queues: list[QueueConfig] = Field(default_factory=list)
    """The queues that are sent from."""
    front_door: FrontDoorConfig | None = None
    """Accepts requests over HTTP; without it only the broker does."""

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
    if not has_go_queues(config.broker) and (queue.intake or queue.results == "go-list"):
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

"""The schema of the configuration file; parses and checks it and reports all problems at once."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from adsum.addresses import split_authority
from adsum.config.problems import ConfigError, Problems, did_you_mean
from adsum.config.sections import ConfigSection, parsed_by, read_section
from adsum.config.yaml_document import YamlDocument, parse_yaml
from adsum.units import parse_duration, parse_size
from dispatcher.broker.contract.queue import QueueLimits, QueueRules
from dispatcher.broker.contract.validation import (
    LEAST_WEIGHT,
    LONGEST_KEPT_MS,
    LONGEST_LEASE_MS,
    is_valid_tenant,
)
from dispatcher.broker.opening import checked_broker_url, has_go_queues
from dispatcher.broker.redis.go_queues.go_message import ResultLists
from dispatcher.broker.urls import REDIS_SCHEMES, split_url
from dispatcher.delivery.answer_limits import ANSWER_MEMORY
from dispatcher.delivery.route import (
    DEFAULT_PATHS,
    TIMEOUT_HEADER,
    IllegalRequestError,
    Route,
    allowed_caller_headers,
    operator_headers,
)
from dispatcher.delivery.verdict import DEFAULT_LIMITS, AttemptLimits
from dispatcher.gates.catalogue import GateSpec, parse_gate

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


def _http_url(value: str) -> str:
    """Check the URL of a target; returns it without a slash at its end. Raises ValueError."""
    parts = split_url(value)
    plain = value.isascii() and value.isprintable() and " " not in value
    known = parts.scheme in ("http", "https") and parts.hostname
    if not plain or not known or parts.query or parts.fragment:
        raise ValueError("expected http://HOST[:PORT][/PATH] or https://...")
    if parts.username or parts.password:
        raise ValueError("a user and a password belong into the header authorization")
    return value.rstrip("/")


Duration = Annotated[float, parsed_by(parse_duration), Field(gt=0, allow_inf_nan=False)]
"""In seconds."""
Size = Annotated[int, parsed_by(parse_size), Field(gt=0)]
Secret = Annotated[str, BeforeValidator(_expand_variables)]
Secrets = Annotated[dict[str, Secret], Field(repr=False)]
Name = Annotated[str, Field(pattern=_NAME)]
HttpUrl = Annotated[str, BeforeValidator(_expand_variables), AfterValidator(_http_url)]


def _host_and_port(text: str) -> str:
    split_authority(text, min_port=0)
    return text


class HttpConfig(ConfigSection):
    """The address of the pages and of the front door."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8081, ge=0, le=65535)
    """0 is any free one."""
    tls_cert_file: str | None = None
    """PEM, the certificate with its chain: `host` and `port` are served with TLS. Read again when it changes."""
    tls_key_file: str | None = None
    """PEM, its key without a password."""
    health_address: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """`HOST:PORT`, a port of its own for /healthz, /readyz and /metrics, which no client of the front door can fill."""
    debug_token_file: str | None = None
    """A file with a token: who sends it sees the dispatcher's page. Without it only the dispatcher's machine does."""
    debug_address: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """`HOST:PORT`, a port of its own for the page, open to all who reach it unless there is a token."""

    @model_validator(mode="after")
    def _has_both_tls_files(self) -> "HttpConfig":
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS takes two files; give tls_cert_file and tls_key_file")
        return self


class TargetConfig(ConfigSection):
    """A target gets the requests of one or more queues: it is a gateway, or a worker."""

    name: Name
    """Queues name it by this."""
    url: HttpUrl
    """`http://HOST[:PORT]` or `https://...`; a path there stands before the path of each request."""
    paths: list[str] = Field(default=list(DEFAULT_PATHS), min_length=1)
    """The paths that requests may name; one that ends in `/` allows everything below it."""
    headers: Secrets = Field(default_factory=dict)
    """Sent with every request, such as `authorization`; no caller overrides them."""
    caller_headers: list[str] = Field(default_factory=list)
    """Further headers that requests may set; without it `accept`, `content-type`, `openai-*` and those of traces."""
    concurrency: int = Field(default=64, ge=1, le=100_000)
    """Requests in flight from one process, over all its queues."""
    request_timeout: Duration = 300.0
    """One attempt may take this long, or until the deadline of the request, if that is sooner."""
    timeout_header: str = TIMEOUT_HEADER
    """The header that tells the gateway the remaining time, in milliseconds."""
    ca_file: str | None = None
    """PEM: who signed the gateway's certificate; without it the system's authorities."""

    @model_validator(mode="after")
    def _sendable(self) -> "TargetConfig":
        operator_headers(self.headers | {self.timeout_header: ""})
        allowed_caller_headers(self.caller_headers)
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
    """Requests that name no path go there; without it the first of the target's `paths`."""
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
    max_attempts: int = Field(default=DEFAULT_LIMITS.failures, ge=1)
    """After so many failed attempts a request becomes a dead letter. One that no worker got does not count."""
    max_disconnects: int = Field(default=DEFAULT_LIMITS.disconnects, ge=1)
    """The same for attempts whose connection ended before an answer: the request may kill its worker."""
    result_ttl: Annotated[Duration, Field(le=LONGEST_KEPT_MS / 1000)] = 7 * 86400.0
    """Results are kept for this long."""
    max_payload: Annotated[Size, Field(le=10 * 1024 * 1024)] = 10 * 1024 * 1024
    """The largest body of a request."""
    max_requests: int | None = Field(default=None, ge=1)
    """This many requests may be without a result; more are refused. Without it there is no limit, as below."""
    max_bytes: Size | None = None
    """The bytes of their bodies."""
    max_tenant_requests: int | None = Field(default=None, ge=1)
    """This many requests of one tenant may be without a result."""
    max_tenant_bytes: Size | None = None
    """The bytes of their bodies."""
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
            limits=QueueLimits(
                self.max_requests or 0,
                self.max_bytes or 0,
                self.max_tenant_requests or 0,
                self.max_tenant_bytes or 0,
            ),
            weights=self.weights,
            strict_tiers=self.strict_tiers,
            result_list=self.result_list if self.results == "go-list" else "",
        )

    @property
    def attempt_limits(self) -> AttemptLimits:
        return AttemptLimits(self.max_attempts, self.max_disconnects)

    def gate_spec(self) -> GateSpec:
        """Parse the gate; raises ConfigError."""
        return parse_gate(self.gate, f"queues.{self.name}.gate")

    def route(self, target: TargetConfig) -> Route:
        return Route(
            path=self.path or target.paths[0],
            paths=tuple(target.paths),
            headers=operator_headers(target.headers),
            caller_headers=allowed_caller_headers(target.caller_headers),
            objective=self.objective,
            timeout_header=target.timeout_header,
        )


class FrontDoorConfig(ConfigSection):
    """The OpenAI-compatible HTTP API."""

    queue: str
    """The `name` of the queue that takes its requests."""
    deadline: Duration = 86400.0
    """The deadline of requests that name none."""
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
    """Requests wait at this URL: `redis://HOST:PORT/DB`, `rediss://`, `unix:///PATH`, `memory://`, or a scheme of
    an installed package."""
    http: HttpConfig = HttpConfig()
    """The pages and the front door."""
    drain_timeout: Duration = 120.0
    """Requests in flight may take this long after SIGTERM."""
    answer_memory: Size = ANSWER_MEMORY
    """Bytes of all answers that the process holds: those that arrive, and those that the broker has not stored yet."""
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
        raise ConfigError("", _unknown("queue", name, [queue.name for queue in self.queues]))


def read_config(text: str, environment: Mapping[str, str]) -> Config:
    """Parse and check YAML; raises ConfigError with all problems. It quotes no value: one may be a secret."""
    written = _parse(text)
    problems = Problems()
    config = problems.of(lambda: read_section(Config, written.given, "", secrets=True, context=environment))
    _check_references(written.given, problems)
    _check(config or _sound_parts(written.given, environment), problems)
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


def _check_references(given: Mapping[str, Any], problems: Problems) -> None:
    """Add unknown and repeated names and faults of gates, also in a file that has other problems."""
    targets, queues = _named(given, "targets"), _named(given, "queues")
    for place, named in (("targets", targets), ("queues", queues)):
        for name, count in Counter(name for name, _ in named).items():
            if count > 1:
                problems.add(place, f"the name {name!r:.80} appears twice")
    for name, queue in queues:
        place = f"queues.{name}"
        if isinstance(gate := queue.get("gate"), dict):
            problems.of(partial(parse_gate, gate, f"{place}.gate"))
        _check_name(f"{place}.target", "target", queue.get("target"), targets, problems)
    if isinstance(door := given.get("front_door"), dict):
        _check_name("front_door.queue", "queue", door.get("queue"), queues, problems)


_Named = list[tuple[str, dict[str, Any]]]


def _check_name(place: str, what: str, name: object, named: _Named, problems: Problems) -> None:
    """A name that is no text is reported elsewhere."""
    names = [one for one, _ in named]
    if isinstance(name, str) and name not in names:
        problems.add(place, _unknown(what, name, names))


def _named(given: Mapping[str, Any], place: str) -> _Named:
    """The elements of a list of the document that have a name."""
    elements = given.get(place)
    found = elements if isinstance(elements, list) else []
    return [(one["name"], one) for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _sound_parts(given: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    """The targets and queues that are sound in a file that is not: their own faults are reported with the others."""
    targets, queues = (
        [found for _, one in _named(given, place) if (found := _sound(section, one, environment)) is not None]
        for place, section in (("targets", TargetConfig), ("queues", QueueConfig))
    )
    return Config.model_construct(broker=REDIS_SCHEMES[0] + "://", targets=targets, queues=queues)


def _sound(section: type[ConfigSection], one: object, environment: Mapping[str, str]) -> ConfigSection | None:
    with suppress(ValidationError):
        return section.model_validate(one, context=environment)
    return None


def _check(config: Config, problems: Problems) -> None:
    """Add what does not fit together in the targets and queues."""
    for queue in config.queues:
        _check_queue(queue, config, problems)
    if not problems:
        problems.of(lambda: _check_units(config))


def _check_queue(queue: QueueConfig, config: Config, problems: Problems) -> None:
    place = f"queues.{queue.name}"
    if not has_go_queues(config.broker) and (queue.intake or queue.results == "go-list"):
        problems.add(place, "intake and results: go-list need a Redis broker")
    if queue.target in [target.name for target in config.targets]:
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


def _unknown(what: str, name: str, names: Sequence[str]) -> str:
    return f"there is no {what} {name!r:.80}; {did_you_mean(name, names)}"

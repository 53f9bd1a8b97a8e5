"""Lets one revision of a disaggregated deployment serve a request: while a rollout replaces it, by how much each could serve.

Names, parameters, metrics and rules: llm-d-router, plugins/requestcontrol/screener/disaggregatedsetrollout. There the Pods of a
selector are counted; here, of the picker's own endpoints, those that are ready.
"""

import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from prometheus_client import Metric
from pydantic import Field, model_validator

from adsum.metric_families import counter, gauge
from epp.endpoints.endpoint import Endpoint, EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import PREFIX
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.filters import Requirement
from epp.scheduling.pairing import REVISION_LABEL
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import RequestFollower

STAGE_LABEL: Final = "disaggregatedset.x-k8s.io/role"
_MOST_SELECTOR: Final = 4096
"""Characters of a label selector."""
# bounded: _MOST_SELECTOR characters, each read once: what repeats gives nothing back
_REQUIREMENT: Final = re.compile(
    r"\s*+(?P<absent>!\s*+)?(?P<key>[\w./-]++)\s*+"
    r"(?:(?P<equals>==|=|!=)\s*+(?P<value>[\w.-]*+)|(?P<within>in|notin)\s*+\((?P<values>[\w.,\s-]*+)\))?\s*+(?:,|$)"
)


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """A Kubernetes label selector as text: `a=b,c!=d,e in (f,g),h,!i`. Raises ValueError for what is none."""
    requirements: list[Requirement] = []
    at, given = 0, text.strip()
    if not given or len(given) > _MOST_SELECTOR:
        raise ValueError("a label selector is empty or too long; expected such as app=vllm,tier in (a,b)")
    while at < len(given):
        found = _REQUIREMENT.match(given, at)
        compared = None if found is None else found["equals"] or found["within"]
        if found is None or (found["absent"] and compared):
            wrong = given[at : at + 40]
            raise ValueError(f"{wrong!r} is no label selector; expected such as app=vllm,tier in (a,b),!old")
        if compared is None:
            operator, values = "DoesNotExist" if found["absent"] else "Exists", []
        elif found["equals"]:
            operator, values = "NotIn" if compared == "!=" else "In", [found["value"]]
        else:
            # bounded: _MOST_SELECTOR characters
            listed = found["values"].split(",")
            operator, values = "In" if compared == "in" else "NotIn", [one.strip() for one in listed]
        requirements.append(Requirement.model_construct(key=found["key"], operator=operator, values=values))
        at = found.end()
    return tuple(requirements)


class RevisionShares:
    """Which share of the requests each revision gets, by its workers of each role. A revision without one of a required role gets none.

    `mode` `sum`: by all of its workers that are required; `max-role`: by those of the role that has the most workers in all revisions
    together, of equal ones the first of `required`.
    """

    def __init__(self, mode: str, required: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> None:
        covered = {one: of for one, of in counts.items() if all(of.get(role) for role in required)}
        roles = required
        if mode == MAX_ROLE and covered:
            totals = {role: sum(of[role] for of in covered.values()) for role in required}
            roles = [max(required, key=totals.__getitem__)]
        weights = {one: sum(of[role] for role in roles) for one, of in covered.items()}
        total = sum(weights.values())
        self.shares = {one: weights[one] / total if one in weights else 0.0 for one in sorted(counts)}

    def draw(self, revisions: Collection[str], chance: float) -> str:
        """One of these that have a share, by `chance` from 0 to 1; empty: none has."""
        able = [(one, share) for one, share in self.shares.items() if share and one in revisions]
        left = chance * sum(share for _, share in able)
        for one, share in able:
            left -= share
            if left < 0.0:
                return one
        return able[-1][0] if able else ""


MAX_ROLE: Final = "max-role"


class RolloutScreener(RequestFollower):
    """A `Screener`. `no_match`: strict headers for which there was no endpoint, by the selector's name."""

    def __init__(self, given: "RolloutParameters", name: str, rng: random.Random) -> None:
        self.name = name
        self.mode = given.revision_gating.mode
        self.no_match: Counter[str] = Counter()
        self._scope = parse_selector(given.scope.label_selector)
        self._required = given.revision_gating.required
        self._revision_label = given.revision_gating.revision_label_key or REVISION_LABEL
        self._role_label = given.revision_gating.role_label_key or STAGE_LABEL
        self._selectors = given.header_selectors
        self._strict = [one for one in given.header_selectors if one.mode == "strict"]
        self._rng = rng
        self._everyone: tuple[Endpoint, ...] = ()
        self.distribution = RevisionShares(self.mode, (), {})

    def screen(self, request: InferenceRequest, pool: EndpointPool) -> tuple[Mask, str]:
        """The endpoints that the request may go to, and why no other; nobody if none may."""
        kept: Mask = np.ones(len(pool), dtype=np.bool_)
        pinned = [(one, wanted) for one in self._strict if (wanted := request.headers.get(one.header_name))]
        if self._required:
            self._count(pool.endpoints if pool.selected_from is None else pool.selected_from[0])
            shares = self.distribution.shares
            revisions = [one.labels.get(self._revision_label, "") for one in pool.endpoints]
            chosen = "" if pinned else self.distribution.draw(set(revisions), self._rng.random())
            kept = np.array([bool(shares.get(one)) and chosen in ("", one) for one in revisions], np.bool_)
            if not kept.any():
                return kept, f"no revision has ready workers of each role: {', '.join(self._required)}"
        for selector, wanted in pinned:
            kept &= np.array(
                [one.labels.get(selector.label_key) == wanted for one in pool.endpoints], np.bool_
            )
            if not kept.any():
                self.no_match[selector.name] += 1
                return kept, f"no endpoint has the {selector.label_key} that {selector.header_name} asks for"
        return kept, ""

    def _count(self, everyone: tuple[Endpoint, ...]) -> None:
        if everyone is self._everyone:  # the same tuple as long as no endpoint changes
            return
        self._everyone = everyone
        # bounded: the endpoints
        counts: dict[str, Counter[str]] = {}
        there = [one for one in everyone if one.reachable] or everyone
        for labels in [one.labels for one in there]:
            revision, role = labels.get(self._revision_label, ""), labels.get(self._role_label, "")
            if revision and role and all(one.matches(labels) for one in self._scope):
                counts.setdefault(revision, Counter())[role] += 1
        self.distribution = RevisionShares(self.mode, self._required, counts)

    def response_headers(self, pick: Pick, served: str | None) -> Mapping[str, str]:
        """The labels of the endpoint that answers."""
        labels = pick.in_flight_at[0].labels if pick.in_flight_at else {}
        told = {one.header_name: labels.get(one.label_key, "") for one in self._selectors}
        return {name: value for name, value in told.items() if value}


class ScopeParameters(Section):
    label_selector: str
    """The workers that count, as a Kubernetes label selector."""

    @model_validator(mode="after")
    def _check(self) -> "ScopeParameters":
        parse_selector(self.label_selector)
        return self


class HeaderSelectorParameters(Section):
    name: str = Field(min_length=1)
    """The selector in metrics."""
    header_name: HeaderName = Field(min_length=1)
    """The header of requests, and of answers."""
    label_key: str = Field(min_length=1)
    """The label that it is compared with, and that answers have."""
    mode: Literal["strict", "prefer"]
    """`strict`: no other endpoint gets the request. `prefer`: only the answer tells the label; `header-label-affinity-scorer` prefers."""


class RequireRolesParameters(Section):
    values: list[str] = Field(min_length=1)
    """The roles of which a revision needs a worker."""

    @model_validator(mode="after")
    def _check(self) -> "RequireRolesParameters":
        if not all(self.values) or len({*self.values}) < len(self.values):
            raise ValueError("a role is empty or listed twice; expected such as [prefill, decode]")
        return self


class RevisionGatingParameters(Section):
    revision_label_key: str = ""
    """The label of a worker's revision; without it `disaggregatedset.x-k8s.io/revision`."""
    role_label_key: str = ""
    """The label of its role; without it `disaggregatedset.x-k8s.io/role`."""
    mode: Literal["sum", "max-role", "disabled"]
    """It says how the revisions share the requests."""
    require_roles: RequireRolesParameters | None = None
    """Needed with `sum` and `max-role`."""

    @model_validator(mode="after")
    def _check(self) -> "RevisionGatingParameters":
        if self.mode != "disabled" and self.require_roles is None:
            raise ValueError(f"requireRoles is missing, which mode {self.mode} needs")
        return self

    @property
    def required(self) -> Sequence[str]:
        """Empty: revisions are not looked at."""
        return () if self.mode == "disabled" or self.require_roles is None else self.require_roles.values


class RolloutParameters(Section):
    scope: ScopeParameters
    """It selects the workers that count."""
    revision_gating: RevisionGatingParameters
    """It says which revisions get requests."""
    header_selectors: list[HeaderSelectorParameters] = Field(default_factory=list)
    """Headers that choose endpoints by a label."""

    @model_validator(mode="after")
    def _check(self) -> "RolloutParameters":
        for what in ("name", "header_name"):
            given = [getattr(one, what) for one in self.header_selectors]
            if twice := next((one for one in given if given.count(one) > 1), None):
                raise ValueError(f"two headerSelectors have the same {what.replace('_', ' ')} {twice[:60]!r}")
        return self


def _build(given: RolloutParameters, context: PluginContext) -> RolloutScreener:
    screener = RolloutScreener(given, context.name, random.Random(context.rng.getrandbits(64)))
    context.follow(screener)
    if given.header_selectors:
        context.set_response_headers(screener.response_headers)
    return screener


def _metrics(plugins: Sequence[RolloutScreener]) -> Iterator[Metric]:
    labels, kind = ("plugin_type", "plugin_name"), DISAGGREGATEDSET_ROLLOUT_SCREENER.type
    no_match = [
        ((kind, one.name, selector), count) for one in plugins for selector, count in one.no_match.items()
    ]
    if no_match:
        name, help_text = "disaggregatedset_strict_header_no_match", "Strict headers that named no endpoint."
        yield counter(PREFIX + name, help_text, (*labels, "selector"), no_match)
    shares = [
        ((kind, one.name, one.mode, revision), share)
        for one in plugins
        for revision, share in one.distribution.shares.items()
    ]
    if shares:
        name = PREFIX + "disaggregatedset_revision_gating_share"
        help_text = "The share of the requests that a revision gets; 0: it lacks a role."
        yield gauge(name, help_text, (*labels, "mode", "revision"), shares)


DISAGGREGATEDSET_ROLLOUT_SCREENER: Final = PluginDeclaration(
    type="disaggregatedset-rollout-screener",
    role=Role.SCREENER,
    parameters=RolloutParameters,
    build=_build,
    metrics=_metrics,
)

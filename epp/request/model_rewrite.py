"""Rules that send the requests for one model to another one, as the resource InferenceModelRewrite says them. Pure.

https://github.com/llm-d/llm-d-router/blob/main/apix/v1alpha2/inferencemodelrewrite_types.go has the rules of precedence.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from epp.request.control_headers import MODEL_REWRITE


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """`weight`: the share of the requests, relative to the other targets; 0 where the rule states none."""

    model: str
    weight: int = 0


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rule of the resource `name`.

    `created`: when the resource was, as Kubernetes writes it (RFC 3339, UTC). `models`: the models whose requests it takes;
    empty: all models (a generic rule).
    """

    name: str
    created: str
    models: tuple[str, ...]
    targets: tuple[RewriteTarget, ...]


class _Choice:
    """The targets of one rule, ready to choose from."""

    __slots__ = ("_limits", "_models", "name")

    def __init__(self, rule: RewriteRule) -> None:
        targets = [target for target in rule.targets if target.model]
        weights = [max(0, target.weight) for target in targets]
        # as in the Go picker: if any target has a weight, those without get nothing; if none has, all get the same
        if not any(weights):
            weights = [1] * len(targets)
        self.name = rule.name
        self._models = [target.model for target in targets]
        self._limits = list(accumulate(weights))

    def target(self, rng: random.Random) -> str | None:
        if not self._models:
            return None
        if len(self._models) == 1:
            return self._models[0]
        return rng.choices(self._models, cum_weights=self._limits)[0]


def _nobody(name: str, model: str, target: str) -> None:
    """Nobody counts the decisions."""


class ModelRewrites:
    """The rules of a picker. `on_decision`: called with each choice of a rule: its name, the client's model, the target."""

    def __init__(self, rules: Sequence[RewriteRule] = ()) -> None:
        self.on_decision: Callable[[str, str, str], None] = _nobody
        self.replace(rules)

    def replace(self, rules: Sequence[RewriteRule]) -> None:
        """Take these rules in place of all others; rules of one resource in its own order.

        A rule that names the model goes before a generic one, then the oldest resource, then the first by name, then the
        first rule in it. A rule without targets leaves the model as it is.
        """
        exact: dict[str, _Choice] = {}
        generic: _Choice | None = None
        for rule in sorted(rules, key=lambda rule: (rule.created, rule.name)):
            choice = _Choice(rule)
            for model in rule.models:
                exact.setdefault(model, choice)
            if not rule.models and generic is None:
                generic = choice
        self._exact: Mapping[str, _Choice] = exact
        self._generic = generic

    def target(
        self, model: str, headers: Mapping[str, str], rng: random.Random, *, counted: bool = True
    ) -> str | None:
        """The model that serves a request for `model`; None: no rule and no header asks for another.

        As in the Go picker, a rule goes before the header.
        """
        choice = self._exact.get(model) or self._generic
        if choice is not None and (target := choice.target(rng)) is not None:
            if counted:
                self.on_decision(choice.name, model, target)
            return target
        for name in MODEL_REWRITE:
            if value := headers.get(name, "").strip():
                return value
        return None

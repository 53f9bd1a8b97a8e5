"""Label and field selectors, as far as requests in these tests go."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REQUIREMENT = re.compile(
    r"\s*(?P<absent>!)?\s*(?P<key>[A-Za-z0-9./_-]+)\s*"
    r"(?:(?P<op>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)|\s(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?\s*(?:,|$)"
)


class SelectorError(Exception):
    """The server answers 400."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One label: `values` None: only its presence counts."""

    key: str
    negated: bool
    values: frozenset[str] | None

    def matches(self, labels: Mapping[str, str]) -> bool:
        hit = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return hit != self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All of `requirements`, and `name` unless None."""

    requirements: tuple[Requirement, ...] = ()
    name: str | None = None

    @classmethod
    def parse(cls, labels: str, fields: str = "") -> "Selector":
        """Raises `SelectorError` for what a server would not understand either."""
        requirements, at = [], 0
        while at < len(labels):
            match = _REQUIREMENT.match(labels, at)
            if match is None:
                raise SelectorError(f"unable to parse requirement: found {labels[at:]!r}")
            requirements.append(_requirement(match))
            at = match.end()
        key, _, name = fields.partition("=")
        if fields and key != "metadata.name":
            raise SelectorError(f"field label not supported: {key}")
        return cls(tuple(requirements), name.lstrip("=") if fields else None)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        meta = obj["metadata"]
        if self.name is not None and meta["name"] != self.name:
            return False
        labels = meta.get("labels") or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def _requirement(match: re.Match[str]) -> Requirement:
    negated = bool(match["absent"]) or match["op"] == "!=" or match["set"] == "notin"
    if match["op"]:
        return Requirement(match["key"], negated, frozenset([match["value"]]))
    if match["set"]:
        return Requirement(match["key"], negated, frozenset(v.strip() for v in match["values"].split(",")))
    return Requirement(match["key"], negated, None)

"""Checks label selectors before they are sent: the API server would refuse a wrong one with each request. Pure."""

import re
from collections.abc import Mapping
from typing import Final

_LIMIT: Final = 4096
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
# possessive quantifiers: in a row of spaces there is one way to match
_EQUALITY = rf"\s*+(?:==?|!=)\s*+{_VALUE}"
_SET = rf"\s++(?:in|notin)\s*+\(\s*+{_VALUE}\s*+(?:,\s*+{_VALUE}\s*+)*+\)"
_ORDER = r"\s*+[<>]\s*+[0-9]{1,19}"
_REQUIREMENT: Final = re.compile(
    rf"\s*+(?:!\s*+{_KEY}|{_KEY}(?:{_EQUALITY}|{_SET}|{_ORDER})?)\s*+(?:,(?=.)|\Z)", re.ASCII | re.DOTALL
)
_MATCH_LABEL: Final = re.compile(rf"{_KEY}={_VALUE}", re.ASCII)


def check_label_selector(text: str) -> str:
    """Returns the selector. Raises ValueError if it is empty or not in the syntax of Kubernetes ("Labels and Selectors")."""
    at = 0
    while at < len(text) <= _LIMIT and (match := _REQUIREMENT.match(text, at)):
        at = match.end()
    if not text or at < len(text):
        raise ValueError(
            f"label selector {text[:200]!r} cannot be read{f' from {text[at : at + 40]!r} on' if at else ''}; expected "
            "requirements such as app=vllm, tier!=test, env in (a,b), gpu or !gpu, separated by commas"
        )
    return text


def match_labels_selector(labels: Mapping[str, str]) -> str:
    """The selector of `matchLabels`. Raises ValueError for what is no label."""
    found = [f"{key}={value}" for key, value in sorted(labels.items())]
    for requirement in found:
        if not _MATCH_LABEL.fullmatch(requirement):
            raise ValueError(f"{requirement[:200]!r} is not a label and its value")
    return ",".join(found)

"""Summarises the errors among the answers of a batch in one line (pure)."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dispatcher.broker.contract.message import Result

MAX_KINDS: Final = 5
"""Kinds of errors that are named; the others are counted."""
MAX_MESSAGE: Final = 120
"""Characters of an error message."""


@dataclass(slots=True)
class _FailureKind:
    """`first`: the custom_id of one of them, so that the user can look it up."""

    name: str
    first: str
    count: int = 0


class FailureSummary:
    """Errors by kind. A kind is a status and an error code, shown with the message of its first error."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int], _FailureKind] = {}

    def add(self, custom_id: str, result: Result) -> None:
        if result.error_code is None and result.status_code < 400:
            return
        key = (result.error_code or "", result.status_code)
        kind = self._kinds.setdefault(key, _FailureKind(_name(result), custom_id))
        kind.count += 1

    @property
    def total(self) -> int:
        return sum(kind.count for kind in self._kinds.values())

    def __str__(self) -> str:
        if not self._kinds:
            return "no errors"
        kinds = sorted(self._kinds.values(), key=lambda kind: -kind.count)
        shown = [f"{kind.count} x {kind.name}, as custom_id {kind.first!r:.80}" for kind in kinds[:MAX_KINDS]]
        if rest := sum(kind.count for kind in kinds[MAX_KINDS:]):
            shown.append(f"{rest} of other kinds")
        return f"{self.total} error{'s' * (self.total > 1)}: {'; '.join(shown)}"


def _name(result: Result) -> str:
    status = _status(result.status_code)
    if result.error_code is None:
        return status
    message = "".join(one if one.isprintable() else " " for one in result.error_message[:MAX_MESSAGE])
    return " ".join(part for part in (result.error_code, status, f"({message})" if message else "") if part)


def _status(code: int) -> str:
    if not code:
        return ""
    try:
        return f"HTTP {code} {HTTPStatus(code).phrase}"
    except ValueError:
        return f"HTTP {code}"

"""Refusals of an API server: Retry-After, and versions that are too large."""

import pytest

from discovery.kubernetes.api.refusal import Status, StatusCause, StatusDetails, parse_refusal


@pytest.mark.parametrize(
    ("code", "said", "headers", "wait"),
    [
        (429, Status(), {"Retry-After": "5"}, 5.0),
        (503, Status(details=StatusDetails(3)), {}, 3.0),
        (503, Status(), {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        (403, Status(), {"Retry-After": "5"}, None),
        (429, Status(), {"Retry-After": "99999"}, 300.0),
        (429, Status(), {"Retry-After": "-1"}, None),
    ],
)
def test_retry_after(code: int, said: Status, headers: dict[str, str], wait: float | None) -> None:
    assert parse_refusal(code, said, headers).retry_after == wait


def test_version_too_large_differs_from_other_504() -> None:
    assert parse_refusal(
        504, Status(details=StatusDetails(causes=(StatusCause("ResourceVersionTooLarge"),)))
    ).version_too_large
    assert not parse_refusal(504, Status(message="gateway timeout")).version_too_large

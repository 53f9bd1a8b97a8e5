"""How an API server says no."""

import pytest

from discovery.kubernetes.refusal import read_refusal
from discovery.kubernetes.wire import Cause, Details, Status


@pytest.mark.parametrize(
    ("code", "said", "headers", "wait"),
    [
        (429, Status(), {"Retry-After": "5"}, 5.0),
        (503, Status(details=Details(3)), {}, 3.0),
        (503, Status(), {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        (403, Status(), {"Retry-After": "5"}, None),
        (429, Status(), {"Retry-After": "99999"}, 300.0),
        (429, Status(), {"Retry-After": "-1"}, None),
    ],
)
def test_retry_after(code: int, said: Status, headers: dict[str, str], wait: float | None) -> None:
    assert read_refusal(code, said, headers).wait == wait


def test_too_large_is_told_from_another_504() -> None:
    assert read_refusal(504, Status(details=Details(causes=(Cause("ResourceVersionTooLarge"),)))).too_large
    assert not read_refusal(504, Status(message="gateway timeout")).too_large

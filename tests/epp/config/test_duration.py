import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.duration import parse_duration, write_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2),
        ("1m30s", 90),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("0", 0),
        ("0s", 0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("7ns", 7e-9),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1s ", "1d", "1s2", "ms5", "1e3s", "2562048h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.text(alphabet="0123456789.hmsunµ", max_size=12))
def test_nothing_but_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration(text) >= 0


@pytest.mark.parametrize(
    ("text", "written"),
    [("500ms", "0.5s"), ("1m30s", "90s"), ("0", "0s"), ("100s", "100s"), ("1ns", "0.000000001s")],
)
def test_durations_for_envoy(text: str, written: str) -> None:
    assert write_duration(parse_duration(text)) == written

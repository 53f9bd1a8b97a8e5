import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.units import parse_duration, parse_go_duration, parse_quantity, parse_size, write_duration


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
    assert parse_go_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1 s", "1s ", "1d", "1s2", "ms5", "1e3s", "2562048h", "٣s", "1s" * 100_000]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write .* as 50ms, 2s or 1m30s") as caught:
        parse_go_duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("15s", 15), ("1h30m", 5400), ("7d", 604_800), ("1.5h", 5400), ("0s", 0), ("0ms", 0)],
)
def test_our_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "5", ".5s", "1.s", "-1s", "1 s", "1us", "9" * 13 + "s", "٣s", "1s" * 100_000]
)
def test_what_is_none_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write .* as 500ms, 15s, 1h30m or 7d") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="0123456789.hmsunµ", max_size=12))
def test_nothing_but_value_error(text: str) -> None:
    for parse in (parse_duration, parse_go_duration):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "written"),
    [("500ms", "0.5s"), ("1m30s", "90s"), ("0", "0s"), ("100s", "100s"), ("1ns", "0.000000001s")],
)
def test_durations_for_envoy(text: str, written: str) -> None:
    assert write_duration(parse_go_duration(text)) == written


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4194304", 4194304),
        ("10Mi", 10 * 2**20),
        ("10MiB", 10 * 2**20),
        ("25MB", 25_000_000),
        ("512k", 512_000),
        ("512Ki", 512 * 1024),
        ("1.5Gi", 3 * 2**29),
        ("1.", 1),
        ("2E", 2 * 10**18),
        ("2e3", 2000),
        ("100b", 100),
        (" 7 ", 7),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_are_read_as_kubernetes_and_the_go_picker_read_them(text: str, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "B", "Mi", "-1", "+1", "1.5", "0.3k3", "10mi", "10K", "1 Mi", "8Ei", "1e99", "1m", "9" * 5000, "٣"],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number") as caught:
        parse_quantity(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("4096", 4096), ("7B", 7), ("512KiB", 524_288), ("10 MiB", 10 * 2**20)]
)
def test_our_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "B", "-1", "1.5MiB", "10Mi", "1k", "9" * 16, "9" * 5000, "٣"])
def test_what_is_no_size_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write bytes") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200

import pytest

from adsum.sizes import parse_quantity, parse_size


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

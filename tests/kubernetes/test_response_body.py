"""LineSplitter: lines from bytes that are cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.kubernetes.reflector.reflector import LineSplitter, LineTooLongError


@given(st.binary(max_size=40), st.lists(st.integers(1, 12)))
def test_lines_cut_anywhere(text: bytes, cuts: list[int]) -> None:
    whole = LineSplitter().feed(text)
    splitter, lines, start = LineSplitter(), [], 0
    for cut in cuts:
        lines += splitter.feed(text[start : start + cut])
        start += cut
    lines += splitter.feed(text[start:])
    assert lines == whole == [x for x in text.split(b"\n")[:-1] if x.strip()]


def test_only_newlines_end_a_line() -> None:
    text = '{"a": "\x85\u2028\r\x0b"}'.encode()
    assert LineSplitter().feed(text + b"\r\n\n \n") == [text + b"\r"]


def test_a_line_has_a_bound() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"0123456789") == []
    with pytest.raises(LineTooLongError):
        splitter.feed(b"a")
    with pytest.raises(LineTooLongError):
        LineSplitter(limit=10).feed(b"01234567890\n")

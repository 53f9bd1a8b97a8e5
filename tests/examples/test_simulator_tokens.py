from hypothesis import given
from hypothesis import strategies as st

from examples.simulator.tokens import block_digests, echo, tokenize


@given(st.text())
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


@given(st.text(), st.integers(1, 200))
def test_an_answer_has_the_length_asked_for_and_reads_back_as_the_same_tokens(text: str, count: int) -> None:
    answer = echo(text, count)
    assert len(answer) == count
    assert tokenize("".join(answer)) == answer


def test_without_a_length_the_text_is_said_once() -> None:
    assert "".join(echo("  how are you ", None)) == "how are you"
    assert "".join(echo("", None)) == "I am here."


def test_digests_are_equal_as_far_as_the_prefixes_are() -> None:
    left = block_digests("m", list("aaaabbbbcccc"), 4)
    right = block_digests("m", list("aaaaXbbbcccc"), 4)
    assert len(left) == len(right) == 3
    assert [a == b for a, b in zip(left, right, strict=True)] == [True, False, False]
    assert block_digests("other", list("aaaa"), 4) != block_digests("m", list("aaaa"), 4)


def test_a_block_that_is_not_full_has_no_digest() -> None:
    assert block_digests("m", list("aaa"), 4) == ()
    assert len(block_digests("m", list("aaaab"), 4)) == 1

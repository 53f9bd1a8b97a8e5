import pytest

from adsum.config.problems import ConfigError
from adsum.config.yaml_document import parse_yaml

TEXT = """\
queues:
- name: batch
  gate:
    type: constant
- name: a.b
  gate: {}
1: one
"""


@pytest.mark.parametrize(
    ("place", "line", "text"),
    [
        ("queues[0].gate.type", 4, "    type: constant"),
        ("queues[1].gate", 6, "  gate: {}"),
        ("queues[1].gate.type", 6, "  gate: {}"),
        ("queues.batch.gate", 3, "  gate:"),
        ("queues.a.b.gate.type", 6, "  gate: {}"),
        ("queues.none.gate", 1, "queues:"),
        ("queues[99999999999].gate", 1, "queues:"),
        ("targets", None, ""),
        ("", None, ""),
    ],
)
def test_the_line_of_a_place(place: str, line: int | None, text: str) -> None:
    document = parse_yaml(TEXT)
    assert (document.line(place), document.text(line)) == (line, text)


def test_a_key_that_appears_twice_is_told_with_its_line() -> None:
    with pytest.raises(ConfigError, match="the key 'a' appears twice in line 3, column 1: 'a: 2'"):
        parse_yaml("a: 1\nb: 1\na: 2\n")


def test_a_secret_is_quoted_neither_in_an_error_nor_later() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml("word: passw0rd: b", secrets=True)
    assert "passw0rd" not in str(caught.value)
    assert "line 1" in str(caught.value)
    assert parse_yaml("word: passw0rd", secrets=True).text(1) == ""


MERGED_TWICE = "a0: &a0 {x: 0, y: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60)
)
MERGES = f"a: &a {{{', '.join(f'k{i}: 1' for i in range(200))}}}\n" + "".join(
    f"b{i}: {{<<: *a}}\n" for i in range(300)
)
ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(MERGES, "more than 50,000 keys and values, with those that merge keys", id="merges"),
        pytest.param("a: [" + "1," * 60_000 + "]", "more than 50,000 keys and values", id="values"),
        pytest.param(ALIASES, "more than 1,000,000 values with those that its aliases repeat", id="aliases"),
        pytest.param("a: &a {b: *a}", "contains itself", id="contains itself"),
        pytest.param("a: &a {<<: *a}", "contains itself", id="merges itself"),
        pytest.param("a: " + "[" * 5_000, "nested too deeply", id="nested"),
        pytest.param(
            "a: 1" + ":59" * 1000,
            "a number of 3001 characters; expected at most 1000 in line 1",
            id="base 60",
        ),
    ],
)
def test_a_small_text_that_would_take_long_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_yaml(text)


def test_what_a_merge_key_copies_is_there() -> None:
    given = parse_yaml("a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: [*b, *a], z: 4}\n").given
    assert given == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 3, "z": 4}}


def test_merges_of_merges_copy_each_key_once() -> None:
    assert parse_yaml(MERGED_TWICE).given["a59"] == {"x": 0, "y": 1}


def test_only_mappings_are_merged() -> None:
    with pytest.raises(
        ConfigError, match="expected a mapping or a list of mappings to merge, not a scalar in line 2"
    ):
        parse_yaml("a: &a 1\nb: {<<: *a}\n")

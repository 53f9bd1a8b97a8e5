"""Configuration files: YAML, its sections, and all that is wrong with one."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import AfterValidator, Field, ValidationInfo

from adsum.config.problems import ConfigError, Problems, did_you_mean, yaml_problem
from adsum.config.sections import ConfigSection, parsed_by, place_of, read_section
from adsum.config.yaml_document import parse_yaml
from adsum.units import parse_duration


def _even(number: int, info: ValidationInfo) -> int:
    if number % 2:
        raise ValueError(f"{info.context or 'this'} wants an even number")
    return number


class Inner(ConfigSection):
    size: Annotated[int, AfterValidator(_even)] = 0


class Outer(ConfigSection):
    name: str
    inner: list[Inner] = Field(default_factory=list)
    one: Inner | None = None


def told(given: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_section(Outer, given, "here", **options)
    return [str(problem) for problem in caught.value.problems]


WRONG = {"inner": [{"size": "9"}, {"sice": 1}, {"size": 3}, 4], "one": {"szie": 1, "zzz": 2}}


def test_all_that_is_wrong_is_told_with_its_place_and_what_was_found() -> None:
    assert told(WRONG) == [
        "here.name: Field required",
        "here.inner[0].size: Input should be a valid integer, found '9'",
        "here.inner[1]: unknown field 'sice'; did you mean 'size'? known: size",
        "here.inner[2].size: this wants an even number",
        "here.inner[3]: expected a mapping, found 4",
        "here.one: unknown field 'szie'; did you mean 'size'? known: size",
        "here.one: unknown field 'zzz'; known: size",
    ]


def test_no_value_is_quoted_where_one_may_be_a_secret() -> None:
    assert told(WRONG, secrets=True, context="somebody") == [
        "here.name: it is missing; this field has no default",
        "here.inner[0].size: expected a valid integer",
        "here.inner[1]: unknown field 'sice'; did you mean 'size'? known: size",
        "here.inner[2].size: somebody wants an even number",
        "here.inner[3]: expected a mapping",
        "here.one: unknown field 'szie'; did you mean 'size'? known: size",
        "here.one: unknown field 'zzz'; known: size",
    ]


def test_long_names_and_values_are_cut() -> None:
    [missing, name, value] = told({"x" * 1_000_000: 1, "inner": "y" * 1_000_000})
    assert "name" in missing
    assert max(len(name), len(value)) < 200


def test_what_is_sound_is_read() -> None:
    assert read_section(Outer, {"name": "a", "one": {"size": 2}}, "") == Outer(name="a", one=Inner(size=2))


def test_places() -> None:
    assert place_of(("a", 0, "b")) == "a[0].b"
    assert place_of(("b",), "a[0]") == "a[0].b"
    assert place_of((1,), "a") == "a[1]"
    assert place_of((), "a") == "a"


def test_a_field_that_may_be_text() -> None:
    class Timed(ConfigSection):
        time: Annotated[float, parsed_by(parse_duration)]

    assert read_section(Timed, {"time": "1m"}, "").time == read_section(Timed, {"time": 60.0}, "").time == 60
    for given, said in (
        ("soon", "time: 'soon' is not a duration"),
        (None, "time: Input should be a valid number"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_section(Timed, {"time": given}, "")


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert did_you_mean("quue", ("queue", "kv")) == "did you mean 'queue'?"
    assert did_you_mean("zzz", ("queue", "kv")) == "there are: kv, queue"
    assert did_you_mean("zzz", ()) == "there are: none"
    assert did_you_mean("q" * 1_000_000, ("queue",)) == "there are: queue"


def test_one_problem_does_not_hide_the_next() -> None:
    problems = Problems()
    assert not problems

    def fail() -> int:
        raise ConfigError("b", "is wrong")

    problems.add("a", "is wrong too")
    assert problems.of(fail) is None
    assert problems.of(lambda: 3) == 3
    problems.add("a", "is wrong too")
    error = problems.error()
    assert str(error) == "2 problems:\n  a: is wrong too\n  b: is wrong"
    assert error.one_line == "a: is wrong too; b: is wrong"


def test_they_stand_in_the_order_of_the_file() -> None:
    problems = Problems()
    problems.add("late", "x")
    problems.add("early", "y")
    error = problems.error({"late.": 7, "early.": 2}.get)
    assert [str(one) for one in error.problems] == ["line 2: early: y", "line 7: late: x"]


def test_a_terminal_shows_the_lines_too() -> None:
    problems = Problems()
    problems.add("late", "x")
    problems.add("early", "y")
    lines = {2: "  early: 1", 7: "late: \x1b[2J" + "x" * 1000}
    error = problems.error({"late.": 7, "early.": 2}.get, lambda line: lines[line or 0]).in_file("f")
    assert error.with_lines.splitlines() == [
        "f: 2 problems:",
        "  line 2: early: y",
        "    2 | early: 1",
        "  line 7: late: x",
        "    7 | " + repr("late: \x1b[2J" + "x" * 70),
    ]
    assert error.one_line == "f: line 2: early: y; line 7: late: x"


@pytest.mark.parametrize(
    ("error", "text", "one_line"),
    [
        (ConfigError("a", "x"), "/f.yaml: a: x", "/f.yaml: a: x"),
        (ConfigError("", "x"), "/f.yaml: x", "/f.yaml: x"),
    ],
)
def test_an_error_names_its_file(error: ConfigError, text: str, one_line: str) -> None:
    told = error.in_file(Path("/f.yaml"))
    assert (str(told), told.one_line, told.problems) == (text, one_line, error.problems)


def problem(text: str) -> Exception:
    with pytest.raises((yaml.YAMLError, ValueError)) as caught:
        yaml.safe_load(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "said", "with_secrets"),
    [
        ("a: *passw0rd", "found undefined alias 'passw0rd' in line 1, column 4", "found undefined alias ... in line 1, column 4"),
        ("a: b: c", "mapping values are not allowed here in line 1, column 5", "mapping values are not allowed here in line 1, column 5"),
        ("a: 2001-99-99", "month must be in 1..12", "it has an invalid character, date or number, or is nested too deeply"),
    ],
)  # fmt: skip
def test_it_is_told_in_one_line_without_the_lines_of_the_file(
    text: str, said: str, with_secrets: str
) -> None:
    error = problem(text)
    assert yaml_problem(error).removesuffix(", not 99") == said  # CPython 3.14 says more
    assert yaml_problem(error, secrets=True) == with_secrets


def test_what_has_no_words_is_told_by_its_name() -> None:
    assert yaml_problem(ValueError()) == "ValueError"


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

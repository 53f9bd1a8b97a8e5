from pathlib import Path

import pytest
import yaml

from adsum.config.problems import ConfigError, Problems, did_you_mean, yaml_problem


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

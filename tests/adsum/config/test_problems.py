from pathlib import Path

import pytest

from adsum.config.problems import ConfigError, Problems, did_you_mean


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

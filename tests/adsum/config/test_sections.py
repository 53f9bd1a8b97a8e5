from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field, ValidationInfo

from adsum.config.problems import ConfigError
from adsum.config.sections import ConfigSection, parsed_by, place_of, read_section
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

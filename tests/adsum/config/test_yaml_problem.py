import pytest
import yaml

from adsum.config.yaml_problem import yaml_problem


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

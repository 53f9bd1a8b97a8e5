import pytest

from runtime.config.problems import ConfigError
from runtime.config.yaml_document import parse_yaml, read_yaml

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
        read_yaml("a: 1\nb: 1\na: 2\n", "a mapping")


def test_a_secret_is_quoted_neither_in_an_error_nor_later() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml("word: passw0rd: b", secrets=True)
    assert "passw0rd" not in str(caught.value)
    assert "line 1" in str(caught.value)
    assert parse_yaml("word: passw0rd", secrets=True).text(1) == ""

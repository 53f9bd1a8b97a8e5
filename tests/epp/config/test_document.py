"""How YAML is read: strictly, and as Go reads it."""

import random

import pytest

from adsum.config.problems import ConfigError
from epp.config.picker_config import PickerConfig, load_config


def load(given: str) -> PickerConfig:
    return load_config(given, rng=random.Random(1))


ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 8)
)
"""A few hundred bytes for millions of values."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[]", "mapping"),
        ("a: [", "line 1"),
        ("plugins: []\nplugins: []", "'plugins' appears twice"),
        ("? [a]\n: b", "a"),
        ("{}", "apiVersion"),
        ("plugins: &a [*a]", "contains itself"),
        ("plugins: &a {b: *a}", "contains itself"),
        pytest.param(ALIASES, "more than 1,000,000 values with those that its aliases repeat", id="aliases"),
        pytest.param("plugins: " + "[" * 1500 + "]" * 1500, "nested too deeply", id="deep"),
        pytest.param("plugins: " + "9" * 5000, "not YAML", id="a long number"),
        ("plugins: 2001-99-99", "not YAML"),
        ("plugins: [{type: a, type: b}]", "'type' appears twice"),
    ],
)
def test_what_is_no_document(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(given)


MERGING = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- &a {type: queue-scorer, name: a}
- &b {<<: *a, name: b}
- {<<: *b, name: c}
schedulingProfiles:
- name: default
  plugins:
  - &weighted {pluginRef: a, weight: 1e1}
  - {<<: *weighted, pluginRef: b, weight: 2.5e-1}
  - {<<: [*weighted], pluginRef: c}
"""


def test_merge_keys_and_exponents_are_read_as_in_go() -> None:
    assert [one.weight for one in load(MERGING).scheduler.profiles["default"].scorers] == [10.0, 0.25, 10.0]


def test_what_only_begins_like_a_number_is_a_text() -> None:
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    assert load(head + "plugins: [{type: queue-scorer, name: 1e1-x}]").scheduler.profiles["default"].scorers
    with pytest.raises(ConfigError, match="valid string, found 10"):
        load(head + "plugins: [{type: queue-scorer, name: 1e1}]")

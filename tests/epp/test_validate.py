"""All that is wrong with a file is told at once, with its place; `python -m epp validate` tells it without a start."""

import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

from adsum.config.problems import ConfigError
from epp.__main__ import main
from epp.config.catalogue import GO_ONLY, PLUGINS
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

GO_TYPES = (Path(__file__).parent / "go_plugin_types.txt").read_text().split()
"""llm-d-router, cmd/epp/runner/runner.go, August 2026."""

WRONG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates:
- flowcontrol
plugins:
- type: quewe-scorer
- type: prefix-cache-scorer
  parameters:
    matchLengthWeight: 2
    matchLength: 1
- type: latency-scorer
- type: max-score-picker
  wieght: 1
- {type: queue-scorer, name: queue}
- 5
schedulingProfile: []
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: quewe-scorer}
  - {pluginRef: queu, weight: 2}
  - {pluginRef: queue, weight: -1}
  - pluginRef: max-score-picker
flowControl:
  maxBytes: 1GiB
  maxRequests: many
dataLayer:
  sources:
  - pluginRef: metrics-data-sauce
    extractors: [{pluginRef: core}]
"""

TOLD = [
    "line 4: featureGates[0]: 'flowcontrol' is not a feature gate; did you mean 'flowControl'?",
    "line 6: plugins[0].type: 'quewe-scorer' is not a plugin type; did you mean 'queue-scorer'?",
    "line 9: plugins[1].parameters.matchLengthWeight: Input should be less than or equal to 1, found 2",
    (
        "line 10: plugins[1].parameters: unknown field 'matchLength'; did you mean 'matchLengthWeight'? "
        "known: prefixMatchInfoProducerName, matchLengthWeight, matchLengthScaleTokens"
    ),
    (
        "line 11: plugins[2].type: 'latency-scorer' is a plugin of the Go picker that adsum does not have; use "
        "least-cost-scorer, which foresees first tokens and needs no predictor; nothing foresees later tokens"
    ),
    "line 13: plugins[3]: unknown field 'wieght'; known: type, name, parameters",
    "line 15: plugins[5]: expected a mapping, found 5",
    (
        "line 16: unknown field 'schedulingProfile'; did you mean 'schedulingProfiles'? known: apiVersion, "
        "kind, featureGates, plugins, schedulingProfiles, dataLayer, flowControl, requestHandler, outlierDetection, slowStart, saturationDetector, parser"
    ),
    "line 21: schedulingProfiles[0].plugins[1].pluginRef: no plugin is named 'queu'; did you mean 'queue'?",
    "line 22: schedulingProfiles[0].plugins[2].weight: Input should be greater than or equal to 0, found -1",
    (
        "line 26: flowControl.maxRequests: 'many' is not a size; write a number with or without a unit, as 4194304, 512k "
        "or 10Mi"
    ),
    "line 29: dataLayer.sources[0].pluginRef: no plugin is named 'metrics-data-sauce'; there are: queue",
    "line 30: dataLayer.sources[0].extractors[0].pluginRef: no plugin is named 'core'; there are: queue",
]


run = partial(run_here, main)


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WARM_PYTHON, "-m", "epp", *arguments], capture_output=True, text=True)


def test_all_problems_of_a_file_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(WRONG, rng=random.Random(1))
    assert [str(problem) for problem in caught.value.problems] == TOLD


def test_a_broken_file_is_told_and_exits_with_1(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(WRONG)
    said = run_program("validate", str(path))
    assert (said.returncode, said.stdout) == (1, "")
    first, *lines = said.stderr.splitlines()
    assert first == f"error: {path}: {len(TOLD)} problems:"
    assert lines[::2] == [f"  {line}" for line in TOLD]
    numbers = [int(line.removeprefix("line ").partition(":")[0]) for line in TOLD]
    assert lines[1::2] == [f"    {number} | {WRONG.splitlines()[number - 1].strip()}" for number in numbers]


def test_the_picker_itself_tells_all_of_them_too(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(WRONG)
    said = run("--endpoint", "127.0.0.1:9", "--config-file", str(path))
    assert said.returncode == 2
    for line in TOLD:
        assert f"  {line}\n" in said.stderr


def test_a_sound_file_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(
        "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
        "plugins:\n- type: decode-filter\n- {type: queue-scorer, name: queue}\n- type: lora-affinity-scorer\n"
        "- {type: weighted-random-picker, parameters: {maxNumOfEndpoints: 2}}\n"
        "- {type: file-discovery, parameters: {path: /etc/endpoints.yaml}}\n"
        "schedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: decode-filter\n"
        "  - {pluginRef: queue, weight: 2.5}\n  - pluginRef: lora-affinity-scorer\n  - pluginRef: weighted-random-picker\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}\nparser: {pluginRef: openai-parser}\n"
    )
    said = run("validate", str(path))
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines() == [
        f"{path} is valid",
        "  filter decode-filter",
        "  scorer queue (queue-scorer), weight 2.5",
        "  scorer lora-affinity-scorer, weight 1",
        "  picker weighted-random-picker, 2 endpoints",
        "  metrics from http, the port of requests, /metrics, unless a worker's metadata name another page",
        "  workers from /etc/endpoints.yaml",
        "  warning: the top-level parser is an older field; use requestHandler.parsers",
    ]


def test_the_default_is_sound(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(DEFAULT_CONFIG)
    assert run("validate", str(tmp_path / "default.yaml")).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (
            ["/nonexistent.yaml"],
            2,
            "error: /nonexistent.yaml: cannot be read: No such file or directory; expected an",
        ),
        ([], 2, "error: the following arguments are required: FILE"),
        (["a", "b"], 2, "error: unrecognized arguments: b"),
    ],
)
def test_without_a_file_it_exits_with_2(arguments: list[str], code: int, complaint: str) -> None:
    said = run("validate", *arguments)
    assert said.returncode == code
    assert said.stderr.startswith(complaint)
    assert said.stderr.count("\n") == 1


GOOD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n"
BAD = GOOD.replace("scorer", "scorre")
GO_VALUES = """\
router:
  epp:
    replicas: 1
    pluginsConfigFile: custom.yaml
    pluginsCustomConfig:
      custom.yaml: |
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: picker}\ndata:\n  picker.yaml: |\n"


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("before", "by", "after", "place", "line"),
    [
        pytest.param(
            GO_VALUES, 8, "", 'router.epp.pluginsCustomConfig["custom.yaml"]', 10, id="values of Go's chart"
        ),
        pytest.param("replicas: 2\nconfig:\n", 2, "port: 1\n", "config", 6, id="values of our chart"),
        pytest.param(CONFIG_MAP, 4, "", 'data["picker.yaml"]', 9, id="ConfigMap"),
        pytest.param(
            "kind: Service\n---\n" + CONFIG_MAP,
            4,
            "---\n",
            'document 2, data["picker.yaml"]',
            11,
            id="documents",
        ),
        pytest.param("---\n", 0, "", "", 5, id="separator alone"),
    ],
)
def test_a_configuration_inside_another_file_is_found(
    tmp_path: Path, before: str, by: int, after: str, place: str, line: int
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(before + indented(GOOD, by) + after)
    said = run("validate", str(path))
    name = f"{path}: {place}" if place else str(path)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"{name} is valid\n")
    path.write_text(before + indented(BAD, by) + after)
    said = run("validate", str(path))
    assert said.returncode == 1
    assert f"{name}: line {line}: plugins[0].type: 'queue-scorre' is not a plugin type" in said.stderr
    assert f"{line} | - type: queue-scorre" in said.stderr


def test_each_configuration_of_a_file_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(f"{GOOD}---\n{BAD}---\n{GOOD}")
    said = run("validate", str(path))
    assert said.returncode == 1
    assert f"{path}: document 1 is valid\n" in said.stdout
    assert f"{path}: document 2: line 9: plugins[0].type" in said.stderr
    assert f"{path}: document 3 is valid\n" in said.stdout


NOTHING = "holds no configuration of a picker; expected an EndpointPickerConfig as the file itself, in a"


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("#" * 2_000_000, ["is larger than 1048576 bytes"]),
        (GO_VALUES.replace("|", '""'), [NOTHING, "router.epp.pluginsCustomConfig"]),
        ("a: 1\n---\nb: 1\n", [NOTHING]),
        ("kind: Service\n", [NOTHING]),
    ],
    ids=["too large", "empty values", "documents", "a Service"],
)
def test_a_file_without_a_configuration_says_where_one_is_expected(
    tmp_path: Path, text: str, complaints: list[str]
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(text)
    said = run("validate", str(path))
    assert said.returncode == 1
    assert all(complaint in said.stderr for complaint in complaints)


@pytest.mark.parametrize("name", GO_TYPES)
def test_no_plugin_of_the_go_picker_is_unknown(name: str) -> None:
    assert (name in PLUGINS) != (name in GO_ONLY), name


def test_all_of_them_are_counted() -> None:
    assert len(GO_TYPES) == 97
    assert GO_ONLY.keys() - {"test-profile-handler"} <= set(GO_TYPES), "that one is part of its tests"


def test_what_needs_a_broken_plugin_is_not_told_again() -> None:
    text = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- {type: quewe-scorer, name: q}\n- {type: 3, name: r}\n"
    profiles = "schedulingProfiles: [{name: p, plugins: [{pluginRef: q}, {pluginRef: r}]}]"
    with pytest.raises(ConfigError) as caught:
        load_config(text + profiles, rng=random.Random(1))
    assert [problem.place for problem in caught.value.problems] == ["plugins[0].type", "plugins[1].type"]


def test_one_problem_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: []\nspec: {}", rng=random.Random(1)
        )
    assert "\n" not in str(caught.value)
    (problem,) = caught.value.problems
    assert (problem.line, str(problem)) == (4, str(caught.value))

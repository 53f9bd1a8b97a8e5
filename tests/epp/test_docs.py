"""The picker's pages show configurations that are sound, and name every plugin, flag and metric as they are."""

import contextlib
import json
import random
import re
from itertools import chain
from pathlib import Path

import pytest

from epp.config import go_flags
from epp.config.catalogue import PLUGINS
from epp.config.document import FlowControl, PriorityBandSection
from epp.config.flags import parse
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.config.settings import Settings
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.ext_proc.protocol import METADATA_NAMESPACE, SUBSET_NAMESPACE, immediate
from epp.health import LIVENESS, READINESS
from epp.plugins.declaration import Role
from epp.request.control_headers import DESTINATION, DROPPED_REASON, FALLBACK, SCORES, SERVED, SUBSET
from epp.request.rejection import Rejection
from epp.scheduling.saturation import SATURATED
from release.derived import DERIVED

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("picker", "picker-plugins", "picker-operation", "model-servers", "affinity")
PAGE = "".join((DOCS / f"{page}.md").read_text() for page in PAGES)
SHOWN = re.findall(
    r"```yaml\n(.*?)```",
    PAGE + (DOCS / "routing.md").read_text() + (DOCS / "flow-control.md").read_text(),
    re.DOTALL,
)
FLOW_CONTROL = {Role.FAIRNESS, Role.ORDERING, Role.USAGE_LIMIT, Role.DETECTOR}
POLICIES = {name for name, kind in PLUGINS.items() if kind.roles & FLOW_CONTROL}
[OLDER] = re.findall(r"^### Flags of older Go pickers\n(.*?)^###", PAGE, re.DOTALL | re.MULTILINE)
"""The one section that names flags which the picker does not have."""


def test_the_default_is_the_one_that_is_shown() -> None:
    assert SHOWN[0] == DEFAULT_CONFIG


@pytest.mark.parametrize("text", SHOWN)
def test_the_configurations_shown_are_sound(text: str) -> None:
    assert not load_config(text, rng=random.Random(1)).warnings


def names_in_rows(page: str) -> set[str]:
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    return set(chain.from_iterable(re.findall(r"`([a-z][a-z0-9-]+)`", row) for row in rows))


def test_every_plugin_is_explained() -> None:
    explained = names_in_rows(PAGE)
    missing = PLUGINS.keys() - explained - POLICIES
    assert not missing, f"put a row of {sorted(missing)} into a table of docs/picker-plugins.md"
    headers = {
        "x-llm-d-inference-objective",
        "x-llm-d-inference-fairness-id",
        "x-llm-d-model-name-rewrite",
        "x-llm-d-slo-ttft-ms",
    }
    assert explained - PLUGINS.keys() == headers


def test_every_flag_that_is_named_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE.replace(OLDER, "")))
    for flag in sorted(named - {"--epp", "--help", "--mode", "--version"}):
        with contextlib.suppress(SystemExit):
            parse([f"{flag}=1"])
        assert "unknown" not in capsys.readouterr().err, flag


@pytest.mark.parametrize("path", DERIVED, ids=lambda path: path.name)
def test_what_follows_from_the_flags_is_written_down(path: Path) -> None:
    assert path.read_text() == DERIVED[path](), "run: python -m release.derived"


def test_flags_of_older_go_pickers_stop_the_start_and_have_a_substitute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| (.*) \|$", OLDER, re.MULTILINE)
    assert {flag for flag, _ in rows} == {f"--{name}" for name in go_flags.OLDER}
    for flag, substitute in rows:
        with pytest.raises(SystemExit):
            parse([f"{flag}=1"])
        error = capsys.readouterr().err
        assert f"{flag} is a flag of older Go pickers" in error
        assert sorted(
            re.findall(r"[a-z]+_port|[a-z]+_path|metrics-data-source|--discovery", error)
        ) == sorted(re.findall(r"[a-z]+_port|[a-z]+_path|metrics-data-source|--discovery", substitute))
        if plugin := re.search("`([a-zA-Z]+)` of", substitute):
            given = {"port": 9400, "path": "/page", "scheme": "https", "insecureSkipVerify": False}[plugin[1]]
            parameters = f"parameters: {{{plugin[1]}: {str(given).lower()}}}"
            config = DEFAULT_CONFIG.replace(
                "plugins:\n", f"plugins:\n- {{type: metrics-data-source, {parameters}}}\n", 1
            )
            assert not load_config(config, rng=random.Random(1)).warnings
    assert parse(["--discovery", "kubernetes://prod?kubeconfig=/path"])[0].discovery is not None


def test_every_flag_without_effect_is_said_to_have_none() -> None:
    (row,) = re.findall(r"^\| (`.*`) \| without effect \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"--([a-z-]+)", row)) == go_flags.IGNORED.keys()


def test_the_section_and_its_policies_are_explained() -> None:
    tables = (DOCS / "flow-control.md").read_text().partition("## What differs")[0]
    explained = set(re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE))
    named = set(re.findall(r"`([A-Za-z-]+)`", " ".join(explained)))
    sections = (FlowControl, PriorityBandSection)
    fields = {field.alias for section in sections for field in section.model_fields.values()} - {"priority"}
    missing = (fields | POLICIES) - named
    assert not missing, f"put a row of {sorted(map(str, missing))} into a table of docs/flow-control.md"
    assert named <= fields | POLICIES, "docs/flow-control.md explains what is not there"


PROTOCOL = (Path(__file__).parents[2] / "docs" / "endpoint-picker-protocol.md").read_text()


def test_the_protocol_s_names_are_those_on_the_wire() -> None:
    names = (
        DESTINATION,
        FALLBACK,
        SERVED,
        SUBSET,
        SCORES,
        METADATA_NAMESPACE,
        SUBSET_NAMESPACE,
        *READINESS[1:],
    )
    assert [name for name in (*names, DROPPED_REASON, LIVENESS) if f"`{name}`" not in PROTOCOL] == []
    [heads] = re.findall(r"^\| \| (.* \(default\) .*) \|$", PROTOCOL, re.MULTILINE)
    assert heads.replace(" (default)", "").split(" | ") == [version.value for version in ProtocolVersion]
    assert f"{ProtocolVersion.V1_0} (default)" in heads
    assert Settings().protocol_version is ProtocolVersion.V1_0


def test_the_refusal_that_is_shown_is_one() -> None:
    [(head, body)] = re.findall(
        r"```text\nHTTP/1.1 429 Too Many Requests\n(.*?)\n\n(.*?)```", PROTOCOL, re.DOTALL
    )
    shown = json.loads(body)
    error = shown["error"]
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    refused = Rejection(
        429,
        error["code"],
        error["message"],
        reason=fields[DROPPED_REASON],
        retry_after=float(fields["retry-after"]),
    )
    answer = immediate(refused).immediate_response
    assert json.loads(answer.body) == shown
    assert {o.header.key: o.header.raw_value.decode() for o in answer.headers.set_headers} == fields
    assert fields[DROPPED_REASON] == SATURATED

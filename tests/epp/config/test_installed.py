"""Plugin types of installed packages: named in a configuration like built-in ones, with errors that are as good."""

import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from adsum.config.problems import ConfigError
from epp.config.catalogue import by_type
from epp.config.installed import PluginType
from epp.config.picker_config import PickerConfig, load_config
from epp.config.validate import validate
from epp.plugins.declaration import PluginContext, Role, without_parameters
from epp.plugins.section import NoParameters
from epp.scheduling.profile import SchedulerProfile
from tests.installed_package import install, see

MODULE = """\
import numpy as np
from pydantic import Field
from epp.extension import PluginDeclaration, Role, Scorer, Section


class ZoneParameters(Section):
    best_zone: str = Field(min_length=1)
    weight_elsewhere: float = Field(default=0.0, ge=0, le=1)


class ZoneScorer:
    published_only = True

    def __init__(self, given):
        self.given = given

    def score(self, request, pool):
        return np.array([1.0 if e.zone == self.given.best_zone else self.given.weight_elsewhere for e in pool.endpoints])


class Halves:
    def filter(self, request, pool):
        return np.arange(len(pool)) % 2 == 0


class Notes:
    def prepare(self, request, pool): ...
    def picked(self, request, endpoint): ...
    def served(self, request, endpoint): ...
    def failed(self, request): ...
    def sized(self, endpoint, tokens): ...
    def forget(self, endpoint): ...
    def retain(self, endpoints): ...


class NoteParameters(Section):
    notes: str = "acme-notes"


class NoteScorer:
    published_only = False

    def __init__(self, notes):
        self.notes = notes

    def score(self, request, pool):
        return {}


class TwoProfiles:
    def check(self, profiles):
        if not {"first", "second"} <= set(profiles):
            raise ValueError("acme-two-profiles needs the profiles first and second")

    def pick(self, request, profiles, results):
        return () if results else ("first", "second")

    def result(self, request, results): ...


class Silent(Scorer):
    def score(self, request, pool):
        return pool.kv_usage


class LastPicker:
    def pick(self, scores, k):
        return np.arange(len(scores))[::-1][:k]


class ByName:
    def rank(self, queued):
        return float(len(queued.request.fairness_id))


class OneFlow:
    shares_places = False

    def selector(self): ...


class Half:
    per_request = False

    def ceilings(self, saturation, priorities):
        return [0.5] * len(priorities)


def quarrelsome(given, context):
    raise ValueError("bestZone 'mars' is not\\n  on this planet")


def broken(given, context):
    return {}["zone"]


ZONE = PluginDeclaration(role=Role.SCORER, parameters=ZoneParameters, build=lambda given, context: ZoneScorer(given))
HALVES = PluginDeclaration(role=Role.FILTER, build=lambda given, context: Halves())
NOTES = PluginDeclaration(role=Role.PRODUCER, build=lambda given, context: Notes())
NOTED = PluginDeclaration(
    role=Role.SCORER,
    parameters=NoteParameters,
    build=lambda given, context: NoteScorer(context.producer(given.notes, Notes)),
    reads_metrics=False,
)
LAST = PluginDeclaration(role=Role.PICKER, build=lambda given, context: LastPicker())
TWO = PluginDeclaration(role=Role.HANDLER, build=lambda given, context: TwoProfiles())
QUARRELSOME = PluginDeclaration(role=Role.SCORER, parameters=ZoneParameters, build=quarrelsome)
BROKEN = PluginDeclaration(role=Role.SCORER, build=broken)
SILENT = PluginDeclaration(role=Role.SCORER, build=lambda given, context: Silent())
SCORELESS = PluginDeclaration(role=Role.SCORER, build=lambda given, context: Halves())
BY_NAME = PluginDeclaration(role=Role.ORDERING, build=lambda given, context: ByName())
ONE_FLOW = PluginDeclaration(role=Role.FAIRNESS, build=lambda given, context: OneFlow())
HALF = PluginDeclaration(role=Role.USAGE_LIMIT, build=lambda given, context: Half())
RANKLESS = PluginDeclaration(role=Role.ORDERING, build=lambda given, context: Half())
DETECTOR = PluginDeclaration(role=Role.DETECTOR, build=lambda given, context: None)
UNCHECKED = PluginDeclaration(role=Role.FILTER, parameters=dict, build=lambda given, context: Halves())
CLASS = ZoneScorer
"""

TYPES = """
acme-zone-scorer=ZONE acme-halves=HALVES acme-notes=NOTES acme-note-scorer=NOTED acme-last-picker=LAST
acme-two-profiles=TWO acme-quarrelsome=QUARRELSOME acme-broken=BROKEN acme-scoreless=SCORELESS
acme-silent=SILENT acme-by-name=BY_NAME acme-one-flow=ONE_FLOW acme-half=HALF acme-rankless=RANKLESS
acme-detector=DETECTOR acme-unchecked=UNCHECKED acme-class=CLASS latency-scorer=NOTED
"""

Load = Callable[[str], PickerConfig]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A configuration of those plugins, where acme is installed."""
    points = {name: f"acme:{value}" for name, value in (one.split("=") for one in TYPES.split())}
    see(monkeypatch, install(tmp_path / "acme", "acme", {"adsum.plugins": points}, module=MODULE))
    return lambda plugins: load_config(_document(plugins), rng=random.Random(1))


def only_profile(config: PickerConfig) -> SchedulerProfile:
    [profile] = config.scheduler.profiles.values()
    return profile


def _document(plugins: str) -> str:
    head = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n"
    return head + textwrap.dedent(plugins)


def test_each_kind_takes_its_place_in_the_profile(load: Load) -> None:
    config = load("""\
        - {type: acme-halves}
        - {type: acme-zone-scorer, parameters: {bestZone: a}}
        - {type: acme-note-scorer, name: noted}
        - {type: acme-last-picker}
        """)
    [profile] = config.scheduler.profiles.values()
    assert [type(one).__name__ for one in profile.filters] == ["Halves"]
    assert [type(one.scorer).__name__ for one in profile.scorers] == ["ZoneScorer", "NoteScorer"]
    assert [type(one).__name__ for one in config.scheduler.producers] == ["Notes"]
    assert type(profile.picker).__name__ == "LastPicker"
    assert config.steps == (
        "filter acme-halves of acme 1.0",
        "scorer acme-zone-scorer of acme 1.0, weight 1",
        "scorer noted (acme-note-scorer) of acme 1.0, weight 1",
        "picker acme-last-picker, 1 endpoint",
    )


def test_stale_numbers_count_where_a_scorer_reads_metrics(load: Load) -> None:
    assert only_profile(load("- {type: acme-note-scorer}")).staleness is None
    assert only_profile(load("- {type: acme-zone-scorer, parameters: {bestZone: a}}")).staleness == 2.0


def test_a_producer_is_one_object_for_all_who_name_it_wherever_it_stands(load: Load) -> None:
    scheduler = load("""\
        - {type: acme-note-scorer, name: one, parameters: {notes: mine}}
        - {type: acme-note-scorer, name: two, parameters: {notes: mine}}
        - {type: acme-note-scorer, name: unlisted}
        - {type: acme-note-scorer, name: unlisted-too}
        - {type: acme-notes, name: mine}
        """).scheduler
    scorers = scheduler.profiles["default"].scorers
    one, two, other, another = (weighted.scorer.notes for weighted in scorers)  # type: ignore[attr-defined]
    assert one is two
    assert other is another is not one
    assert set(scheduler.producers) == {one, other}


POLICIES = """\
- {type: acme-by-name}
- {type: acme-one-flow}
- {type: acme-half, name: half}
featureGates: [flowControl]
flowControl:
  usageLimitPolicyPluginRef: half
  priorityBands: [{priority: 1, orderingPolicyRef: acme-by-name, fairnessPolicyRef: acme-one-flow}]
"""


def test_policies_of_flow_control(load: Load) -> None:
    settings = load(POLICIES).flow_control
    assert settings is not None
    band = settings.bands[1]
    found = [type(one).__name__ for one in (band.ordering, band.fairness, settings.usage_limit)]
    assert found == ["ByName", "OneFlow", "Half"]
    with pytest.raises(ConfigError, match="expected a fairness policy"):
        load(POLICIES.replace("fairnessPolicyRef: acme-one-flow", "fairnessPolicyRef: acme-by-name"))
    with pytest.raises(ConfigError, match="built a Half without rank; expected an ordering policy"):
        load("- {type: acme-rankless}")


def test_a_type_of_the_go_picker_can_be_provided(load: Load) -> None:
    assert only_profile(load("- {type: latency-scorer}")).scorers


PROFILES = "schedulingProfiles: [{name: first, plugins: []}, {name: second, plugins: []}]"


def test_a_profile_handler_runs_the_profiles_of_the_file(load: Load) -> None:
    config = load(f"- {{type: acme-two-profiles}}\n{PROFILES}")
    assert type(config.scheduler.handler).__name__ == "TwoProfiles"
    assert config.steps == (
        "profile handler acme-two-profiles of acme 1.0",
        "profile first: picker max-score-picker, 1 endpoint",
        "profile second: picker max-score-picker, 1 endpoint",
    )


def test_a_profile_handler_says_which_profiles_it_needs(load: Load) -> None:
    with pytest.raises(
        ConfigError, match="schedulingProfiles: acme-two-profiles needs the profiles first and second"
    ):
        load(f"- {{type: acme-two-profiles}}\n{PROFILES.replace('second', 'third')}")


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        (
            "- {type: acme-zone-scorer, parameters: {bestZone: 3}}",
            "line 4: plugins[0].parameters.bestZone: Input should be a valid string, found 3",
        ),
        (
            "- type: acme-zone-scorer\n  parameters:\n    bestZone: a\n    bestZones: a",
            "line 7: plugins[0].parameters: unknown field 'bestZones'; did you mean 'bestZone'? known: bestZone, weightElsewhere",
        ),
        (
            "- {type: queue-scorer}\n- {type: acme-zone-scorre}",
            "line 5: plugins[1].type: 'acme-zone-scorre' is not a plugin type; did you mean 'acme-zone-scorer'?",
        ),
        (
            "- {type: acme-quarrelsome, parameters: {bestZone: mars}}",
            "line 4: plugins[0].parameters: bestZone 'mars' is not on this planet",
        ),
        (
            "- {type: acme-broken}",
            (
                "line 4: plugins[0].type: the plugin type 'acme-broken' of the installed package acme 1.0 cannot be built: "
                "KeyError: 'zone'; mend, update or uninstall that package"
            ),
        ),
        (
            "- {type: acme-silent}",
            (
                "line 4: plugins[0].type: the plugin type 'acme-silent' of the installed package acme 1.0 cannot be used: the scorer Silent has "
                "no published_only; expected True if it reads only what workers publish, else False; mend, update or uninstall "
                "that package"
            ),
        ),
        (
            "- {type: acme-scoreless}",
            (
                "line 4: plugins[0].type: the plugin type 'acme-scoreless' of the installed package acme 1.0 built a Halves "
                "without score, published_only; expected a scorer; mend, update or uninstall that package"
            ),
        ),
        (
            "- {type: acme-note-scorer, parameters: {notes: acme-note}}",
            "line 4: plugins[0].parameters: no plugin is named 'acme-note'; did you mean 'acme-notes'?",
        ),
        (
            "- {type: acme-note-scorer, parameters: {notes: acme-halves}}",
            "line 4: plugins[0].parameters: 'acme-halves' cannot be used here, expected a data producer",
        ),
        (
            "- {type: acme-note-scorer, parameters: {notes: approx-prefix-cache-producer}}",
            "line 4: plugins[0].parameters: 'approx-prefix-cache-producer' is a PrefixCacheProducer, expected a Notes",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(load: Load, plugins: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(plugins)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme-class", "is a type; expected an epp.extension.PluginDeclaration"),
        (
            "acme-unchecked",
            "has the parameters <class 'dict'>; expected a subclass of epp.extension.Section",
        ),
        (
            "acme-detector",
            "expected one of Role.FILTER, Role.SCORER, Role.PICKER, Role.HANDLER, Role.FAIRNESS, Role.ORDERING",
        ),
    ],
)
def test_a_declaration_that_is_none_names_its_package(load: Load, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match="of the installed package acme 1.0") as refused:
        load(f"- {{type: {name}}}")
    assert said in str(refused.value)


def test_what_two_packages_declare_is_told_with_its_line(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"acme-halves": "other:HALVES"}
    see(monkeypatch, install(tmp_path / "other", "other", {"adsum.plugins": points}, module=""))
    with pytest.raises(ConfigError) as refused:
        load("- {type: queue-scorer}\n- {type: acme-halves}")
    assert str(refused.value).startswith(
        "line 5: plugins[1].type: two installed packages declare the plugin type 'acme-halves': acme 1.0 and other 1.0;"
    )


def test_the_others_are_listed_where_no_name_is_near(load: Load) -> None:
    with pytest.raises(
        ConfigError, match=r"there are: acme-broken, acme-by-name, acme-class, .*, active-request-scorer, "
    ):
        load("- {type: xyzzy}")


def test_validate_tells_of_whose_a_plugin_is_and_what_else_there_is(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "picker.yaml").write_text(_document("- {type: acme-halves}\n"))
    assert validate(tmp_path / "picker.yaml") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "  filter acme-halves of acme 1.0"
    assert said[-1].startswith(
        "  plugin types of installed packages: acme-broken (acme 1.0), acme-by-name (acme 1.0), "
    )


def test_validate_refuses_a_package_that_takes_the_name_of_a_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A picker would take its own without a look at what is installed: who wants another one is told here."""
    see(monkeypatch, install(tmp_path, "greedy", {"adsum.plugins": {"queue-scorer": "greedy:QUEUE"}}))
    (tmp_path / "picker.yaml").write_text(_document("- {type: queue-scorer}\n"))
    assert validate(tmp_path / "picker.yaml") == 1
    assert capsys.readouterr().err == (
        "error: the installed package greedy 1.0 declares the plugin type 'queue-scorer', which adsum has itself; rename "
        "its entry point in the group adsum.plugins, or uninstall the package\n"
    )


class Scores:
    def score(self, request: object, pool: object) -> None: ...


@pytest.mark.parametrize(
    ("role", "built", "said"),
    [
        (Role.FILTER, object, "built a object without filter; expected a filter"),
        (Role.SCORER, Scores, "built a Scores without published_only; expected a scorer"),
    ],
)
def test_a_built_in_is_what_its_role_says(role: Role, built: type, said: str) -> None:
    kind = PluginType("new", without_parameters("new", role, built))
    with pytest.raises(ConfigError, match=f"plugins\\[0\\].type: the built-in 'new' {said}"):
        kind.build(NoParameters(), cast("PluginContext", None), "plugins[0]")


def test_one_module_declares_a_type() -> None:
    one, other = (ModuleType(name) for name in ("one", "other"))
    for module in (one, other):
        module.__dict__["DECLARATION"] = without_parameters("new", Role.SCORER, object)
    with pytest.raises(ValueError, match="other declares 'new', which another module declares"):
        by_type([one, other])

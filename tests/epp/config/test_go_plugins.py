"""Parameters of the Go picker's plugins, and its own configurations: they load, or the error says what docs/migration.md says."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from epp.config.picker_config import load_config
from epp.scheduling.affinity.session_affinity import SessionAffinityFilter
from epp.scheduling.affinity.sessions import SessionBindings
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.prefix.scorer import PrefixCacheScorer
from epp.scheduling.scorers.no_hit_lru import NoHitLruScorer
from tests.epp.scheduling.endpoint_pools import config_of


def faults(*plugins: dict[str, Any], **sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_of(*plugins, **sections)
    return [f"{one.place}: {one.detail}" for one in caught.value.problems]


def check_fault(given: dict[str, Any], place: str, detail: str) -> None:
    """The plugin has that one problem."""
    said, *more = faults(given)
    assert not more
    assert said.startswith(f"{place}: ")
    assert detail in said


def plugin(kind: str, /, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


FAULTS = """\
by-label {} | label | required
by-label {label: a} | . | give validValues, or allowsNoLabel
header-label-affinity-scorer {headerName: x} | labelKey | required
header-label-affinity-scorer {headerName: x y, labelKey: k} | headerName | 'x y' is not the name of a header
context-length-aware {label: ''} | label | at least 1
topology-affinity-filter {minAffinity: row} | minAffinity | 'row'
utilization-filter {} | conditions | required
utilization-filter {conditions: []} | conditions | at least 1
utilization-filter {conditions: [{metric: waiting-queue}]} | conditions[0].maxValue | required
utilization-filter {conditions: [{metric: waiting-queue, maxValue: -1}]} | conditions[0].maxValue | found -1
utilization-filter {conditions: [{metric: kv-cache-utilization, maxValue: 80}]} | conditions[0] | expected 0 to 1
utilization-filter {conditions: [{metric: queue, maxValue: 1}]} | conditions[0].metric | 'active-requests', 'running-requests'
endpoint-attribute-scorer {attributeKey: a, algorithm: {type: linear}} | algorithm.type | 'linear_lower_is_better' or 'linear_higher_is_better'
endpoint-attribute-scorer {attributeKey: a, algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {min: 1, max: 1}}}} | algorithm.normalization.fixedRange | min must be less than max
endpoint-attribute-scorer {attributeKey: a, algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {max: 1}, adaptiveRange: {}}}} | algorithm.normalization | either a fixedRange or an adaptiveRange
endpoint-attribute-filter {attribute: a, algorithm: {type: threshold}} | algorithm.threshold | required
session-affinity-scorer {strategy: cookie} | strategy | 'session_id'
session-affinity-scorer {sessionIdConfig: {sources: [{}]}} | sessionIdConfig.sources[0] | either a header or an attribute
session-affinity-scorer {sessionIdConfig: {evictionTtlSeconds: -1}} | sessionIdConfig.evictionTtlSeconds | found -1
session-affinity-filter {encodedEndpointHeaderConfig: {header: ':status'}} | encodedEndpointHeaderConfig.header | ':status' is not the name
session-id-producer {} | . | give one of them
session-id-producer {headerName: a, cookieName: b} | . | give one of them
data-parallel-profile-handler {primaryPort: 70000} | primaryPort | 70000
probabilistic-admitter {k: 0} | k | found 0
k8s-notification-source {kind: Pod} | version | required
endpoint-attribute-scorer {attributeKey: Heat, algorithm: {type: linear_lower_is_better}} | attributeKey | no customMetrics of core-metrics-extractor has the attributeKey 'Heat'; there are: none
endpoint-attribute-filter {attribute: Heat/dcgm-extractor, algorithm: {type: threshold, threshold: {operator: LessThan, value: 1}}} | attribute | write attribute: Heat, producer: dcgm-extractor
endpoint-attribute-filter {attribute: Heat, producer: dcgm-extractor, algorithm: {type: threshold, threshold: {operator: LessThan, value: 1}}} | producer | 'dcgm-extractor' publishes no number of an endpoint
topology-affinity-scorer {topologyProducerName: mine} | topologyProducerName | no plugin is named 'mine'
no-hit-lru-scorer {prefixMatchInfoProducerName: nobody} | prefixMatchInfoProducerName | no plugin is named 'nobody'
session-affinity-scorer {profileName: decode} | profileName | 'decode' is no profile; there are: default
prefix-cache-affinity-filter {affinityThreshold: 1.1} | affinityThreshold | found 1.1
prefix-cache-affinity-filter {explorationProbability: -0.1} | explorationProbability | -0.1
prefix-cache-affinity-filter {maxTTFTPenaltyMs: -1} | maxTTFTPenaltyMs | found -1
prefix-cache-affinity-filter {peakPrefillThroughput: 0} | . | peakPrefillThroughput must be above 0
prefix-cache-affinity-filter {ttftSource: latencyPredictor} | ttftSource | no latency is predicted; use prefillThroughput, with peakPrefillThroughput
prefix-cache-affinity-filter {ttftSource: guess} | ttftSource | 'guess' is no source
inflight-load-producer {outputRatio: -1} | outputRatio | found -1
inflight-load-producer {maxEstimatedOutputTokens: -1} | maxEstimatedOutputTokens | found -1
concurrency-detector {concurrencyMode: both} | concurrencyMode | 'requests', 'tokens' or 'hybrid'
concurrency-detector {maxConcurrency: 0} | maxConcurrency | found 0
concurrency-detector {maxTokenConcurrency: 0} | maxTokenConcurrency | found 0
concurrency-detector {headroom: -0.1} | headroom | found -0.1
concurrency-detector {headroom: 1.0e+308} | headroom | found 1e+308
concurrency-detector {maxConcurrency: HUGE} | maxConcurrency | less than
utilization-detector {queueDepthThreshold: HUGE} | queueDepthThreshold | less than
token-producer {vllm: {url: 'http://v:8000'}} | . | lacks modelName
token-producer {estimate: {}, modelName: m} | . | give only one of estimate, vllm
tokenizer {uri: x} | . | unknown field 'uri'
token-load-scorer {inFlightLoadProducerName: x} | inFlightLoadProducerName | no plugin is named 'x'
token-load-scorer {inFlightLoadProducerName: approx-prefix-cache-producer} | inFlightLoadProducerName | cannot be used here, expected an inflight-load-producer
inflight-load-producer {prefixMatchInfoProducerName: token-producer} | prefixMatchInfoProducerName | 'token-producer' cannot be used here, expected an approx-prefix-cache-producer
"""
"""A type with its parameters, which of them is wrong, and what is said of it."""


@pytest.mark.parametrize("row", FAULTS.splitlines())
def test_what_is_wrong_is_told_with_its_place(row: str) -> None:
    # what no float holds would fail each pick
    given, place, detail = row.replace("HUGE", str(10**400)).split(" | ")
    kind, _, parameters = given.partition(" ")
    check_fault(
        plugin(kind, **yaml.safe_load(parameters)), f"plugins[0].parameters.{place}".rstrip("."), detail
    )


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ({"attribute": "agent-identity"}, "list the plugin agent-identity"),
        ({"attribute": "SessionIDDataKey"}, "lacks its producer"),
        ({"attribute": "SessionIDDataKey", "producer": "p"}, "no plugin is named 'p'"),
        (
            {"attribute": "SessionIDDataKey", "producer": "inflight-load-producer"},
            "is no session-id-producer",
        ),
        ({"attribute": "session"}, "no plugin publishes the attribute 'session'; "),
    ],
)
def test_a_source_of_session_ids_that_nobody_fills_is_told(source: dict[str, str], detail: str) -> None:
    given = plugin("session-affinity-scorer", strategy="session_id", sessionIdConfig={"sources": [source]})
    [said] = faults(given, plugin("inflight-load-producer"))
    assert said.startswith("plugins[0].parameters.sessionIdConfig.sources[0]")
    assert detail in said


def test_a_profile_can_be_named_only_where_it_is_the_only_one() -> None:
    given = plugin("session-affinity-scorer", profileName="a")
    refs = [{"pluginRef": "session-affinity-scorer"}]
    assert config_of(given, schedulingProfiles=[{"name": "a", "plugins": refs}]).response_headers is not None
    profiles = [{"name": "a", "plugins": refs}, {"name": "b"}]
    [said] = faults(given, {"type": "header-profile-handler"}, schedulingProfiles=profiles)
    assert "is not supported beside other profiles" in said


def test_a_plugin_of_two_profiles_is_one() -> None:
    refs = [{"pluginRef": "session-affinity-filter"}]
    given = plugin("session-affinity-filter", strategy="session_id")
    profiles = [{"name": name, "plugins": refs} for name in "ab"]
    config = config_of(given, {"type": "header-profile-handler"}, schedulingProfiles=profiles)
    one, other = (profile.filters[0] for profile in config.scheduler.profiles.values())
    assert one is other
    assert isinstance(one, SessionAffinityFilter)
    assert [type(producer) for producer in config.scheduler.producers] == [SessionBindings]


def test_a_scorer_of_cold_requests_shares_the_producer_of_the_prefix_scorer() -> None:
    config = config_of({"type": "prefix-cache-scorer"}, plugin("no-hit-lru-scorer", lruSize=0))
    prefix, cold = (one.scorer for one in config.scheduler.profiles["default"].scorers)
    assert isinstance(prefix, PrefixCacheScorer)
    assert isinstance(cold, NoHitLruScorer)
    assert prefix.producer is cold.producer
    assert sorted(map(id, config.scheduler.producers)) == sorted([id(cold.producer), id(cold)])
    alone = config_of({"type": "no-hit-lru-scorer"}).scheduler.producers
    assert {type(one) for one in alone} == {PrefixCacheProducer, NoHitLruScorer}


def test_empty_texts_are_the_defaults_as_in_go() -> None:
    config_of(
        plugin("session-affinity-filter", encodedEndpointHeaderConfig={"header": ""}),
        plugin("topology-affinity-filter", minAffinity=""),
        plugin("topology-extractor", hostname=""),
        plugin("header-profile-handler", headerName="", defaultProfile=""),
    )


def test_agents_say_who_they_are_in_headers_of_their_own() -> None:
    assert config_of({"type": "queue-scorer"}).fairness_headers == ()
    known = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
    assert config_of({"type": "agent-identity"}).fairness_headers == known
    own = plugin("agent-identity", additionalSessionHeaders=["X-Mine"])
    assert config_of(own).fairness_headers == ("x-mine", *known)


def test_what_follows_every_request_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    steps = config_of({"type": "probabilistic-admitter", "name": "mine"}, {"type": "queue-scorer"}).steps
    assert steps[0] == "admitter mine (probabilistic-admitter)"


def test_a_suggestion_that_is_not_built_says_so() -> None:
    [said] = faults({"type": "latency-scorrer"})
    assert (
        "did you mean 'latency-scorer'? That is a plugin of the Go picker that adsum does not have; use "
        in said
    )


def test_a_sound_file_with_one_misspelt_key_has_one_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(**{"5": [], "Plugins": [{"type": "queue-scorer"}]})
    assert [problem.detail.partition(";")[0] for problem in caught.value.problems] == [
        "unknown field '5'",
        "unknown field 'Plugins'",
    ]


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("request-attribute-reporter", "leave it out: answers are not parsed"),
        ("test-profile-handler", "use single-profile-handler"),
    ],
)
def test_what_the_go_picker_has_alone_comes_with_advice(given: str, advice: str) -> None:
    [said] = faults(plugin(given))
    assert "adsum does not have" in said
    assert advice in said


def test_a_models_data_source_has_the_go_pickers_parameters() -> None:
    given = {
        "scheme": "https", "path": "/v1/models", "interval": "5m", "insecureSkipVerify": False,
        "caCertPath": "/ca.pem", "clientCertPath": "/client.pem", "clientKeyPath": "/client.key",
    }  # fmt: skip
    models = config_of(plugin("models-data-source", **given)).models
    assert models is not None
    assert models.model_dump(by_alias=True) == given | {"interval": 300.0}
    assert config_of(plugin("queue-scorer")).models is None
    check_fault(
        plugin("models-data-source", interval="1ms"), "plugins[0].parameters.interval", "greater than"
    )


FILES = Path(__file__).parent / "go_files"
PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
TABLE = dict(re.findall(r"^\| `([a-z-]+\.yaml)` \| (.*?) \|$", PAGE, re.MULTILINE))


def missing(path: Path) -> set[str]:
    """What the error says is not built; asserts that it says nothing else."""
    try:
        load_config(path.read_text(), rng=random.Random(1))
    except ConfigError as error:
        found = set()
        for problem in error.problems:
            named = re.match(
                r"'([a-z-]+)' is a plugin of the Go picker that adsum does not have; ", problem.detail
            )
            assert named, str(problem)
            assert problem.line is not None
            found.add(named[1])
        return found
    return set()


def test_the_page_lists_them_all() -> None:
    assert TABLE.keys() == {path.name for path in FILES.iterdir()}
    assert len(TABLE) == 19


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.name)
def test_a_file_loads_or_the_error_names_what_is_not_built(path: Path) -> None:
    told = TABLE[path.name]
    assert missing(path) == set(re.findall("`(.*?)`", told))
    assert (told == "loads") is not bool(missing(path))

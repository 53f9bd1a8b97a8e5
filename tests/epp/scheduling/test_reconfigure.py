"""A director whose scheduler is exchanged: what is in flight ends as it began, and what was learnt stays where it may."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from discovery import Instance, InstanceRemovedEvent
from epp.config.picker_config import PickerConfig, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.endpoints.endpoint_document import EndpointDefaults
from epp.endpoints.load import Load
from epp.request.inference_request import InferenceRequest
from epp.scheduling.affinity.sessions import SessionBindings
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.request_reader import Policy
from epp.scheduling.saturation import ProbabilisticAdmitter
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.scorers.no_hit_lru import NoHitLruScorer
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from tests.epp.scheduling.endpoint_pools import add_worker, director_of

NOW = 100.0
HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n"
PREFIX = "- {type: prefix-cache-scorer}\n"


def store_of(count: int) -> Datastore:
    store = Datastore()
    for _ in range(count):
        add_worker(store)
    return store


def config(text: str, before: PickerConfig | None = None) -> PickerConfig:
    return load_config(HEAD + text, rng=random.Random(1), before=None if before is None else before.plugins)


def producer(of: PickerConfig) -> PrefixCacheProducer:
    [found] = of.scheduler.producers
    assert isinstance(found, PrefixCacheProducer)
    return found


def direct(it: Director, prompt: str) -> Pick:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    pick = it.direct({":path": "/v1/completions"}, body, None, NOW)
    assert isinstance(pick, Pick)
    return pick


def test_what_a_plugin_learnt_stays_if_its_name_type_and_parameters_do() -> None:
    first = config(PREFIX)
    weight = config(PREFIX + "- {type: queue-scorer}\n", first)
    assert producer(weight) is producer(first), "other plugins were added"
    named = config(PREFIX + "- {type: approx-prefix-cache-producer}\n", weight)
    assert producer(named) is producer(first), "the same, written out"
    larger = config(
        PREFIX + "- {type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 9}}\n", named
    )
    assert producer(larger) is not producer(first), "other parameters"
    again = config(
        PREFIX + "- {type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 9}}\n", larger
    )
    assert producer(again) is producer(larger)
    assert producer(config(PREFIX, again)) is not producer(first), (
        "what a configuration left out is forgotten"
    )


def test_what_is_built_of_several_plugins_stays_while_they_do() -> None:
    def work_ahead(of: PickerConfig) -> WorkAheadProducer:
        [found] = [one for one in of.scheduler.producers if isinstance(one, WorkAheadProducer)]
        return found

    least_cost = "- {type: least-cost-scorer}\n"
    first = config(least_cost)
    second = config(least_cost + "- {type: queue-scorer}\n", first)
    assert work_ahead(second) is work_ahead(first)
    third = config(
        least_cost + "- {type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 9}}\n", second
    )
    assert work_ahead(third) is not work_ahead(first), "its prefixes are others"


@pytest.mark.parametrize(
    ("plugins", "kind"),
    [
        ("- {type: no-hit-lru-scorer}\n", NoHitLruScorer),
        ("- {type: session-affinity-scorer, parameters: {strategy: session_id}}\n", SessionBindings),
        ("- {type: session-affinity-filter, parameters: {strategy: session_id}}\n", SessionBindings),
        ("- {type: least-cost-scorer}\n", WorkAheadProducer),
        ("- {type: prefix-cache-scorer}\n", PrefixCacheProducer),
        ("- {type: probabilistic-admitter}\n- {type: queue-scorer}\n", ProbabilisticAdmitter),
    ],
)
def test_whatever_learns_from_requests_stays(plugins: str, kind: type) -> None:
    def learning(of: PickerConfig) -> object:
        [found] = [one for one in of.scheduler.producers if type(one) is kind]
        return found

    first = config(plugins)
    second = config(plugins + "- {type: running-requests-size-scorer}\n", first)
    third = config("- {type: kv-cache-utilization-scorer}\n" + plugins, second)
    assert learning(second) is learning(first)
    assert learning(third) is learning(first)


CUSTOM = """\
- type: core-metrics-extractor
  parameters:
    defaultEngine: vllm
    engineConfigs:
    - {name: vllm, customMetrics: [{attributeKey: temperature, metricSpec: "SPEC"}]}
- {type: endpoint-attribute-scorer, parameters: {attributeKey: temperature, algorithm: {type: linear_lower_is_better}}}
"""


def test_sessions_stay_where_a_profile_is_added() -> None:
    plugins = (
        "- {type: session-affinity-scorer, parameters: {strategy: session_id}}\n"
        "- {type: header-profile-handler}\n"
        "schedulingProfiles:\n- {name: default, plugins: [{pluginRef: session-affinity-scorer}]}\n"
    )
    first = config(plugins)
    second = config(f"{plugins}- {{name: other, plugins: [{{pluginRef: session-affinity-scorer}}]}}\n", first)
    kept, sessions = (
        [one for one in it.scheduler.producers if isinstance(one, SessionBindings)] for it in (first, second)
    )
    assert len(kept) == 1
    assert kept[0] is sessions[0]


def test_the_columns_of_custom_metrics_stay() -> None:
    first = config(CUSTOM.replace("SPEC", "gpu:temperature"))
    second = config(CUSTOM.replace("SPEC", "gpu:degrees"), first)
    assert [one is other for one, other in zip(first.attributes, second.attributes, strict=True)] == [True]
    other = config(CUSTOM.replace("SPEC", "gpu:degrees").replace("temperature", "heat"), second)
    assert other.attributes[0] is not first.attributes[0]


def test_a_prompt_goes_where_it_is_cached_also_after_a_change() -> None:
    store = store_of(8)
    first = config(PREFIX)
    it = director_of(first, store)
    prompt = "a long prompt " * 1000
    pick = direct(it, prompt)
    it.picks.responded(pick, 200, NOW)
    it.picks.release(pick, NOW)
    for weights in range(5):
        changed = config(PREFIX + f"- {{type: queue-scorer, name: queue-{weights}}}\n", first)
        it.reconfigure(changed.scheduler, changed.detector, Policy())
        again = direct(it, prompt)
        assert again.endpoints == pick.endpoints
        it.picks.release(again, NOW)
        first = changed


@dataclass(eq=False)
class Notes:
    """A data producer that writes down what it is told."""

    told: list[str] = field(default_factory=list)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self.told.append("prepare")

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        self.told.append("picked")

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        self.told.append("served")

    def failed(self, request: InferenceRequest) -> None:
        self.told.append("failed")

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        self.told.append("sized")

    def forget(self, endpoint: Endpoint) -> None:
        self.told.append("forget")

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        self.told.append("retain")


def scheduler_with(notes: Notes) -> Scheduler:
    profile = SchedulerProfile(picker=MaxScorePicker(random.Random(3)), producers=(notes,))
    return Scheduler({"default": profile}, SingleProfileHandler())


def test_a_pick_ends_with_the_producers_that_it_was_made_with() -> None:
    store, old, new = store_of(2), Notes(), Notes()
    detector = config(PREFIX).detector
    it = Director(store, scheduler_with(old), detector, Policy(), random.Random(2))
    served, failed = direct(it, "one"), direct(it, "two")
    it.reconfigure(scheduler_with(new), detector, Policy())
    assert store.pool(NOW).inflight.sum() == 2, "what is in flight stays counted"
    it.picks.responded(served, 200, NOW)
    it.picks.release(served, NOW)
    it.picks.release(failed, NOW)
    assert old.told == ["prepare", "picked"] * 2 + ["served", "failed"]
    assert new.told == []
    it.picks.release(direct(it, "three"), NOW)
    assert new.told == ["prepare", "picked", "failed"]
    assert store.pool(NOW).inflight.sum() == 0


def test_a_producer_that_is_no_longer_used_follows_the_endpoints_no_longer() -> None:
    store, old, new = store_of(2), Notes(), Notes()
    detector = config(PREFIX).detector
    it = Director(store, scheduler_with(old), detector, Policy(), random.Random(2))
    for scheduler in (scheduler_with(new), scheduler_with(new), scheduler_with(old), scheduler_with(new)):
        it.reconfigure(scheduler, detector, Policy())
    gone = Instance("w0", "ns", "c", "10.0.0.1", 8000, "a")
    store.set_cache_tokens(store.endpoints[0], 1000)
    store.apply(InstanceRemovedEvent(gone, "deleted"))
    assert old.told == []
    assert new.told == ["sized", "forget", "retain"], "once, however often the configuration changed"


def test_the_policy_changes_too() -> None:
    store = store_of(1)
    first = config(PREFIX)
    it = director_of(first, store)
    it.reconfigure(first.scheduler, first.detector, Policy(passthrough=True))
    pick = it.direct({":path": "/v1/completions"}, b"no JSON", None, NOW)
    assert isinstance(pick, Pick)


def test_endpoints_are_made_anew_with_other_defaults_and_keep_their_numbers() -> None:
    store = store_of(2)
    store.observe(store.endpoints[1], Load(waiting=7, running=1, kv_usage=0.5), NOW)
    store.reserve(store.endpoints[1])
    store.set_cache_tokens(store.endpoints[1], 1000)
    changes: list[None] = []
    store.on_change.append(lambda: changes.append(None))
    store.reread(EndpointDefaults())
    assert changes == [], "nothing changed"
    state = store.pool(NOW).state
    store.reread(replace(EndpointDefaults(), metrics_port=9400, metrics_path="/page"))
    assert [(one.metrics_port, one.metrics_path) for one in store.endpoints] == [(9400, "/page")] * 2
    pool = store.pool(NOW)
    assert (pool.waiting.tolist(), pool.inflight.tolist()) == ([0, 7], [0, 1])
    assert store.cache_tokens(store.endpoints[1]) == 1000
    assert changes == [None]
    assert pool.state is not state, "nothing that was computed for the old ones is used"

"""How much is noted of a pick changes no pick, and metrics and spans are read from what is noted."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from epp.config.picker_config import load_config
from epp.decisions.query import DecisionQuery, DecisionReader
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.decisions.spans import PickSpans
from epp.request.control_headers import RECORD
from epp.request.rejection import Rejection
from epp.scheduling.decision import Decision
from epp.scheduling.pick import Pick
from epp.telemetry.picker_metrics import PluginDurations
from tests.epp.decisions.test_decisions import CONFIGURATIONS, FILTERED, NOW, Picker, store_of
from tests.epp.scheduling.endpoint_pools import director_of
from tests.epp.scheduling.test_director import load
from tests.noted_spans import Noted

CONFIG = """
kind: EndpointPickerConfig
apiVersion: llm-d.ai/v1alpha1
plugins:
- {type: decode-filter, name: decoders}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer, name: prefixes}
- {type: in-flight-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: decoders}
  - {pluginRef: prefixes}
  - {pluginRef: in-flight-scorer}
"""
ALL = {
    ("Filter", "decode-filter", "decoders"),
    ("Scorer", "kv-cache-utilization-scorer", "kv-cache-utilization-scorer"),
    ("Scorer", "prefix-cache-scorer", "prefixes"),
    ("Scorer", "in-flight-scorer", "in-flight-scorer"),
    ("Picker", "max-score-picker", "max-score-picker"),
    ("DataProducer", "approx-prefix-cache-producer", "approx-prefix-cache-producer"),
}
STEPS = ["run_scheduler_profile", "filter_endpoints", "llm_d.epp.scoring", "pick_endpoints"]


class Recorded:
    """A director of three workers whose picks are recorded; its clock ticks each time it is asked."""

    def __init__(self, config: str | None, whole_a_second: int) -> None:
        built = load_config(config, rng=random.Random(1))
        ticks = itertools.count()
        clock: Callable[[], float] = lambda: float(next(ticks))
        self.scheduler = built.scheduler
        self.durations = PluginDurations()
        self.durations.expect(self.scheduler)
        self.store = store_of(3)
        self.director = director_of(built, self.store)
        self.ring = DecisionRing(1000)
        readers = (self.durations.read, PickSpans(clock, lambda: 0).read)
        self.director.decisions = PickRecorder(self.ring, readers, clock, whole_a_second)

    def ask(self, prompt: str = "hello", span: Noted | None = None, now: float = NOW, **headers: str) -> Pick:
        body = b'{"model": "m", "prompt": "%s"}' % prompt.encode()
        sent = {":path": "/v1/completions"} | {name.replace("_", "-"): text for name, text in headers.items()}
        pick = self.director.direct(sent, body, None, now, span)
        assert isinstance(pick, Pick)
        return pick

    def decisions(self) -> list[dict[str, Any]]:
        reader = DecisionReader(self.ring, lambda: NOW, lambda: 1.7e9)
        return list(reader.read(DecisionQuery(limit=1000, candidates=3)))

    def counts(self) -> dict[tuple[str, ...], float]:
        [family, _] = self.durations.collect()
        return {
            tuple(sample.labels.values()): sample.value
            for sample in family.samples
            if sample.name.endswith("_count")
        }


@pytest.mark.parametrize("config", [CONFIG, *CONFIGURATIONS])
@pytest.mark.parametrize(
    ("whole_a_second", "traced"), [(3, False), (10**9, False), (0, True)], ids=["some", "all", "traced"]
)
def test_how_much_is_noted_changes_no_pick(config: str | None, whole_a_second: int, traced: bool) -> None:
    """Between equal scores the pick is random."""
    picked = []
    for recorded in (Recorded(config, 0), Recorded(config, whole_a_second)):
        numbers = random.Random(3)
        found = []
        for number in range(200):
            if number % 20 == 0:
                for row in range(3):
                    load(
                        recorded.store, row, waiting=numbers.randrange(4), kv_usage=numbers.random(), now=NOW
                    )
            span = Noted([], "parent") if traced and picked else None
            pick = recorded.ask(f"{number % 7} " * 200, span, NOW + number * 0.1)
            assert pick.scores is None
            found.append(pick.endpoints[0].id)
            if numbers.random() < 0.7:
                recorded.director.picks.release(pick, NOW)
        picked.append(found)
    assert picked[0] == picked[1]


def test_the_first_picks_of_a_second_are_noted_whole_and_measured() -> None:
    recorded = Recorded(CONFIG, 2)
    assert recorded.counts() == dict.fromkeys(ALL, 0)
    for now in (NOW, NOW + 0.1, NOW + 0.2, NOW + 0.9, NOW + 1.0):
        recorded.ask(now=now)
    shown = recorded.decisions()
    assert [one["whole"] for one in shown] == [True, True, False, False, True]
    assert [len(one["profiles"]) for one in shown] == [1, 1, 0, 0, 1]
    counted = recorded.counts()
    assert counted.pop(("Scorer", *["kv-cache-utilization-scorer"] * 2)) == 1, (
        "what reads only published numbers runs once for each state"
    )
    assert set(counted.values()) == {3}
    [family, _] = recorded.durations.collect()
    sums = {tuple(one.labels.values()): one.value for one in family.samples if one.name.endswith("_sum")}
    assert sums["Filter", "decode-filter", "decoders"] == 3.0, "a tick each"


def test_what_is_noted_in_short_still_says_where_the_request_went_and_what_became_of_it() -> None:
    picker = Picker(store_of(3), whole_a_second=0)
    pick = picker.ask("hello " * 100, x_request_id="r1")
    assert isinstance(pick, Pick)
    picker.director.picks.responded(pick, 200, NOW + 0.5)
    last = picker.last
    assert (last["whole"], last["profiles"], last["left_out"]) == (False, [], [])
    assert (last["choice"]["id"], last["endpoints"]) == (pick.endpoints[0].id, 3)
    assert (last["request"]["id"], last["request"]["prompt_tokens"]) == ("r1", pick.request.prompt_tokens)
    assert (last["profile"], last["outcome"]["time_to_headers"]) == ("default", 0.5)
    assert len(picker.decisions(slow=0.4)) == 1
    assert not picker.decisions(slow=0.6)


def test_every_refusal_says_who_was_left_out_and_by_what() -> None:
    red = {"labels": {"colour": "red"}}
    picker = Picker(store_of(2, w0=red, w1=red), FILTERED, whole_a_second=0)
    assert isinstance(picker.ask(), Rejection)
    [profile] = picker.last["profiles"]
    assert profile["verdicts"] == [{"by": "blue-only", "given": 2, "kept": 0}]
    elsewhere = Picker(store_of(2, w0={"model": {"name": "m"}}), whole_a_second=0)
    elsewhere.store.set_lost(elsewhere.store.endpoints[0], lost=True)
    assert isinstance(elsewhere.ask(model="other"), Pick)
    elsewhere.director.picks.producers = [_Failing()]  # type: ignore[list-item]
    with pytest.raises(OSError, match="no room"):
        elsewhere.ask()
    assert elsewhere.last["refusal"]["code"] == "OSError"


def test_who_was_left_out_is_found_again_within_bounds_and_measures_nothing() -> None:
    recorded = Recorded(FILTERED, 0)
    for _ in range(60):
        with pytest.raises(Rejection):
            recorded.ask()
    assert sum(bool(one["profiles"]) for one in recorded.decisions()) == 50, "of each second"
    assert not any(recorded.counts().values())


def test_a_pick_that_is_over_keeps_no_plugin_alive() -> None:
    recorded = Recorded(CONFIG, 0)
    pick = recorded.ask()
    assert pick.producers
    recorded.director.picks.release(pick, NOW)
    pick.over("end", NOW)
    assert (*pick.producers, *pick.request.counts) == ()


class _Failing:
    def picked(self, request: Any, endpoints: Any) -> None:
        raise OSError("no room")

    def failed(self, request: Any) -> None: ...


def test_a_client_or_an_operator_asks_for_a_whole_record_and_not_without_bound() -> None:
    recorded = Recorded(CONFIG, 0)
    recorded.ask(x_request_id="a")
    recorded.ask(**{RECORD: "true"})
    list(DecisionReader(recorded.ring, lambda: NOW, lambda: 0.0).read(DecisionQuery(request_id="a")))
    recorded.ask(x_request_id="a")
    recorded.ask(x_request_id="b")
    assert [one["whole"] for one in recorded.decisions()] == [False, True, True, False]
    for _ in range(100):
        recorded.ask(**{RECORD: "true"})
    assert sum(one["whole"] for one in recorded.decisions()) == 50, "of each second"
    for number in range(100):
        recorded.ring.ask_for(str(number))
    assert list(recorded.ring.asked_for) == [str(number) for number in range(84, 100)]


def test_without_a_ring_only_what_is_measured_is_noted() -> None:
    recorder = PickRecorder(None, (), lambda: 0.0, 1)
    first, second = recorder.begin({}, NOW, None), recorder.begin({RECORD: "true"}, NOW, None)
    assert isinstance(first, Decision)
    assert first.whole
    assert second is None


def test_each_step_is_a_span_that_ends() -> None:
    recorded = Recorded(CONFIG, 0)
    load(recorded.store, 1, waiting=0, kv_usage=0.5, now=NOW)
    recorded.ask("hello", Noted([], "parent"))
    spans: list[Noted] = []
    pick = recorded.ask("hello", Noted(spans, "parent"))
    names = [span.name for span in spans]
    assert [name for name in names if name in STEPS] == STEPS
    assert [name for name in names if name not in STEPS] == [
        "llm_d.epp.scorer.kv-cache-utilization-scorer",
        "llm_d.epp.scorer.prefix-cache-scorer",
        "llm_d.epp.scorer.in-flight-scorer",
    ]
    assert [span.ends for span in spans] == [1] * len(spans)
    picking = spans[-1].attributes
    best = max(recorded.decisions()[-1]["profiles"][0]["candidates"], key=lambda one: one["total"])
    assert picking["llm_d.epp.picker.top_scores"][0] == pytest.approx(best["total"], abs=1e-5)  # type: ignore[index]
    assert picking["llm_d.epp.picker.top_endpoints"][0] == pick.endpoints[0].destination  # type: ignore[index]


@pytest.mark.parametrize("make", [lambda: KeyError("a plugin"), lambda: Rejection(429, "busy", "busy")])
def test_spans_end_where_a_plugin_raises(make: Callable[[], Exception]) -> None:
    recorded = Recorded(CONFIG, 0)
    [profile] = recorded.scheduler.profiles.values()

    class Faulty:
        published_only = False

        def score(self, request: Any, pool: Any) -> Any:
            raise make()

    object.__setattr__(profile._request_scorers[0], "scorer", Faulty())
    spans: list[Noted] = []
    for _ in range(2):
        with pytest.raises((KeyError, Rejection)):
            recorded.ask("hello", Noted(spans, "parent"))
    assert all(span.ends == 1 for span in spans)
    assert [span.name for span in spans].count("run_scheduler_profile") == 2


def test_a_pick_among_stale_endpoints_has_no_span_of_scores() -> None:
    recorded = Recorded(CONFIG, 0)
    spans: list[Noted] = []
    recorded.ask("hello", Noted(spans, "parent"), NOW + 60.0)
    assert [span.name for span in spans] == [name for name in STEPS if name != "llm_d.epp.scoring"]
    assert spans[-1].attributes["llm_d.epp.picker.top_scores"] == [1.0] * 3

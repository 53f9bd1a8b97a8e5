"""docs/metrics.md lists every family with its labels, and says of each one of the Go picker whether it is here, and if not why."""

import fnmatch
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import Metric

from discovery.watch import WatchHealth, WatchState
from discovery.watch_metrics import WatchMetrics
from epp.config.live_config import LiveConfig
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, Endpoint, EndpointPool
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.ext_proc.request_report import RequestReport
from epp.ext_proc.response_body import ResponseHead
from epp.flow_control.controller import FlowController
from epp.flow_control.eviction import InFlightEviction
from epp.flow_control.program_aware import ProgramAware, ProgramAwareParameters, program_metrics
from epp.outlier_watch import OutlierWatch
from epp.outliers.settings import OutlierSettings
from epp.peers.peer_metrics import PeerMetrics
from epp.plugins.labels import REQUEST_LABELS
from epp.request.rejection import Rejection
from epp.scheduling.disaggregation.decisions import disagg_metrics
from epp.scheduling.disaggregation.handler import DisaggProfileHandler, StagePlan
from epp.scheduling.disaggregation.rollout import (
    DISAGGREGATEDSET_ROLLOUT_SCREENER,
    RevisionShares,
    RolloutParameters,
    RolloutScreener,
)
from epp.scheduling.in_flight_load.plugins import in_flight_metrics
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.kv_events.declaration import kv_event_metrics
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.kv_events.settings import KvEventSettings
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.prefix.declarations import prefix_metrics
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.waiting import Dequeued, WaitingRequests
from epp.scheduling.work_ahead.cost_model import WorkerPace
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from epp.scheduling.work_ahead.slo_admitter import LATENCY_SLO_ADMITTER, LatencySloAdmitter
from epp.scraping.scraper import ScrapeErrors
from epp.telemetry.counters import Telemetry
from epp.telemetry.flow_control_metrics import BandGauges, RevocationMetrics
from epp.telemetry.picker_metrics import (
    BuildInfo,
    ConfigGauges,
    OutcomeMetrics,
    PluginDurations,
    PredictionMetrics,
    RewriteDecisions,
    StreamCounts,
)
from epp.telemetry.pool_metrics import DiscoveryMetrics, OutlierMetrics, PoolGauges, ScrapeErrorCounts
from tests.epp.conftest import FakeDirector
from tests.epp.flow_control.flow_settings import flow_settings
from tests.epp.peers.pickers import connections_with_one
from tests.epp.scheduling.test_models_endpoint import director, store_of

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
[ABSENT] = re.findall(r"^## The Go picker's metrics that are not here\n(.*)", PAGE, re.DOTALL | re.MULTILINE)
GO = dict(
    line.split(": ", 1)
    for line in (Path(__file__).parent / "go_metric_families.txt").read_text().splitlines()
    if not line.startswith("#")
)
"""Its families: "present" and the bounds of its buckets, or why not."""
EVENTS = b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}}\n\n'


class Nobody:
    """A `RequestScheduler` that is not asked."""

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        raise NotImplementedError

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        raise NotImplementedError

    def ended_waiting(self, context: SchedulingContext, why: Exception | None, now: float) -> None:
        """Nobody takes notes."""


def everything(picking: Any) -> Iterator[Metric]:
    """What a picker shows that has done all that it can."""
    telemetry = Telemetry()
    pick = picking("10.0.0.1:8000")
    pick.request.body_size = 100
    telemetry.flow_control.enabled = True
    telemetry.flow_control.turns.observe(0.001)
    waiting = WaitingRequests(Nobody(), Datastore(), lambda waiting, now: None).begin(
        SchedulingContext(pick.request), 1
    )
    telemetry.queued(pick.request, 1)
    telemetry.enqueued(waiting.request, 0.001)
    telemetry.dequeued(pick.request, Dequeued.DISPATCHED, 0.5, 1.5)
    telemetry.picked(pick, 1.5)
    reader = telemetry.read_answer(pick, ResponseHead(200, {"content-type": "text/event-stream"}), 1, 2)
    assert reader is not None
    reader.read(EVENTS, 2.0)
    reader.read(b"data: [DONE]\n\n", 2.5)
    reader.end(3.0)
    telemetry.released(pick, 1, 3)
    telemetry.rejected(Rejection(503, "c", "m"), 3)
    yield from telemetry.collect()
    yield from PoolGauges("pool", pool, lambda: {"effective": 1.0}, 2.0).collect()
    limits = flow_settings(max_requests=10, max_bytes=1000)
    controller = FlowController(limits, UtilizationDetector(), lambda now: pool())
    yield from BandGauges("pool", lambda: controller, pool, lambda: "utilization-detector").collect()
    eviction = InFlightEviction(UtilizationDetector())
    eviction.revocations.issue(5)
    yield from RevocationMetrics("pool", lambda: eviction, lambda: 1.0).collect()
    types = "disagg-profile-handler", "pd-profile-handler"
    handlers = [DisaggProfileHandler(StagePlan(), PrefixCacheProducer(), one, "name") for one in types]
    for handler in handlers:
        handler.counts.decisions["m", "decode-only"] += 1
        handler.counts.fallbacks["prefill", "no_worker"] += 1
    yield from disagg_metrics(handlers)
    gating = {"mode": "sum", "requireRoles": {"values": ["decode"]}}
    given = {"scope": {"labelSelector": "a"}, "revisionGating": gating}
    screener = RolloutScreener(RolloutParameters.model_validate(given), "name", random.Random(1))
    screener.distribution = RevisionShares("sum", ["decode"], {"v1": {"decode": 1}})
    screener.no_match["revision"] += 1
    yield from DISAGGREGATEDSET_ROLLOUT_SCREENER.metrics([screener])
    programs = ProgramAware(ProgramAwareParameters(), lambda: 1.0)
    programs.picked(pick.request, pick.endpoints)
    yield from program_metrics([programs])
    yield from prefix_metrics([PrefixCacheProducer()])
    admitter = LatencySloAdmitter(WorkAheadProducer(PrefixCacheProducer()))
    yield from LATENCY_SLO_ADMITTER.metrics([admitter])
    precise = PrecisePrefixCacheProducer(KvEventSettings(), PrefixCacheProducer())
    precise.open_stream(("a", "1"), can_replay=True)
    yield from kv_event_metrics([precise])
    load = InFlightLoadProducer()
    load.picked(pick.request, pick.endpoints)
    yield from in_flight_metrics([load])
    yield from PeerMetrics(connections_with_one()).collect()
    yield from OutlierMetrics("pool", watch_of_an_ejection()).collect()
    decisions = RewriteDecisions()
    decisions.count("rule", "a", "b")
    yield from decisions.collect()
    streams = StreamCounts(lambda: 1)
    streams.ended("OK", 1.0)
    yield from streams.collect()
    outcomes = OutcomeLedger("name")
    outcomes.expect(RequestReport(FakeDirector(), None), picking("10.0.0.1:1"), 0.0, 0.0)
    yield from OutcomeMetrics(outcomes).collect()
    yield from ScrapeErrorCounts(ScrapeErrors()).collect()
    workers = WatchMetrics("n/c", dict)
    health = WatchHealth(WatchState.SYNCED, 0.0)
    yield from DiscoveryMetrics(lambda: workers.families({}, health)).collect()
    yield from BuildInfo().collect()
    yield from ConfigGauges(LiveConfig(Path("picker.yaml"), "")).collect()
    learns = WorkAheadProducer(PrefixCacheProducer())
    learns.model.observe(WorkerPace(), (1.0, 0.0, 0.0, 0.0, 0.0), 1.0, 1.0)
    yield from PredictionMetrics(lambda: learns).collect()
    durations = PluginDurations()
    durations.expect(load_config(None, rng=random.Random(1)).scheduler)
    yield from durations.collect()


def watch_of_an_ejection() -> OutlierWatch:
    """One endpoint of two is ejected."""
    store = store_of(a=(), b=())
    it = director(store)
    watch = OutlierWatch(it, store, lambda: 0.0, random.Random(1))
    watch.use(OutlierSettings.model_construct(consecutive_5xx=1), None)
    assert watch.detection is not None
    watch.detection.answered("request", store.endpoints[0], 500, None, 0.0)
    return watch


def pool() -> EndpointPool:
    endpoint = Endpoint(id="e", incarnation="1", address="10.0.0.1", port=1, metrics_port=1)
    numbers = np.array(NO_NUMBERS)
    numbers[Column.SCRAPED_AT] = 100.0
    return EndpointPool([endpoint], numbers, [NO_ADAPTERS], 100.0)


def shown(picking: Any) -> dict[str, tuple[str, frozenset[str]]]:
    """The type and the labels of each family on the page."""
    found = {}
    for family in everything(picking):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert name not in found, f"{name} is there twice"
        assert family.samples, f"{name} has no sample"
        found[name] = (family.type, frozenset(labels))
    return found


def labels_of(cell: str) -> frozenset[str]:
    named = {*REQUEST_LABELS} if "those of requests" in cell else set()
    return frozenset(named | set(re.findall(r"`(\w+)`", cell)))


def listed() -> dict[str, tuple[str, frozenset[str]]]:
    """The same as the docs say it."""
    found = {}
    for row in re.findall(r"^\| (`(?:llm_d_epp|adsum)_.*) \|$", PAGE.replace(ABSENT, ""), re.MULTILINE):
        name, kind, labels, older, _when = (cell.strip() for cell in row.split("|"))
        found[name.strip("`")] = (kind, labels_of(labels))
        if older:
            older_name, _, older_labels = older.partition(":")
            found[older_name.strip("`")] = (kind, labels_of(older_labels))
    return found


def test_the_page_has_what_the_docs_list(picking: Any) -> None:
    assert shown(picking) == listed()


def test_the_go_pickers_families_are_here_or_the_docs_say_why_not(picking: Any) -> None:
    here = shown(picking).keys()
    absent = re.findall(r"`([a-z_*]+)`", "\n".join(row.partition(" | ")[0] for row in ABSENT.splitlines()))
    for name, state in GO.items():
        if state.startswith("present"):
            assert name in here, name
        else:
            assert name not in here, name
            short = re.sub(
                r"^(llm_d_epp|inference_objective|inference_extension|llm_d_inference_scheduler)_", "", name
            )
            named = any(fnmatch.fnmatchcase(short, pattern) for pattern in absent)
            assert named or f"`{short}`" in ABSENT, f"docs/metrics.md does not say why {name} is not here"


def test_what_the_go_picker_does_not_have_is_said_to_be_our_own(picking: Any) -> None:
    ours = shown(picking).keys() - GO.keys()
    own = re.findall(r"^\| `(\w+)` .*adsum's own \|$", PAGE, re.MULTILINE)
    assert sorted(ours) == sorted(own)


def test_the_buckets_are_the_go_pickers(picking: Any) -> None:
    found = {}
    for family in everything(picking):
        first = [
            sample
            for sample in family.samples
            if sample.labels == {**family.samples[0].labels, "le": sample.labels.get("le")}
        ]
        found[family.name] = [float(sample.labels["le"]) for sample in first if sample.labels["le"] != "+Inf"]
    for name, state in GO.items():
        if (numbers := state.split()[1:]) and state.startswith("present"):
            assert found[name] == [float(number) for number in numbers], name

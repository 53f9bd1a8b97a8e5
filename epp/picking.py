"""Decides where requests go, as the configuration in force says: director, flow control, outlier detection, decisions."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Never

from adsum.tasks import ResourceOwner, wait_at_most
from epp.config.picker_config import PickerConfig
from epp.config.settings import Settings
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.decisions.spans import PickSpans
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool, Key
from epp.outlier_watch import OutlierWatch
from epp.plugins.declaration import PluginDeclaration
from epp.queueing import Queueing
from epp.request.model_rewrite import ModelRewrites
from epp.request.subset import Subset
from epp.scheduling.decision import Decision
from epp.scheduling.director import Director
from epp.scheduling.pick import Credit
from epp.scheduling.plugin import (
    CreditingProducer,
    DeliveryFollower,
    PredictingProducer,
    wrapped_by,
)
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from epp.telemetry.counters import Telemetry
from epp.telemetry.picker_metrics import PluginDurations, PluginMetrics, PredictionMetrics, RewriteDecisions
from epp.telemetry.pool_metrics import OutlierMetrics, PoolGauges

_MIN_PAUSE: Final = 0.001
"""The least seconds between two turns of the admission, if it names a time that has passed."""


class Picking(ResourceOwner):
    """An async context manager; once entered, requests that wait are dispatched. A `ConfiguredPart`."""

    def __init__(
        self,
        settings: Settings,
        config: PickerConfig,
        datastore: Datastore,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._datastore = datastore
        self._turns = telemetry.flow_control.turns
        self.clock = clock
        self._durations = PluginDurations()
        self._objectives = dict(settings.objectives)
        self.rewrites = ModelRewrites()
        self.decisions = DecisionRing(settings.decisions) if settings.decisions else None
        rng = random.Random()
        scheduler, policy = self._scheduler(config), self._policy(config)
        self.director = Director(datastore, scheduler, config.detector, policy, rng)
        readers = self._durations.read, PickSpans(time.perf_counter, time.time_ns).read
        self.director.decisions = PickRecorder(self.decisions, readers, time.perf_counter)
        self.director.timings, self.director.clock = telemetry, time.perf_counter
        self.queueing = Queueing(self.director, datastore, telemetry, settings.max_buffered_bytes, clock)
        self.outliers = OutlierWatch(self.director, datastore, clock, rng)
        self._use_rules(config)
        self._show(telemetry)

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        scheduler = self._scheduler(config)
        self._teach(scheduler)
        return partial(self._use, config, scheduler)

    def set_priorities(self, by_objective: Mapping[str, int]) -> None:
        """An InferenceObjective counts before a flag of the same name."""
        self._objectives.clear()
        self._objectives.update({**self._settings.objectives, **by_objective})

    def pool(self) -> EndpointPool:
        return self._datastore.pool(self.clock())

    def credits(self) -> Mapping[Key, Credit]:
        """By the first data producer that notes them: several see the same prompts."""
        noted = [one.credits for one in self.director.producers if isinstance(one, CreditingProducer)]
        return noted[0] if noted else {}

    def predicting(self) -> PredictingProducer | None:
        """The first data producer that learns when answers begin."""
        return next((one for one in self.director.producers if isinstance(one, PredictingProducer)), None)

    def cache_evidence(self) -> DeliveryFollower | None:
        """The data producer that knows what workers' events say, and whether they are right."""
        return next((one for one in self.director.producers if isinstance(one, DeliveryFollower)), None)

    def explain(self, headers: Mapping[str, str], body: bytes | None, subset: Subset | None) -> Decision:
        return self.director.explain(headers, body, subset, self.clock())

    async def _open(self) -> None:
        self._start(self.outliers.run())
        self._start(self._dispatch_waiting())
        self._start(self.queueing.log_waits())

    def _use(self, config: PickerConfig, scheduler: Scheduler) -> None:
        self.director.reconfigure(scheduler, config.detector, self._policy(config))
        self._use_rules(config)

    def _use_rules(self, config: PickerConfig) -> None:
        self._plugins = config.plugins
        self.queueing.use(config)
        self.outliers.use(config.outliers, config.slow_start)

    def _scheduler(self, config: PickerConfig) -> Scheduler:
        reports = self._settings.emit_endpoint_scores
        scheduler = config.scheduler.with_reported_scores() if reports else config.scheduler
        self._durations.expect(scheduler)
        return scheduler

    def _teach(self, scheduler: Scheduler) -> None:
        """Tell data producers that are new what the others know: the sizes of caches."""
        store, known = self._datastore, self.director.producers
        for producer in scheduler.producers:
            if not any(producer is one for one in known):
                for endpoint in store.endpoints:
                    if (tokens := store.cache_tokens(endpoint)) is not None:
                        producer.sized(endpoint, tokens)

    def _policy(self, config: PickerConfig) -> Policy:
        return Policy(
            objectives=self._objectives,
            models=self._settings.models,
            passthrough=config.passthrough,
            rewrites=self.rewrites,
            models_endpoint=self._settings.models_endpoint,
            fairness_headers=config.fairness_headers,
        )

    def _plugins_in_use(self) -> Mapping[str, tuple[PluginDeclaration, Sequence[Any]]]:
        producers, handler = self.director.producers, self.director.handler
        used = (*producers, *wrapped_by(producers), handler, *self.queueing.fairness)
        return self._plugins.by_type(used)

    def _show(self, telemetry: Telemetry) -> None:
        rewritten = RewriteDecisions()
        self.rewrites.on_decision = rewritten.count
        for counters in (rewritten, self._durations):
            telemetry.registry.register(counters)
        name, stale_after = telemetry.pool_name, self._settings.metrics_staleness_threshold
        for gauges in (
            PoolGauges(name, self.pool, self.queueing.saturations, stale_after),
            PluginMetrics(self._plugins_in_use),
            OutlierMetrics(name, self.outliers),
            PredictionMetrics(self.predicting),
        ):
            telemetry.gauges.register(gauges)

    async def _dispatch_waiting(self) -> Never:
        """The one timer of admission: calls `dispatch` after each change and at the time that its last call returned."""
        changed = asyncio.Event()
        self.director.waiting.wake = changed.set
        while True:
            changed.clear()
            started = time.perf_counter()
            due = self.director.dispatch(self.clock())
            self._turns.observe(time.perf_counter() - started)
            pause = None if due is None else max(due - self.clock(), _MIN_PAUSE)
            await wait_at_most(pause, changed)

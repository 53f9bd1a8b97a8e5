"""Measures how long plugins take, in one pick of many: the others run as if nothing was measured. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from adsum.histogram import Histogram
from epp.endpoints.endpoint import EndpointPool, Floats, Indices, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.plugin import DataProducer, Filter, Picker, Scorer, Scores
from epp.scheduling.prefix.producer import PRODUCER, PrefixCacheProducer
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scheduler import Scheduler

BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
EVERY: Final = 500
"""One of so many picks is measured. It takes longer than the others: it finds the best endpoint by scoring all."""
PluginLabels: TypeAlias = tuple[str, str, str]
"""Extension point, type and name."""


class PluginTimes:
    """Seconds by plugin; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._histograms: dict[PluginLabels, Histogram] = {}

    def of(self, point: str, type_: str, name: str) -> Histogram:
        return self._histograms.setdefault((point, type_, name), Histogram(BOUNDS))

    def current(self) -> Mapping[PluginLabels, Histogram]:
        return self._histograms


def time_plugins(scheduler: Scheduler, times: PluginTimes, every: int = EVERY) -> None:
    """Let the scheduler measure the plugins of one in `every` picks. Profiles without the names of plugins have no times."""
    profiles = {name: _timed_profile(profile, times) for name, profile in scheduler.profiles.items()}
    producers = [_timed_producer(producer, times) for producer in scheduler.producers]
    scheduler.sample(Scheduler(profiles, scheduler.handler, producers), every)


def _timed_profile(profile: SchedulerProfile, times: PluginTimes) -> SchedulerProfile:
    if not profile.names:
        return replace(profile, producers=())
    names = iter(profile.names)
    filters = [TimedFilter(one, times.of("Filter", *next(names)), times.clock) for one in profile.filters]
    scorers = [
        WeightedScorer(TimedScorer(one.scorer, times.of("Scorer", *next(names)), times.clock), one.weight)
        for one in profile.scorers
    ]
    picker = TimedPicker(profile.picker, times.of("Picker", *next(names)), times.clock)
    return replace(
        profile,
        filters=filters,
        scorers=scorers,
        picker=picker,
        producers=(),
        takes_best=profile.is_best_taken,
    )


def _timed_producer(producer: DataProducer, times: PluginTimes) -> DataProducer:
    if isinstance(producer, PrefixCacheProducer):
        return TimedProducer(producer, times.of("DataProducer", PRODUCER, PRODUCER), times.clock)
    return producer


class TimedFilter:
    def __init__(self, timed: Filter, seconds: Histogram, clock: Callable[[], float]) -> None:
        self._filter = timed.filter
        self._seconds = seconds
        self._clock = clock

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        started = self._clock()
        mask = self._filter(request, pool)
        self._seconds.observe(self._clock() - started)
        return mask


class TimedScorer:
    def __init__(self, timed: Scorer, seconds: Histogram, clock: Callable[[], float]) -> None:
        self.published_only = timed.published_only
        self._score = timed.score
        self._seconds = seconds
        self._clock = clock

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        started = self._clock()
        scores = self._score(request, pool)
        self._seconds.observe(self._clock() - started)
        return scores


class TimedPicker:
    def __init__(self, timed: Picker, seconds: Histogram, clock: Callable[[], float]) -> None:
        self._pick = timed.pick
        self._seconds = seconds
        self._clock = clock

    def pick(self, scores: Floats, k: int) -> Indices:
        started = self._clock()
        picked = self._pick(scores, k)
        self._seconds.observe(self._clock() - started)
        return picked


class TimedProducer:
    """Only prepares: what follows a pick is told to the producer itself."""

    def __init__(self, timed: DataProducer, seconds: Histogram, clock: Callable[[], float]) -> None:
        self._prepare = timed.prepare
        self.picked, self.served, self.failed = timed.picked, timed.served, timed.failed
        self.sized, self.forget, self.retain = timed.sized, timed.forget, timed.retain
        self._seconds = seconds
        self._clock = clock

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        started = self._clock()
        self._prepare(request, pool)
        self._seconds.observe(self._clock() - started)

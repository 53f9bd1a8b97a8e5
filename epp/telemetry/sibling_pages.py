"""The pages that the processes of one picker show together: each serves its part on a Unix socket, and the one that is asked adds them up.

What processes counted that ended is added up, too.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Never, TypeVar

import aiohttp
import anyio.to_thread
import msgspec
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from adsum.logs import RateLimitedLog
from adsum.tasks import ResourceOwner
from epp.config.sibling_processes import SharedTopic, Siblings
from epp.endpoints.endpoint import Key
from epp.scheduling.pick import Credit
from epp.telemetry.decision_pages import DECISIONS_PATH, DecisionPages, DecisionsOfOther

log = logging.getLogger(__name__)

TIMEOUT: Final = 2.0
"""Seconds for a process to answer; what one that stands still counted is known from before."""
_PICKS_INTERVAL: Final = 5.0
_LOOKED: Final = 3.0
"""Seconds for which the page counts as open after somebody looked."""
_COUNTED: Final = "counted"
"""The file of what all processes counted, for whoever answers next."""
_COUNTED_TYPES: Final = ("counter", "histogram")
_SUMMED: Final = re.compile(
    "(?:llm_d_epp|inference_extension|inference_objective|inference_pool)_(?:request_running|running_requests"
    "|flow_control_(?:queue_size|queue_bytes|reclaim_target|pending_reclaim)|per_endpoint_inflight_requests"
    "|extproc_streams_inflight|outcomes_awaited|prefix_indexer_(?:bytes|limit_bytes))"
)
"""A process has these gauges of its own. Others report of the workers, which all see alike, or of the process that answers."""
MOST_SAMPLES: Final = 100_000
"""This many are kept of processes that ended."""

_OF_BAND: Final = ("waiting", "bytes", "max_requests", "max_bytes")
"""Numbers of one priority that add up."""

T = TypeVar("T")
Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, array_like=True):
    """One metric of one process. `samples`: name, labels, value."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]

    @property
    def is_counted(self) -> bool:
        return self.type in _COUNTED_TYPES


class Counted(msgspec.Struct):
    """The state of all processes. `lives`: by the place of a process, the name of its life, and what it counted when it was asked
    last. `ended`: what lives before these counted, all together."""

    lives: dict[int, tuple[str, list[Family]]] = {}
    ended: list[Family] = []


class _SiblingMetrics(msgspec.Struct, array_like=True):
    """`life`: the name of the process's life."""

    life: str
    families: list[Family]


class _Picks(msgspec.Struct, array_like=True):
    """Counts of one endpoint: how many a process sent there, and bytes of their prompts, held and all."""

    key: tuple[str, str]
    picks: int
    held: int
    total: int


@dataclass(eq=False)
class SiblingPages(ResourceOwner):
    """An async context manager; once entered, siblings can ask. `counters` may be read in any thread, `gauges` on the loop."""

    siblings: Siblings
    life: str
    counters: Collector
    gauges: Collector
    picks: Mapping[Key, int]
    credits: Callable[[], Mapping[Key, Credit]]
    decisions: DecisionPages
    status: Callable[[], Mapping[str, Any]] = dict
    others: dict[int, list[_Picks]] = field(default_factory=dict)
    """The parts that siblings sent, by their places, as of a few seconds ago."""
    shared: Mapping[str, SharedTopic] = field(default_factory=dict)
    """The topics of this process's page."""

    async def _open(self) -> None:
        self._limited_log = RateLimitedLog(log)
        self._looked = asyncio.Event()
        self._shared_topics: dict[int, dict[str, msgspec.Raw]] = {}
        """Topics of the siblings, by their places, while somebody looks at the page."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/picks", self._picks)
        app.router.add_get("/status", self._status)
        app.router.add_get("/shared", self._shared)
        self.decisions.add_to(app)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.UnixSite(runner, self.siblings.page_path(self.siblings.place)).start()
        self._start(self._follow_picks())
        self._start(self._follow_shared())

    async def merge(self, gauges: list[Metric]) -> "Collector":
        """The metrics of all, as those of one; `gauges`: this process's."""
        told = await self._ask("/metrics", _SiblingMetrics)
        return await anyio.to_thread.run_sync(self._merge, gauges, told)

    async def decided(self, query: str) -> list[DecisionsOfOther]:
        """The answers of the siblings to a question for decisions."""
        return list((await self._ask(f"{DECISIONS_PATH}?{query}", DecisionsOfOther, as_json=True)).values())

    async def merge_status(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """/status of all, as that of one; `own`: this process's."""
        told = await self._ask("/status", dict[str, Any], as_json=True)
        return status_of_all(own, self.siblings.place, told)

    def of_all(self, name: str) -> bytes:
        """A topic of `shared`, with what the siblings had when they were asked last: a second ago where a page is open."""
        self._looked.set()
        own, of_all = self.shared[name]
        parts = own(), *[told[name] for told in self._shared_topics.values() if name in told]
        found = [one for one in map(msgspec.json.decode, parts) if one is not None]
        return msgspec.json.encode(of_all(found) if found else None)

    def sent(self) -> Mapping[Key, tuple[int, int, int]]:
        """Picks of the siblings by endpoint, and bytes of their prompts, held and all."""
        sums: dict[Key, tuple[int, int, int]] = {}
        for told in self.others.values():
            for one in told:
                picks, held, total = sums.get(one.key, (0, 0, 0))
                sums[one.key] = picks + one.picks, held + one.held, total + one.total
        return sums

    def _merge(self, gauges: list[Metric], told: Mapping[int, _SiblingMetrics]) -> "Collector":
        own = families([*gauges, *self.counters.collect()])
        found = {place: (one.life, one.families) for place, one in told.items()}
        place = self.siblings.place
        file = self.siblings.folder / _COUNTED
        known = Counted()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            known = msgspec.msgpack.decode(file.read_bytes(), type=Counted)
        known = note(known, {**found, place: (self.life, own)})
        new = file.with_name(f"{_COUNTED}.{place}")
        new.write_bytes(msgspec.msgpack.encode(known))
        new.replace(file)
        silent = [counted for at, (_, counted) in known.lives.items() if at != place and at not in found]
        reached = [families for _, families in found.values()]
        return _Merged(merged(own, [*reached, *silent, known.ended]))

    async def _ask(self, path: str, kind: type[T], *, as_json: bool = False) -> dict[int, T]:
        """The answer of each sibling that is there, by its place."""
        decode = msgspec.json.decode if as_json else msgspec.msgpack.decode
        places = list(self.siblings.others.values())
        answers = await asyncio.gather(*[self._get(place, path) for place in places])
        told: dict[int, T] = {}
        for place, answer in zip(places, answers, strict=True):
            if answer is not None:
                told[place] = decode(answer, type=kind)
        return told

    async def _get(self, place: int, path: str) -> bytes | None:
        """None: it is not there, or stands still."""
        connector = aiohttp.UnixConnector(self.siblings.page_path(place))
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT)
                ) as session,
                session.get(f"http://sibling{path}") as answer,
            ):
                return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._limited_log.warning(
                "silent",
                "process %d does not answer, so its numbers are missing: %s",
                place,
                error or type(error).__name__,
            )
            return None

    async def _follow_picks(self) -> Never:
        while True:
            await asyncio.sleep(_PICKS_INTERVAL)
            self.others.update(await self._ask("/picks", list[_Picks]))

    async def _follow_shared(self) -> Never:
        while True:
            try:
                async with asyncio.timeout(_LOOKED):
                    await self._looked.wait()
            except TimeoutError:
                self._shared_topics = {}
                await self._looked.wait()
            self._looked.clear()
            self._shared_topics = await self._ask("/shared", dict[str, msgspec.Raw], as_json=True)

    async def _shared(self, _: web.Request) -> web.Response:
        topics = {name: msgspec.Raw(topic()) for name, (topic, _) in self.shared.items()}
        return web.Response(body=msgspec.json.encode(topics))

    async def _metrics(self, _: web.Request) -> web.Response:
        gauges = list(self.gauges.collect())
        return web.Response(body=await anyio.to_thread.run_sync(self._own, gauges))

    def _own(self, gauges: list[Metric]) -> bytes:
        own = families([*gauges, *self.counters.collect()])
        return msgspec.msgpack.encode(_SiblingMetrics(self.life, own))

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _picks(self, _: web.Request) -> web.Response:
        credits = self.credits()
        nothing = Credit()
        told = []
        for key, picks in self.picks.items():
            credit = credits.get(key, nothing)
            told.append(_Picks(key, picks, int(credit.held), int(credit.total)))
        return web.Response(body=msgspec.msgpack.encode(told))


def status_of_all(
    own: Mapping[str, Any], place: int, others: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Add up what waits, what outcomes are awaited and who is ejected; of the workers tells the process that asks them.

    The rest is that of the process that answers, which is at `place`. `answered`: the places of all that said something.
    """
    every = [own, *others.values()]
    found = {**own, "answered": sorted([place, *others])}
    asks = others.get(own.get("scraped_by", place), own)
    found |= {name: asks[name] for name in ("workers", "watch", "elsewhere") if name in asks}
    found["flow_control"] = _waiting_of_all([one["flow_control"] for one in every if one.get("flow_control")])
    found["outcomes"] = _outcomes_of_all([one["outcomes"] for one in every if one.get("outcomes")])
    if "outliers" in own:
        ejected = [one for each in every for one in each.get("outliers", ())]
        found["outliers"] = list({one["id"]: one for one in reversed(ejected)}.values())
    return found


def _waiting_of_all(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    """None: there is no flow control. Limits are for each process, so all together have their sum."""
    if not told:
        return None
    bands: dict[int, dict[str, Any]] = {}
    for band in (band for one in told for band in one["priorities"]):
        before = bands.get(band["priority"])
        sums = {name: (0 if before is None else before[name] or 0) + (band[name] or 0) for name in _OF_BAND}
        bands[band["priority"]] = {**band, **sums}
    by_priority = [bands[priority] for priority in sorted(bands, reverse=True)]
    return {"saturation": max(one["saturation"] for one in told), "priorities": by_priority}


def _outcomes_of_all(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds up those that hear of them, as they come by a connection that another process may have."""
    hear = (
        [one for one in told if one["by"] == "access_log"] or [one for one in told if one["by"]] or told[:1]
    )
    found = dict(hear[0])
    for name, of_all in (
        ("logs", sum),
        ("awaited", sum),
        ("lost", sum),
        ("delay_seconds", max),
        ("silent_seconds", min),
    ):
        values = [one[name] for one in hear if one.get(name) is not None]
        if values:
            found[name] = of_all(values)
    return found


class _Merged(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Any:
        return metrics(self._families)


def families(metrics: Iterable[Metric]) -> list[Family]:
    return [
        Family(
            one.name,
            one.documentation,
            one.type,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in one.samples],
        )
        for one in metrics
    ]


def metrics(found: Iterable[Family]) -> Iterator[Metric]:
    for one in found:
        metric = Metric(one.name, one.documentation, one.type)
        metric.samples = [Sample(*sample) for sample in one.samples]
        yield metric


def note(known: Counted, told: Mapping[int, tuple[str, list[Family]]]) -> Counted:
    """`told`: by those processes that were reached. A process that was not stays as it was told last; one that is another life than
    before leaves what it had counted."""
    ended, lives = known.ended, dict(known.lives)
    for place, (life, found) in told.items():
        before = lives.get(place)
        if before is not None and before[0] != life:
            ended = _bounded(merged(ended, [before[1]], everything=False))
        lives[place] = life, [one for one in found if one.is_counted]
    return Counted(lives, ended)


def merged(
    first: Iterable[Family], others: Iterable[Iterable[Family]], *, everything: bool = True
) -> list[Family]:
    """The sums; gauges that are no sum are those of `first`, or of the first that has them. Without `everything` only what is counted."""
    found: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, Labels], float]] = {}
    for number, told in enumerate((first, *others)):
        for one in told:
            if not one.is_counted and (
                not everything or (number and sums.get(one.name) and not _is_sum(one.name))
            ):
                continue
            found.setdefault(one.name, one)
            of_family = sums.setdefault(one.name, {})
            for name, labels, value in one.samples:
                key = name, tuple(sorted(labels.items()))
                of_family[key] = of_family.get(key, 0.0) + value
    return [
        Family(
            one.name,
            one.documentation,
            one.type,
            [(name, dict(labels), value) for (name, labels), value in sums[one.name].items()],
        )
        for one in found.values()
    ]


def _is_sum(name: str) -> bool:
    return _SUMMED.fullmatch(name) is not None


def _bounded(found: list[Family]) -> list[Family]:
    left = MOST_SAMPLES
    kept: list[Any] = []
    for one in found:
        left -= len(one.samples)
        if left < 0:
            break
        kept.append(one)
    return kept

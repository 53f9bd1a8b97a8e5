"""Awaits what became of picks whose streams end with the request: the data plane's log tells it. Pure: time is passed in.

A stream that lasts until the answer fails the request if its picker dies. The log cannot: it comes in batches over a stream
of its own: tens of milliseconds after the end of a request, once after a second, and then every few seconds while it is under
way. So a pick of which the log says nothing for `LEASE` has ended, or its entry was lost, and it is released; sooner if this
process had stood still and the log never told of it: then Envoy may have taken the request elsewhere before it was answered here.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from adsum.histogram import Histogram
from epp.ext_proc.access_log_entry import REPORT_INTERVAL, LoggedOutcome, read_entries, read_outcome
from epp.ext_proc.request_report import RequestReport
from epp.scheduling.pick import Pick

log = logging.getLogger(__name__)

LEASE: Final = 40.0
"""Seconds. An answer under way is silent for so long by chance once in a million times: 0.7 ^ 40."""
FIRST_LEASE: Final = 20.0
"""Seconds for the first entry about a pick that maybe nobody got. Not for all: a busy Envoy drops entries."""
_LATE_TICK: Final = 1.5
"""Seconds between two calls of `tick` after which Envoy may have given this process up."""
_SOON: Final = 0.5 * REPORT_INTERVAL
"""A pick that is made so many seconds after its request came is there before the first entry."""
MOST_AWAITED: Final = 200_000
TICK: Final = 1.0
"""Seconds between two calls of `tick`."""
_STOOD_STILL: Final = 3.0
"""Seconds between two calls after which this process has stood still, and entries may lie unread."""
_LATE: Final[Sequence[float]] = (0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Buckets of the seconds from the end of a request to its entry."""
_MANY: Final = 20
"""Picks that were lost before the log says so, once."""
LOST: Final = "nothing was heard of it"
STOPPED: Final = "the picker stopped before it heard of it"
_NAMES: Final = "the client's name of a model in answers of another one"
_ANSWER_ENDS: Final = "the end of the answer, as Envoy's access log tells"
_STREAM_ENDS: Final = (
    "the end of Envoy's ext_proc stream: at the response headers, or at the end of an answer that Envoy sends"
)


class _Awaited:
    __slots__ = ("heard_at", "pick", "report", "responded", "started")

    def __init__(self, report: RequestReport, pick: Pick, started: float, now: float) -> None:
        self.report = report
        self.pick = pick
        self.started = started
        self.heard_at = now
        self.responded = False


class OutcomeLedger:
    """`name`: 16 characters that no other picker has. `heard_late`: is told at each pick how many seconds the log may be late with the
    beginning of its answer.

    `entries`: how many came, by what they told; `delays`: seconds from the end of a request to its entry; `logs`: how many
    streams bring entries now. `without`: what of the picker's configuration needs the answers that do not come.
    """

    def __init__(
        self, name: str, heard_late: Callable[[float], None] | None = None, most: int = MOST_AWAITED
    ) -> None:
        self.name = name
        self._heard_late = heard_late
        self._most = most
        self._sequence = 0
        # bounded: `most` in both; the one of which nothing was heard for longest comes first. `_unheard`: those that maybe
        # nobody got
        self._awaited: dict[str, _Awaited] = {}
        self._unheard: dict[str, _Awaited] = {}
        self._ticked_at: float | None = None
        self._resumed_at = self._late_at = float("-inf")
        self.logs = 0
        self.entries = {"ended": 0, "under_way": 0, "unknown": 0, "of_others": 0}
        self.lost = 0
        self.delays = Histogram(_LATE)
        self.delay = 0.0
        self.heard_at = float("-inf")
        self._warned = False
        self.elsewhere: Callable[[bytes], None] | None = None
        """Called with each entry about a pick of another picker."""
        self.without: tuple[str, ...] = ()
        self._renamed = False
        self._warned_of: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._awaited) + len(self._unheard)

    @property
    def used(self) -> bool:
        """Whether a pick was ever awaited."""
        return self._sequence > 0

    @property
    def _without(self) -> tuple[str, ...]:
        return (*self.without, _NAMES) if self._renamed else self.without

    def expect(self, report: RequestReport, pick: Pick, started: float, now: float) -> None:
        """Name the pick, and await its outcome; `started`: when its request came."""
        if len(self) >= self._most:
            self._lose(self._awaited or self._unheard, now)
        self._renamed = self._renamed or pick.request.rewritten_from is not None
        self._sequence += 1
        pick.token = f"{self.name}{self._sequence:012x}"
        waiting = self._unheard if self._is_doubtful(started, now) else self._awaited
        waiting[pick.token] = _Awaited(report, pick, started, now)
        if self._heard_late is not None:
            self._heard_late(REPORT_INTERVAL + self.delay)

    def _is_doubtful(self, started: float, now: float) -> bool:
        if self._ticked_at is None or now - started >= _SOON:
            return False
        return now - self._ticked_at > _LATE_TICK or now - self._late_at < TICK

    def forget(self, pick: Pick) -> bool:
        """Its outcome came by the stream after all; False: it is known already."""
        return self._pop(pick.token) is not None

    def receive(self, payload: bytes, now: float) -> None:
        """One message of a log; raises UnreadableError."""
        self.hear(read_entries(payload), now)

    def hear(self, entries: Iterable[bytes], now: float) -> None:
        """Entries of a log, of picks of any picker."""
        self.heard_at = now
        ours = self.name.encode()
        for entry in entries:
            try:
                # of a pick of another picker: reading it would cost ten times as much
                if ours not in entry:
                    self.entries["of_others"] += 1
                    if self.elsewhere is not None:
                        self.elsewhere(entry)
                elif (outcome := read_outcome(entry)) is not None:
                    self._hear(outcome, now)
            except Exception as error:  # noqa: BLE001  # a fault of a plugin loses no other entry
                log.error("what became of a request could not be told: %s", type(error).__name__)

    def tick(self, now: float) -> None:
        """To be called every TICK seconds: release picks of which nothing was heard."""
        silent = 0.0 if self._ticked_at is None else now - self._ticked_at
        if silent > _LATE_TICK:
            self._late_at = now
        if silent > _STOOD_STILL:
            self._resumed_at = now
        self._ticked_at = now
        self._warn()
        for waiting, lease in ((self._unheard, FIRST_LEASE), (self._awaited, LEASE)):
            while waiting and now - max(next(iter(waiting.values())).heard_at, self._resumed_at) >= lease:
                self._lose(waiting, now)

    def close(self, now: float) -> None:
        """The picker ends, so it hears of no outcome any more: release what is awaited."""
        for waiting in self._unheard, self._awaited:
            while waiting:
                self._release_first(waiting, STOPPED, now)

    def _warn(self) -> None:
        """Say what does not work, once."""
        if self.lost >= _MANY and not self._warned and not self.entries["ended"]:
            self._warned = True
            log.warning(
                "the access log tells of no pick, so each counts as in flight for %g s; let each picker have an --epp of its own "
                "in envoy-config, let the pickers know each other (--peers), or give --outcomes ext-proc (docs/envoy.md)",
                LEASE,
            )
        without = self._without
        if self.used and without != self._warned_of:
            self._warned_of = without
            if without:
                log.warning(
                    "Envoy sends no answers, so this does not work: %s; give envoy-config --outcomes ext-proc (docs/envoy.md)",
                    ", ".join(without),
                )

    def describe(self, now: float, *, asked: bool) -> dict[str, Any]:
        """For /status: by which way outcomes come, and until when a request counts as in flight; of a log, how many picks it is to
        tell of, and how late it is, in seconds. `asked`: whether there was a stream, which would have said that a log comes.
        """
        if not self.used:
            by, until = ("ext_proc", _STREAM_ENDS) if asked else (None, None)
            return {"outcomes": {"by": by, "in_flight_until": until}}
        silent = now - self.heard_at
        return {
            "outcomes": {
                "by": "access_log",
                "in_flight_until": _ANSWER_ENDS,
                "logs": self.logs,
                "awaited": len(self),
                "delay_seconds": round(self.delay, 3) if self.entries["ended"] else None,
                "silent_seconds": round(silent, 1) if silent < float("inf") else None,
                "lost": self.lost,
                "without": list(self._without),
            }
        }

    def _hear(self, outcome: LoggedOutcome, now: float) -> None:
        awaited = self._pop(outcome.token)
        if awaited is None:
            ours = outcome.token.startswith(self.name)
            self.entries["unknown" if ours else "of_others"] += 1
            return
        if not awaited.responded and outcome.status:
            awaited.responded = True
            awaited.report.heard(awaited.pick, outcome, awaited.started, now)
        if outcome.body_byte is not None and outcome.status:
            came = min(now, awaited.started + outcome.body_byte)
            awaited.report.first_byte(awaited.pick, came, now)
        if not outcome.ended:
            self.entries["under_way"] += 1
            awaited.heard_at = now
            self._awaited[outcome.token] = awaited
            return
        self.entries["ended"] += 1
        ended_at = now
        if outcome.duration is not None:
            ended_at = min(now, awaited.started + outcome.duration)
            self.delay = now - ended_at
            self.delays.observe(self.delay)
        self._release(awaited, outcome.cause, ended_at)

    def _pop(self, token: str) -> _Awaited | None:
        return self._unheard.pop(token, None) or self._awaited.pop(token, None)

    def _lose(self, waiting: dict[str, _Awaited], now: float) -> None:
        """The first one of them."""
        self.lost += 1
        self._release_first(waiting, LOST, now)

    def _release_first(self, waiting: dict[str, _Awaited], cause: str, now: float) -> None:
        try:
            self._release(waiting.pop(next(iter(waiting))), cause, now)
        except Exception as error:  # noqa: BLE001  # as above
            log.error("what became of a request could not be told: %s", type(error).__name__)

    def _release(self, awaited: _Awaited, cause: str, now: float) -> None:
        awaited.report.ended(cause, awaited.pick)
        awaited.report.released(awaited.pick, awaited.started, cause, now)

"""Ejects endpoints that fail or stall, and lets them back on trial. Pure: it is given the time."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.outliers.outlier_record import AnswerTimes, Cause, OutlierRecord, OutlierState
from epp.outliers.requesters import Requester, Requesters
from epp.outliers.settings import Failure, OutlierSettings

log = logging.getLogger(__name__)

TICK: Final = 0.25
"""Seconds between two calls of `tick`."""
_STOOD_STILL: Final = 2.0
"""Seconds between two calls after which this process has stood still."""
_WHOLE_ANSWERS: Final = 3.0
"""This many times longer may an answer take that is not streamed."""


class _Followed(NamedTuple):
    record: OutlierRecord
    streamed: bool


class OutlierDetection:
    """Learns of every request that is sent and how it is answered; marks endpoints in the datastore (`set_ejected`).

    An endpoint whose process was replaced, or that was removed, begins anew. `on_recovered`: called with an endpoint that
    answered its trial. `ejections`: how often for each cause; `overflows`: how often the share of the pool forbade one.
    `heard_late`: how many seconds after a streamed answer began `answered` may be called; whole answers are heard of at their end.
    """

    def __init__(self, datastore: Datastore, settings: OutlierSettings) -> None:
        self.settings = settings
        self.ejections: Counter[Cause] = Counter()
        self.overflows = 0
        self.heard_late = 0.0
        self.on_recovered: Callable[[Endpoint], None] | None = None
        self._datastore = datastore
        self._records: dict[tuple[str, str], OutlierRecord] = {}
        self._sent: dict[Hashable, _Followed] = {}
        self._times = AnswerTimes()
        self._requesters = Requesters()
        self._ticked_at: float | None = None
        self._resumed_at = float("-inf")
        self._interval_began = float("-inf")
        self._overflowing = False
        self._retain: Callable[[], None] = self._changed
        self._forget: Callable[[Endpoint], None] = self._process_ended
        datastore.on_change.append(self._retain)
        datastore.on_reset.append(self._forget)
        self._changed()

    def close(self) -> None:
        """Give back all endpoints, and follow the datastore no more."""
        self._datastore.on_change.remove(self._retain)
        self._datastore.on_reset.remove(self._forget)
        for record in self.ejected:
            self._datastore.set_ejected(record.endpoint, ejected=False)
        self._records.clear()
        self._sent.clear()

    @property
    def ejected(self) -> Sequence[OutlierRecord]:
        """The endpoints that get no requests, or only one on trial."""
        return [one for one in self._records.values() if one.state is not OutlierState.SERVING]

    @property
    def to_probe(self) -> Sequence[Endpoint]:
        """The endpoints whose pause is over; `probed` is to be called for each."""
        return [one.endpoint for one in self._records.values() if one.state is OutlierState.PROBING]

    def sent(self, request: Hashable, endpoint: Endpoint, now: float, *, streamed: bool) -> None:
        """`request` goes to the endpoint; `streamed`: its answer begins before it is complete."""
        record = self._records.get(endpoint.key)
        if record is None:
            return
        record.unanswered.sent(request, now, streamed=streamed)
        self._sent[request] = _Followed(record, streamed)
        if record.state is OutlierState.TRIAL and record.trial is None:
            record.trial = request
            self._datastore.set_ejected(endpoint, ejected=True)

    def answered(
        self,
        request: Hashable,
        endpoint: Endpoint,
        status: int,
        failure: Failure | None,
        now: float,
        requester: Requester | None = None,
    ) -> bool:
        """The response headers came, of the endpoint or (`failure`) of the data plane in its place.

        Returns whether they say something of workers; False: a failure is rather the requester's fault.
        """
        sent = self._sent.pop(request, None)
        record = self._records.get(endpoint.key)
        if record is None:
            return True
        if sent is not None:
            # sent elsewhere first: the data plane tried again, and nobody knows how long that took
            came = failure is None and sent.record is record
            at = sent.record.unanswered.over(request, streamed=sent.streamed, answered=came)
            if came and at is not None and status < 500:
                self._times.observe(now - at, now, streamed=sent.streamed)
            if sent.record is not record:
                self._end_trial(sent.record, request)
                if sent.record.endpoint.key == endpoint.key:
                    return True  # of the process before
        return self._count(record, request, status, failure, now, requester)

    def helped(
        self, part: Hashable, endpoint: Endpoint, status: int, failure: Failure | None, now: float
    ) -> None:
        """A helper did its part of a request, or failed. `part`: what `sent` was called with."""
        sent, record = self._sent.pop(part, None), self._records.get(endpoint.key)
        if record is None or (sent is not None and sent.record is not record):
            return  # gone, or of the process before
        if sent is not None:
            record.unanswered.over(part, streamed=sent.streamed, answered=failure is None)
        self._count(record, part, status, failure, now)

    def attempt_failed(self, endpoint: Endpoint, now: float, requester: Requester | None = None) -> None:
        """The data plane could not send a request there, or was refused with 503, and tried another endpoint."""
        record = self._records.get(endpoint.key)
        if record is not None:
            self._count(record, record.trial, 503, Failure.CONNECT, now, requester)

    def ended(self, request: Hashable, now: float) -> None:
        """The request is over; without an answer, its client has gone."""
        sent = self._sent.pop(request, None)
        if sent is not None:
            sent.record.unanswered.over(request, streamed=sent.streamed, answered=False)
            self._end_trial(sent.record, request)

    def tick(self, now: float) -> None:
        """To be called every TICK seconds: pauses end, silence and percentages are looked at."""
        if self._ticked_at is not None and now - self._ticked_at > _STOOD_STILL:
            # this process stood still, so answers may lie unread: whatever waits, waits since now
            self._resumed_at = now
        self._ticked_at = now
        records = list(self._records.values())
        for record in records:
            if record.state is OutlierState.EJECTED and now >= record.until:
                record.state = OutlierState.PROBING if self.settings.probe_path else OutlierState.TRIAL
                self._open(record)
            elif record.state is OutlierState.SUSPECT and record.unanswered.none:
                record.state = OutlierState.TRIAL
                self._open(record)
        if self.settings.suspect_timeout or self.settings.stall_timeout:
            self._look_for_stalls(records, now)
        if now - self._interval_began >= self.settings.interval:
            self._interval_began = now
            for record in records:
                record.end_interval()

    def probed(self, endpoint: Endpoint, now: float, *, alive: bool) -> None:
        """Whether it answered a probe. If it did, it gets a request; else it is probed again after an interval."""
        record = self._records.get(endpoint.key)
        if record is None or record.state is not OutlierState.PROBING:
            return
        if alive:
            record.state = OutlierState.TRIAL
            self._open(record)
        else:
            record.state, record.until = OutlierState.EJECTED, now + self.settings.interval

    def _count(
        self,
        record: OutlierRecord,
        request: object,
        status: int,
        failure: Failure | None,
        now: float,
        requester: Requester | None = None,
    ) -> bool:
        failed = failure is not None or status >= 500
        if record.state is OutlierState.SUSPECT and failure is None:
            record.state = OutlierState.SERVING
            self._datastore.set_ejected(record.endpoint, ejected=False)
            log.info("%s answers again", _name(record))
        elif self._answers_trial(record, request) and record.cause is Cause.STALLED and failure is None:
            # any answer shows that it is not silent; whether it is an error is judged as ever
            self._recover(record)
        if self._is_requesters_fault(record, requester, now, failed=failed):
            self._end_trial(record, request)
            return False
        volume = self.settings.failure_percentage_request_volume
        record.count(status, failure, frozenset(requester or ()), volume)
        if record.state is OutlierState.SERVING:
            if failed and (cause := record.fault(self.settings) or self._fails_more(record)) is not None:
                self._eject(record, cause, now)
        elif self._answers_trial(record, request):
            if failed:
                self._eject(record, Cause.TRIAL, now)
            else:
                self._recover(record)
        return True

    @staticmethod
    def _answers_trial(record: OutlierRecord, request: object) -> bool:
        return record.state is OutlierState.TRIAL and record.trial == request and request is not None

    def _is_requesters_fault(
        self, record: OutlierRecord, requester: Requester | None, now: float, *, failed: bool
    ) -> bool:
        if requester is None:
            return False
        if not failed:
            self._requesters.succeeded(requester, now)
            return False
        found = self._requesters.failed(requester, record.endpoint.key, now)
        if found is None:
            return False
        first = self._records.get(found.first) if found.elsewhere else None
        if first is not None and first.acquit(found.key, now):
            log.info("the pause of %s ends: the requests that failed there fail elsewhere too", _name(first))
        return True

    def _end_trial(self, record: OutlierRecord, request: object) -> None:
        """Its trial showed nothing: it gets another request."""
        if record.state is OutlierState.TRIAL and record.trial == request:
            record.trial = None
            self._open(record)

    def _open(self, record: OutlierRecord) -> None:
        if record.state is OutlierState.TRIAL:
            self._datastore.set_ejected(record.endpoint, ejected=False)

    def _recover(self, record: OutlierRecord) -> None:
        record.recover()
        self._datastore.set_ejected(record.endpoint, ejected=False)
        log.info("%s answered its trial and is back", _name(record))
        if self.on_recovered is not None:
            self.on_recovered(record.endpoint)

    def _eject(self, record: OutlierRecord, cause: Cause, now: float) -> None:
        ejected, endpoints = len(self.ejected), len(self._datastore.endpoints)
        if record.state is OutlierState.SERVING:
            most = self.settings.ejectable(endpoints)
            if ejected >= most:
                self._overflow(record, cause)
                return
            ejected += 1
        why = _EXPLAINED[cause].format(record=record, settings=self.settings)
        pause = record.eject(cause, now, self.settings)
        self._overflowing = False
        self.ejections[cause] += 1
        self._datastore.set_ejected(record.endpoint, ejected=True)
        log.warning(
            "%s is ejected for %g s: %s; %d of %d endpoints are ejected",
            _name(record),
            pause,
            why,
            ejected,
            endpoints,
        )

    def _overflow(self, record: OutlierRecord, cause: Cause) -> None:
        self.overflows += 1
        record.clear()
        self._log_overflow(record, "ejected", cause)

    def _log_overflow(self, record: OutlierRecord, what: str, cause: Cause) -> None:
        """Once until the next ejection. `what`: it may not be "ejected", or "avoided"."""
        if not self._overflowing:
            self._overflowing = True
            log.warning(
                "%s is not %s (%s): %d of %d endpoints are, and maxEjectionPercent allows no more",
                _name(record),
                what,
                cause,
                len(self.ejected),
                len(self._datastore.endpoints),
            )

    def _look_for_stalls(self, records: Sequence[OutlierRecord], now: float) -> None:
        self._note_silent_pages(now)
        for streamed in (True, False):
            # an answer that is not streamed begins when its last token is there
            times = 1.0 if streamed else _WHOLE_ANSWERS
            late = self.heard_late if streamed else 0.0
            suspect_after = self._patience(self.settings.suspect_timeout * times, streamed=streamed) + late
            eject_after = self._patience(self.settings.stall_timeout * times, streamed=streamed) + late
            latest = max((one.unanswered.latest_answered(streamed=streamed) for one in records), default=0.0)
            left = self._left()
            for record in records:
                silent = now - max(self._silent_since(record, latest, streamed=streamed), self._resumed_at)
                if silent > eject_after:
                    counted = record.state is not OutlierState.SERVING
                    self._eject(record, Cause.STALLED, now)
                    record.alive_since = now  # not again at once, if it may not be ejected
                    left = left if counted else self._left()
                elif silent > suspect_after and record.state is OutlierState.SERVING:
                    self._suspect(record, left)
                    left -= 1

    def _left(self) -> int:
        """How many more endpoints may be avoided; it counts all of them."""
        return self.settings.ejectable(len(self._datastore.endpoints)) - len(self.ejected)

    def _patience(self, least: float, *, streamed: bool) -> float:
        return self._times.patience(least, streamed=streamed) if least else float("inf")

    def _suspect(self, record: OutlierRecord, left: int) -> None:
        """`left`: how many may still be avoided."""
        if left <= 0:
            self._log_overflow(record, "avoided", Cause.STALLED)
            return
        record.state, record.cause = OutlierState.SUSPECT, Cause.STALLED
        self._datastore.set_ejected(record.endpoint, ejected=True)
        log.info(
            "%s is avoided until it answers: its requests wait, while others answer theirs", _name(record)
        )

    def _silent_since(self, record: OutlierRecord, latest: float, *, streamed: bool) -> float:
        """When a request was sent there since which others answered theirs, and it did not; inf: none was.

        `latest`: when the latest request was sent that any endpoint answered.
        """
        if record.state in (OutlierState.EJECTED, OutlierState.PROBING):
            return float("inf")
        count = self.settings.stalled_requests if record.state is OutlierState.SERVING else 1
        since = record.unanswered.since(count, streamed=streamed)
        if since is None or record.unanswered.latest_answered(streamed=streamed) > since:
            return float("inf")
        return max(since, record.alive_since) if latest > since else float("inf")

    def _note_silent_pages(self, now: float) -> None:
        """A worker whose page is late too, or that is unreachable, is avoided for that, and used again once it continues."""
        pool = self._datastore.pool(now)
        late = pool.late()
        for row, endpoint in enumerate(pool.endpoints):
            record = self._records.get(endpoint.key)
            if record is not None and (self._datastore.is_lost(endpoint) or (late is not None and late[row])):
                record.alive_since = now

    def _fails_more(self, record: OutlierRecord) -> Cause | None:
        """Whether so many of its last answers are failures, and at most half as many of the others'."""
        settings = self.settings
        volume, percentage = settings.failure_percentage_request_volume, record.failure_percentage
        if not 0 < settings.failure_percentage_threshold <= percentage or record.answers < volume:
            return None
        others = [
            one.failure_percentage
            for one in self._records.values()
            if one is not record and one.answers >= volume
        ]
        if len(others) + 1 < settings.failure_percentage_minimum_hosts:
            return None
        if others and 2 * sum(others) / len(others) > percentage:
            record.forget_percentage()  # all fail; to be looked at again after as many answers
            return None
        return Cause.FAILURE_PERCENTAGE

    def _changed(self) -> None:
        """Endpoints were added, removed or changed."""
        known = {endpoint.key: endpoint for endpoint in self._datastore.endpoints}
        for key in self._records.keys() - known.keys():
            del self._records[key]
        for key, endpoint in known.items():
            if (record := self._records.get(key)) is None:
                self._records[key] = OutlierRecord(endpoint)
            else:
                record.endpoint = endpoint

    def _process_ended(self, endpoint: Endpoint) -> None:
        if endpoint.key in self._records:
            self._records[endpoint.key] = OutlierRecord(endpoint)


def _name(record: OutlierRecord) -> str:
    return f"{record.endpoint.id} ({record.endpoint.destination})"


_EXPLAINED: Final = {
    Cause.CONSECUTIVE_5XX: "it answered {record.errors_in_row} requests in a row with 5xx",
    Cause.LOCAL_ORIGIN: "the last {record.failures_in_row} requests could not be sent there, were cut or refused with 503",
    Cause.FAILURE_PERCENTAGE: "{record.failure_percentage:.0f} % of its last {record.answers} requests failed",
    Cause.STALLED: "it has not answered for long, while others do",
    Cause.TRIAL: "it failed the request that it got on trial",
}

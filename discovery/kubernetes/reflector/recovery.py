"""Decides what to ask the API server next, and when, after each answer and each fault; the events that come of it. Pure: time
is passed in.

The rules are those of client-go's Reflector (tools/cache/reflector.go). Three are ours: only a stream that lived for
two minutes resets the backoff, a server that accepts connections again is asked at once, and a list that is older
than what we know must be confirmed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar

from discovery.kubernetes.api.refusal import ApiRefusal
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.reflector.decoding import is_older

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectsListed(Generic[T]):
    """A complete list: it replaces all objects that were known."""

    objects: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class ObjectUpdated(Generic[T]):
    """One object was added or modified."""

    object: T


@dataclass(frozen=True, slots=True)
class ObjectDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class SyncLost:
    """The copy may be out of date. `code`: the HTTP status that caused it, None without an answer."""

    reason: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class SyncRestored:
    """After SyncLost: the server answers again, and nothing has changed so far."""


ReflectorEvent: TypeAlias = ObjectsListed[T] | ObjectUpdated[T] | ObjectDeleted | SyncLost | SyncRestored


_STARTUP_FAILURES: Final = 2
"""Failures in a row that a starting API server may answer with: until it has read the Roles it answers 403
(kubernetes/kubernetes#121635)."""
_CONFIRMATIONS: Final = 2
"""Consistent lists in a row that must be older than what we know before we believe that versions went back."""


_MISLEADING_PROBES: Final = 30
"""Probes that may connect in a row while no request is answered. A starting API server accepts and resets for some seconds,
a load balancer without a backend for ever."""


class NextRequest(Enum):
    """LIST and WATCH have the meanings of the Kubernetes API concepts, "Efficient detection of changes"."""

    # No resourceVersion: the most recent state, by a consistent read (KEP-2340). client-go begins with "0", which is
    # cheaper for the server, but a stale cache may answer that with a state from before this process was restarted.
    LIST = "list"
    # resourceVersionMatch=NotOlderThan: from the server's watch cache, at least as recent as what we know.
    LIST_NOT_OLDER = "list not older"
    WATCH = "watch"


class Recovery:
    """Each method takes one answer or fault and sets `next_request`, `resource_version` and `wait_until`. It returns
    SyncLost unless the fault is a part of normal operation, such as an expired version.
    """

    def __init__(self, timings: Timings) -> None:
        self.next_request = NextRequest.LIST
        self.resource_version = ""
        self.wait_until = float("-inf")
        self._timings = timings
        self._failures = 0
        self._expired_before = False
        self._internal_errors = 0
        self._denials = 0
        self._older_lists = 0
        self._disconnected_since: float | None = None
        self._probe_succeeded = self._probe_misled = False
        self._misleading_probes = 0
        self._startup_retries = 0
        self.relist_at = float("inf")
        """When to list again although nothing is wrong."""

    @property
    def probe_connection(self) -> bool:
        """Whether to try to connect while waiting."""
        return self._disconnected_since is not None and not self._probe_misled

    def connection_possible(self, now: float) -> None:
        """A probe has connected: ask at once."""
        if (
            self._disconnected_since is not None
            and now - self._disconnected_since >= self._timings.restart_threshold
        ):
            self._startup_retries = _STARTUP_FAILURES
        self._probe_succeeded, self.wait_until = True, now

    def headers_received(self) -> None:
        """An answer has begun, whatever it says."""
        self._disconnected_since, self._probe_succeeded, self._probe_misled = None, False, False
        self._misleading_probes = 0

    def relist_if_due(self, now: float) -> None:
        if self.next_request is NextRequest.WATCH and now >= self.relist_at:
            self.next_request = NextRequest.LIST

    def list_received(self, version: str, now: float) -> SyncLost | None:
        """Watch from `version`. SyncLost if the list must not be used: it is older than what we know."""
        if is_older(version, self.resource_version) and not self._confirm_older(now):
            return SyncLost(
                f"the server's list (resourceVersion {version}) is older than what it sent before "
                f"({self.resource_version})"
            )
        self._older_lists = self._denials = 0
        self.next_request, self.resource_version, self.wait_until = NextRequest.WATCH, version, now
        self.relist_at = now + self._timings.uniform(*self._timings.relist_interval)
        return None

    def reset_backoff(self) -> None:
        """One stream lived for `Timings.backoff_reset`: the next failure counts as the first."""
        self._failures, self._expired_before, self._internal_errors = 0, False, 0

    def watch_ended(self, now: float, lived: float, *, empty: bool) -> SyncLost | None:
        """The server ended a watch, `lived` seconds after its headers; `empty`: it sent no event."""
        if lived < self._timings.short_watch and empty:
            return self.request_failed("the watch ended as soon as it began", now)
        pause = self._timings.uniform(0, self._timings.rewatch_delay)
        # A server that ends each watch after its first event would be asked without a pause
        self.wait_until = now + max(pause, self._timings.short_watch - lived)
        return None

    def connect_failed(self, reason: str, now: float) -> SyncLost:
        # A probe connected and the request after it did not: TLS fails, or the request goes through a proxy of the
        # environment. Further probes would cause requests in spite of the backoff.
        self._probe_misled |= self._probe_succeeded
        self._startup_retries = 0
        self._disconnected_since = now if self._disconnected_since is None else self._disconnected_since
        return self.request_failed(reason, now)

    def request_failed(
        self, reason: str, now: float, *, relist: bool = False, code: int | None = None
    ) -> SyncLost:
        """Ask again after the backoff. `relist`: events may be lost, so that the watch cannot be resumed."""
        if relist and self.next_request is NextRequest.WATCH:
            self.next_request = NextRequest.LIST_NOT_OLDER
        self._misleading_probes += self._probe_succeeded
        self._probe_misled |= self._misleading_probes >= _MISLEADING_PROBES
        self.wait_until = now + self._backoff()
        return SyncLost(reason, code)

    def version_expired(self, now: float, *, consistent: bool = False) -> SyncLost | None:
        """410 Gone: the server's history no longer reaches back to our version. etcd keeps five minutes by default (API
        concepts), the watch cache at least 75 s (DefaultEventFreshDuration in apiserver's cacher.go). `consistent`: our
        version is from another history, so that a cache cannot help.
        """
        # client-go lists "not older than what was observed" first, and consistently only if that is refused as well
        resumable = self.next_request is NextRequest.WATCH and not consistent
        self.next_request = NextRequest.LIST_NOT_OLDER if resumable else NextRequest.LIST
        # At once, since this is normal operation; but a server that answers each watch with 410 would be asked for
        # list after list, so that every further one, until a stream lives long, is a failure
        if self._expired_before:
            return self.request_failed(
                f"the server does not know version {self.resource_version} any more", now
            )
        self._expired_before, self.wait_until = True, now
        return None

    def request_refused(self, refusal: ApiRefusal, now: float) -> SyncLost | None:
        """An HTTP status or an ERROR event."""
        # Neither error heals while we ask for "not older than": client-go falls back to a consistent list at once
        if self.next_request is NextRequest.LIST_NOT_OLDER and (
            refusal.code == 410 or refusal.version_too_large
        ):
            self.next_request, self.wait_until = NextRequest.LIST, now
            return None
        if refusal.code == 410:
            return self.version_expired(now)
        if refusal.version_too_large and self.next_request is NextRequest.WATCH:
            return self.version_expired(now, consistent=True)
        # Time does not heal a missing Role or API: after a starting server's errors only the longest delay is used
        self._denials = self._denials + 1 if refusal.code in (403, 404) else 0
        if self._denials > _STARTUP_FAILURES:
            first, last = self._timings.backoff
            self.wait_until = now + self._timings.uniform(max(first, last / 2), last)
            return SyncLost(refusal.text, refusal.code)
        lost = self.request_failed(refusal.text, now, relist=self._must_relist(refusal), code=refusal.code)
        if refusal.retry_after is not None:
            self.wait_until = max(self.wait_until, now + refusal.retry_after)
        return lost

    def _must_relist(self, refusal: ApiRefusal) -> bool:
        # These say nothing of our version: the same watch is asked for again
        if refusal.code in (401, 403, 404, 429):
            return False
        # client-go can be set to retry a watch after an internal error (MaxInternalErrorRetryDuration); we do it once
        if refusal.code == 500:
            self._internal_errors += 1
            return self._internal_errors > 1
        return True

    def _confirm_older(self, now: float) -> bool:
        """Whether an older list is the truth.

        It is after etcd was restored from a backup (kubernetes/kubernetes#107457), and is not when the answer came from
        the stale cache of another API server (#59848). A consistent list should not come from a stale cache: two of
        them in a row decide.
        """
        self._older_lists += self.next_request is NextRequest.LIST
        self.next_request, self.wait_until = NextRequest.LIST, now + self._backoff()
        return self._older_lists >= _CONFIRMATIONS

    def _backoff(self) -> float:
        first, last = self._timings.backoff
        if self._startup_retries:
            self._startup_retries -= 1
            return self._timings.uniform(first / 2, first)
        delay = min(last, first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._timings.uniform(delay / 2, delay)

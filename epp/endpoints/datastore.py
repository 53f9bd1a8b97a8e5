"""Keeps the endpoints that discovery reports, their numbers and their requests in flight, and tells who listens."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from discovery import Instance, InstanceEvent, InstanceRemovedEvent
from epp.endpoints.change_hooks import ChangeHooks
from epp.endpoints.endpoint import NEVER, Endpoint, EndpointPool, Key, Mask
from epp.endpoints.endpoint_document import EndpointDefaults
from epp.endpoints.load import Load, LoadColumns
from epp.endpoints.members import EndpointIndex, Members
from epp.endpoints.served_model import ServedModel
from epp.endpoints.worker_metrics import WORKER_METRICS, WorkerMetric

PUSHED_COUNTS: Final = 3.0
"""Seconds: SGLang pushes at least once a second."""


class Datastore(ChangeHooks):
    """All endpoints of one picker. Used from one event loop only, so readers never see half a change."""

    def __init__(
        self, defaults: EndpointDefaults | None = None, metrics: Sequence[WorkerMetric] = WORKER_METRICS
    ) -> None:
        super().__init__()
        self._members = Members(defaults or EndpointDefaults())
        self._columns = LoadColumns(metrics)
        self._cache_tokens: dict[Key, int] = {}
        self._unreachable, self._lost, self._ejected = set[Key](), set[Key](), set[Key]()
        self._reported_dead = set[Key]()
        self._ejected_by_peers = set[Key]()
        self._pushed_at: dict[Key, float] = {}

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints, in the order of a pool's columns."""
        return self._current_index().endpoints

    def pool(self, now: float) -> EndpointPool:
        """All endpoints with their numbers; the age of the numbers is measured at `now`."""
        return self._columns.pool(self._current_index(), now)

    def _current_index(self) -> EndpointIndex:
        index = self._members.index
        if index is None:
            index = self._members.reindex()
            self._tell()
        return index

    @property
    def all_reachable(self) -> bool:
        """False if an endpoint is ejected, or there is a hint that it does not answer, of discovery or by `set_lost`."""
        hinted = self._lost or self._ejected or self._unreachable or self._ejected_by_peers
        return not hinted

    def serving(self, model: str) -> Mask | None:
        """The endpoints that may serve a model or adapter; None: all of them.

        These are the endpoints that declare or list it, and those of which nothing is known. If there are none, those whose
        metrics page has it as an adapter; if none has, those that only list models: a list is no promise that there are no
        others (aliases, adapters that are loaded on demand), and such a worker answers for itself. If no endpoint declares
        or lists anything, all.
        """
        index = self._current_index()
        if not index.restricts:
            return None
        mask = index.found[model] if model in index.found else index.serving(model)
        if mask is None or mask.any():
            return mask
        mask = self._columns.running_adapter(model)
        return mask if mask.any() else index.listing

    def apply(self, event: InstanceEvent, document: Mapping[str, Any] | None = None) -> Endpoint | None:
        """Apply one event; `document`: the instance's metadata, None: unknown, so the last known metadata stay.

        Returns the endpoint as it is now, or was; None if there was none.
        """
        if isinstance(event, InstanceRemovedEvent):
            endpoint = self._remove(event)
        else:
            endpoint = self._upsert(event.instance, document)
        self.on_fact("apply", (event.instance.id, event.instance.incarnation), (event, document))
        self._tell_change(endpoint)
        return endpoint

    def _upsert(self, instance: Instance, document: Mapping[str, Any] | None) -> Endpoint:
        key = (instance.id, instance.incarnation)
        before = self._members.endpoints.get(key)
        endpoint = self._members.put(instance, document)
        self._columns.add(key)
        if endpoint.reachable and before is not None and not before.reachable:
            self._lost.discard(key)  # it answered discovery since
        if endpoint.reachable:
            self._unreachable.discard(key)
            self._reported_dead.discard(key)
        else:
            self._unreachable.add(key)
        self._mark_reachable(key)
        if self._members.restarted(instance):
            self._forget_process(endpoint)
        return endpoint

    def _remove(self, event: InstanceRemovedEvent) -> Endpoint | None:
        key = (event.instance.id, event.instance.incarnation)
        endpoint = self._members.remove(key)
        if endpoint is None:
            return None
        self._columns.remove(key)
        for keys in self._unreachable, self._lost, self._ejected, self._reported_dead, self._ejected_by_peers:
            keys.discard(key)
        self._cache_tokens.pop(key, None)
        self._pushed_at.pop(key, None)
        # an endpoint that is only not ready may come back with its cache
        if event.reason in ("deleted", "replaced"):
            self._reset(endpoint)
        return endpoint

    def set_listed_models(self, endpoint: Endpoint, models: tuple[ServedModel, ...]) -> None:
        """Store what its `/v1/models` lists; empty: unknown."""
        changed = self._members.set_listed_models(endpoint.key, models)
        if changed is not None:
            self.on_fact("set_listed_models", endpoint.key, (models,))
            self._tell_change(changed)

    def reread(self, defaults: EndpointDefaults) -> None:
        """Make all endpoints anew with other defaults. Their numbers, their requests in flight and their caches stay."""
        if self._members.reread(defaults):
            self._tell_change(None)
            for endpoint in self.endpoints:
                self._call_hooks(self.on_load_change, endpoint)

    def current(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as it is now; as it was given, if it was removed."""
        return self._members.endpoints.get(endpoint.key, endpoint)

    def find(self, key: Key) -> Endpoint | None:
        """The endpoint of that id and incarnation."""
        return self._members.endpoints.get(key)

    def instance(self, key: Key) -> Instance | None:
        """Returns what the endpoint of that id and incarnation was made of."""
        return self._members.instance(key)

    def process_replaced(self, endpoint: Endpoint) -> None:
        """Nothing accepted connections there, and now it answers: another process, whose cache is empty."""
        if endpoint.key in self._members.endpoints:
            self.on_fact("process_replaced", endpoint.key, ())
            self._forget_process(endpoint)
            self._columns.members_changed()
            self._call_hooks(self.on_load_change, endpoint)

    def _forget_process(self, endpoint: Endpoint) -> None:
        self._lost.discard(endpoint.key)
        self._ejected.discard(endpoint.key)
        self._ejected_by_peers.discard(endpoint.key)
        self._columns.forget(endpoint.key)
        self._mark_reachable(endpoint.key)
        self._cache_tokens.pop(endpoint.key, None)
        self._reset(endpoint)

    def _tell_change(self, endpoint: Endpoint | None) -> None:
        """Endpoints were added, removed or changed; `endpoint`: the one that was."""
        self._members.index = None
        self._columns.members_changed()
        self._announce()
        if endpoint is not None:
            self._call_hooks(self.on_load_change, endpoint)

    def observe(self, endpoint: Endpoint, load: Load, now: float, period: float = 0.0) -> None:
        """Store the numbers of one scrape; numbers that are not on the page stay.

        `period`: seconds until the next scrape is expected, 0: unknown, so the endpoint is never late. A load with an
        implausible value is dropped as a whole, and the endpoint counts as never scraped: it ranks last and counts as full.
        The last good numbers would be a guess that nothing bounds.
        """
        self.on_fact("observe", endpoint.key, (load, now, period))
        if self._pushed_at and now - self._pushed_at.get(endpoint.key, NEVER) < PUSHED_COUNTS:
            # SGLang's page is behind: it is written anew after many steps
            load = Load(max_lora=load.max_lora, adapters=load.adapters, others=load.others)
        if self._columns.observe(endpoint.key, load, now, period):
            self._call_hooks(self.on_load_change, endpoint)

    def observe_pushed(self, endpoint: Endpoint, load: Load, now: float) -> None:
        """Store numbers that the worker sent of itself. For some seconds its page is read only for others."""
        if load.problem or endpoint.key not in self._members.endpoints:
            return
        self._pushed_at[endpoint.key] = now
        if self._columns.push(endpoint.key, load, now):
            self._call_hooks(self.on_load_change, endpoint)

    def expect_page(self, endpoint: Endpoint, by: float) -> None:
        """Its next page is expected by then, and it is late after that; for an endpoint that was scraped before."""
        self.on_fact("expect_page", endpoint.key, (by,))
        self._columns.expect_page(endpoint.key, by)

    def record_failed_scrape(self, endpoint: Endpoint, *, has_page: bool) -> None:
        """A scrape failed: the worker has no metrics page, or (`has_page`) for another reason."""
        self.on_fact("record_failed_scrape", endpoint.key, (has_page,))
        if self._columns.scrape_failed(endpoint.key, has_page=has_page):
            self._call_hooks(self.on_load_change, endpoint)

    def cache_tokens(self, endpoint: Endpoint) -> int | None:
        """The size of its KV cache in tokens; None: unknown."""
        return self._cache_tokens.get(endpoint.key)

    def set_cache_tokens(self, endpoint: Endpoint, tokens: int) -> None:
        """Store the size of its KV cache, which its metrics page has."""
        if endpoint.key in self._members.endpoints:
            self._cache_tokens[endpoint.key] = tokens
            self.on_fact("set_cache_tokens", endpoint.key, (tokens,))
            for hook in self.on_cache_size:
                hook(endpoint, tokens)

    def set_lost(self, endpoint: Endpoint, *, lost: bool) -> bool:
        """Whether nothing accepts connections there: a hint beside that of discovery. Returns whether this is new."""
        if not lost:
            self._reported_dead.discard(endpoint.key)
        is_new = self._mark(self._lost, endpoint, marked=lost)
        if is_new:
            self.on_fact("set_lost", endpoint.key, (lost,))
        return is_new

    def is_lost(self, endpoint: Endpoint) -> bool:
        return endpoint.key in self._lost

    def first_sign_of_death(self, key: Key) -> bool:
        """Whether that it seems dead is news. Further signs are none, until it answers or is gone: one death, one log line."""
        if key not in self._members.endpoints or key in self._reported_dead:
            return False
        self._reported_dead.add(key)
        return True

    def seems_dead(self, key: Key) -> bool:
        """Whether there was a first sign of death, and it has not answered since."""
        return key in self._reported_dead

    def set_ejected(self, endpoint: Endpoint, *, ejected: bool) -> None:
        """Whether it is avoided because it failed requests; it counts as unreachable, and new processes begin without."""
        self._mark(self._ejected, endpoint, marked=ejected)

    def set_ejected_by_peers(self, keys: set[Key]) -> None:
        """All that other pickers avoid since they failed their requests; they count as unreachable."""
        for key in self._ejected_by_peers ^ {key for key in keys if key in self._members.endpoints}:
            self._mark(self._ejected_by_peers, self._members.endpoints[key], marked=key in keys)

    def _mark(self, keys: set[Key], endpoint: Endpoint, *, marked: bool) -> bool:
        """Whether it is among these, which count as unreachable. Returns whether this is new."""
        key = endpoint.key
        if key not in self._members.endpoints or (key in keys) == marked:
            return False
        if marked:
            keys.add(key)
        else:
            keys.discard(key)
        self._mark_reachable(key)
        self._call_hooks(self.on_load_change, endpoint)
        return True

    def _mark_reachable(self, key: Key) -> None:
        hinted = (
            key in self._unreachable
            or key in self._lost
            or key in self._ejected
            or key in self._ejected_by_peers
        )
        self._columns.set_reachable(key, not hinted)

    def suspect(self, endpoint: Endpoint) -> None:
        """The data plane could not reach it: it is avoided until whoever listens in `on_suspect` says otherwise.

        Without a listener nothing would end that, so nothing happens.
        """
        find_out = self.on_suspect.pop(endpoint.key, None)
        if find_out is not None:
            self.set_lost(endpoint, lost=True)
            find_out()

    def reserve(self, endpoint: Endpoint) -> None:
        """Count one more request in flight there. The count belongs to the incarnation, whatever the metadata."""
        self._columns.reserve(endpoint.key)
        self._tell_use(endpoint.key)

    def release(self, endpoint: Endpoint) -> None:
        """Count one request fewer in flight there."""
        self._columns.release(endpoint.key)
        if self.on_release:
            self._call_hooks(self.on_release, endpoint)

    def count_for_peers(self, endpoint: Endpoint, sent: int, over: int, since: float) -> None:
        """Other pickers sent so many requests there, at the time `since`, which count as if they were ours; so many are over."""
        self._columns.count_for_peers(endpoint.key, sent, over, since)
        if sent:
            self._tell_use(endpoint.key)
        if over and self.on_release:
            self._call_hooks(self.on_release, endpoint)

    def _tell_use(self, key: Key) -> None:
        used = self.on_use.pop(key, None)
        if used is not None:
            used()

    def inflight(self, endpoint: Endpoint) -> int:
        """The number of requests that this picker sent there and that have not ended."""
        return self._columns.inflight(endpoint.key)

    def peer_inflight(self, endpoint: Endpoint) -> int:
        """The number of those that its peers sent there."""
        return self._columns.peer_inflight(endpoint.key)

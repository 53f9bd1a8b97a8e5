"""Keeps the objects of one resource of one namespace, by list and watch, for as long as it is entered."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from adsum.tasks import cancel_and_wait
from discovery.kubernetes.reflector import Reflector
from discovery.kubernetes.reflector_events import (
    ObjectDeleted,
    ObjectsListed,
    ObjectUpdated,
    ReflectorEvent,
    SyncLost,
    SyncRestored,
)
from discovery.kubernetes.reflector_loop import ReflectorLoop
from discovery.kubernetes.refusal import explain_refusal, rule_for
from discovery.kubernetes.resource_decoder import json_decoder
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport

_log = logging.getLogger(__name__)


class Informer:
    """A `ReflectorReader`. It retries for ever; meanwhile the last known objects stay.

    `path`: `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE`. `selector`: a label selector, "" for all. `name`: only the
    object of that name. `quiet`: whoever reads `problem` logs it.

    `on_change()` is called after `objects`, `synced` or `problem` changed.
    """

    def __init__(  # noqa: PLR0913  # the last two by name
        self,
        transport: ApiTransport,
        path: str,
        selector: str,
        on_change: Callable[[], object],
        timings: Timings | None = None,
        *,
        name: str = "",
        quiet: bool = False,
    ) -> None:
        self.synced = False
        """A list has arrived; before that `objects` is empty."""
        self.problem: str | None = None
        """Why `objects` may be out of date: on a 403 the rule that the Role lacks, on a 404 the missing CRD."""
        self.problem_code: int | None = None
        """The HTTP status behind `problem`; None without an answer."""
        self._objects: dict[str, dict[str, Any]] = {}
        self._transport = transport
        self._path = path
        self._rule, self._namespace = rule_for(path)
        self._on_change = on_change
        self._timings = timings or Timings()
        self._selection = {"labelSelector": selector} if selector else {}
        if name:
            # A Role with resourceNames allows list and watch with this selector only (Kubernetes' page on RBAC)
            self._selection["fieldSelector"] = f"metadata.name={name}"
        self._quiet = quiet
        self._task: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, dict[str, Any]]:
        """The objects by name, as in JSON. Not to be changed."""
        return self._objects

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"informer {self._path}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def apply(self, events: Iterable[ReflectorEvent[dict[str, Any]]]) -> None:
        changed = False
        for event in events:
            changed |= self._apply_one(event)
        if changed:
            self._on_change()

    def sync_restored(self, event: SyncRestored) -> None:
        if self._set_problem(None):
            self._on_change()

    async def _run(self) -> None:
        while True:
            reflector = Reflector(self._selection, json_decoder(), self._timings)
            try:
                await ReflectorLoop(reflector, self._transport, self._path, self._timings, self).run()
            except Exception as error:  # noqa: BLE001 -- a fault of ours or of `on_change` must not end the updates
                _log.error("cannot follow %s: unexpected error", self._path, exc_info=error)
                self.problem = f"unexpected error: {error!r}"
            await asyncio.sleep(self._timings.backoff[1])

    def _apply_one(self, event: ReflectorEvent[dict[str, Any]]) -> bool:
        """Returns whether anything changed."""
        self.problem_code = event.code if isinstance(event, SyncLost) else None
        if isinstance(event, SyncLost):
            return self._set_problem(self._explain(event))
        changed = self._set_problem(None)
        match event:
            case ObjectsListed(listed):
                before, was_synced = self._objects, self.synced
                self._objects = {found["metadata"]["name"]: found for found in listed}
                self.synced = True
                return changed or not was_synced or before != self._objects
            case ObjectUpdated(found):
                self._objects = self._objects | {found["metadata"]["name"]: found}
                return True
            case ObjectDeleted(name):
                self._objects = {key: kept for key, kept in self._objects.items() if key != name}
                return True
        return changed

    def _explain(self, lost: SyncLost) -> str:
        refused = explain_refusal(lost.code, lost.reason, self._rule, self._namespace)
        return f"{self._rule.qualified}: {refused}"

    def _set_problem(self, problem: str | None) -> bool:
        """Returns whether it changed; logs changes."""
        before, self.problem = self.problem, problem
        if before == problem:
            return False
        if self._quiet:
            return True
        if problem is not None:
            _log.warning("cannot follow %s", problem)
        else:
            _log.info("%s can be followed again", self._rule.qualified)
        return True

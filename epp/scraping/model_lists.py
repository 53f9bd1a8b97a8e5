"""Asks workers that declare no models which they serve: by `GET /v1/models`, seldom, and again when the process changed."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Never

from yarl import URL

from adsum.addresses import authority
from adsum.logs import RateLimitedLog
from adsum.quoting import quoted
from adsum.tasks import wait_at_most
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metadata_feed import LINES_A_MINUTE
from epp.endpoints.models_page import MODELS_PATH
from epp.endpoints.served_model import ServedModel, read_model_list
from epp.scraping.page_client import NoAnswerError, PageClient, PageError

logger = logging.getLogger(__name__)

_CONCURRENT: Final = 16
"""GETs at once; those of all workers together start when the picker does."""
_BUFFER_BYTES: Final = 64 * 1024
_NAMED: Final = 5
"""Models in one log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListRules:
    """Seconds between two GETs to one worker: `interval`, or `retry` after one without an answer, doubled up to `interval`.

    `timeout`: seconds, and `limit`: bytes, of one answer. `scheme`: of each GET; None: https for an endpoint whose metrics
    page, on the same port, is an https one.
    """

    scheme: str | None = None
    path: str = MODELS_PATH

    interval: float = 60.0
    retry: float = 1.0
    timeout: float = 5.0
    limit: int = 1024 * 1024


class ModelLists:
    """Keeps `Endpoint.listed_models` of a datastore's endpoints while `run` runs.

    `tls`: asked for each GET by https. Both may be set while it runs, for the GETs from then on.
    """

    def __init__(
        self,
        datastore: Datastore,
        rules: ModelListRules,
        rng: random.Random,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._datastore = datastore
        self.rules = rules
        self._rng = rng
        self.tls = tls
        self._limited_log = RateLimitedLog(logger, most=LINES_A_MINUTE)
        self._free = asyncio.Semaphore(_CONCURRENT)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._tasks: dict[_Asked, asyncio.Task[None]] = {}
        self._replaced: dict[tuple[str, str], asyncio.Event] = {}
        self._declared: dict[tuple[str, str], frozenset[str]] = {}

    async def run(self) -> Never:
        """Ask every endpoint of the datastore that declares no models, until cancelled."""
        changed = asyncio.Event()
        self._datastore.on_change.append(changed.set)
        self._datastore.on_reset.append(self._process_ended)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._reconcile(group)
                    await changed.wait()
                    changed.clear()
        finally:
            self._datastore.on_change.remove(changed.set)
            self._datastore.on_reset.remove(self._process_ended)
            self._tasks.clear()

    def _process_ended(self, endpoint: Endpoint) -> None:
        if (replaced := self._replaced.get(endpoint.key)) is not None:
            replaced.set()

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        endpoints = self._datastore.endpoints
        wanted = {_Asked.of(endpoint): endpoint for endpoint in endpoints if not endpoint.models}
        for asked in self._tasks.keys() - wanted.keys():
            self._tasks.pop(asked).cancel()
        for asked in wanted.keys() - self._tasks.keys():
            self._tasks[asked] = group.create_task(
                self._follow(asked, wanted[asked]), name=f"models {asked.address}"
            )
        self._log_declared(endpoints)

    def _log_declared(self, endpoints: Sequence[Endpoint]) -> None:
        declared = {endpoint.key: endpoint for endpoint in endpoints if endpoint.models}
        for key, endpoint in declared.items():
            if self._declared.get(key) != endpoint.models:
                names = _names(sorted(endpoint.models))
                self._limited_log.info(
                    "declared",
                    "%s (%s) serves %s, as its metadata say",
                    endpoint.id,
                    endpoint.destination,
                    names,
                )
        self._declared = {key: endpoint.models for key, endpoint in declared.items()}

    async def _follow(self, asked: "_Asked", endpoint: Endpoint) -> None:
        replaced = self._replaced[endpoint.key] = asyncio.Event()
        told: tuple[ServedModel, ...] | _Unknown | None = None
        failures = 0
        try:
            while True:
                replaced.clear()
                said = _dated_as_before(await self._ask(asked), told)
                # without an answer the last one counts: the worker may only be busy
                for_now = isinstance(said, _Unknown) and said.for_now
                failures = failures + 1 if for_now else 0
                if not for_now:
                    self._datastore.set_listed_models(endpoint, () if isinstance(said, _Unknown) else said)
                if told is None or (told != said and not for_now):
                    told = said
                    self._limited_log.info(
                        "listed", "%s (%s) %s", endpoint.id, asked.destination, _describe(said)
                    )
                await self._rest(replaced, failures)
        finally:
            if self._replaced.get(endpoint.key) is replaced:
                del self._replaced[endpoint.key]

    async def _ask(self, asked: "_Asked") -> "tuple[ServedModel, ...] | _Unknown":
        rules = self.rules
        try:
            url = URL(f"{rules.scheme or asked.scheme}://{asked.destination}{rules.path}", encoded=True)
            client = PageClient(
                url,
                self._buffer,
                tls=self.tls(),
                timeout=rules.timeout,
                limit=rules.limit,
                accept="application/json",
            )
            async with self._free:
                try:
                    body = await client.get()
                finally:
                    client.close()
            return read_model_list(body)
        except PageError as error:
            starting = error.status is not None and error.status >= 500 and error.status != 501
            return _Unknown(str(error), for_now=starting or isinstance(error, NoAnswerError))
        except ValueError as error:
            return _Unknown(str(error))
        except Exception as error:  # noqa: BLE001  # an answer is untrusted: whatever it has, this task goes on
            return _Unknown(f"the answer cannot be read: {type(error).__name__}: {str(error)[:200]}")

    async def _rest(self, replaced: asyncio.Event, failures: int) -> None:
        """Wait for the next GET, or until the process was replaced, but no shorter than a retry."""
        rules = self.rules
        pause = (
            rules.interval
            if not failures
            else min(rules.interval, rules.retry * 2.0 ** min(failures - 1, 16))
        )
        pause *= self._rng.uniform(0.9, 1.1)
        least = min(pause, rules.retry)
        await asyncio.sleep(least)
        await wait_at_most(pause - least, replaced)


class _Asked(NamedTuple):
    """Identifies the task of one worker: its incarnation and where it serves."""

    key: tuple[str, str]
    scheme: str
    address: str
    port: int

    @classmethod
    def of(cls, endpoint: Endpoint) -> "_Asked":
        # the scheme is known for the page of metrics only
        scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
        return cls(endpoint.key, scheme, endpoint.address, endpoint.port)

    @property
    def destination(self) -> str:
        return authority(self.address, self.port)


class _Unknown(NamedTuple):
    """Why the models of a worker are unknown. `for_now`: it did not answer, or is starting."""

    reason: str
    for_now: bool = False


def _dated_as_before(
    said: "tuple[ServedModel, ...] | _Unknown", before: "tuple[ServedModel, ...] | _Unknown | None"
) -> "tuple[ServedModel, ...] | _Unknown":
    """With the date of each model's first listing: vLLM and LMDeploy date their models anew in every answer."""
    if isinstance(said, _Unknown) or isinstance(before, _Unknown) or before is None:
        return said
    dates = {model.id: model.created for model in before}
    return tuple([replace(model, created=dates.get(model.id, model.created)) for model in said])


def _describe(said: "tuple[ServedModel, ...] | _Unknown") -> str:
    if isinstance(said, _Unknown):
        return f"is asked for every model, because its models are unknown: GET {MODELS_PATH}: {said.reason}"
    if not said:
        return f"is asked for every model, because its {MODELS_PATH} lists none"
    return f"serves {_names([model.id for model in said])}, as its {MODELS_PATH} says"


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(quoted(name) for name in names[:_NAMED]) + rest

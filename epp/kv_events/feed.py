"""Follows the KV events of all workers of a datastore, if the configuration in force has a plugin that reads them."""

import asyncio
import importlib.util
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never

from yarl import URL

from adsum.addresses import authority
from adsum.config.problems import ConfigError
from adsum.logs import RateLimitedLog
from adsum.tasks import BackgroundTasks, ResourceOwner, first_of, wait_at_most
from epp.config.picker_config import PickerConfig
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, Key, KvEventPorts
from epp.endpoints.load import Load
from epp.kv_events.publishers import (
    SGLANG_PATH,
    SLEEP_PATH,
    VLLM_PATH,
    KvPublisher,
    publisher_at,
    publishers_said,
    read_publishers,
    read_sleep,
)
from epp.kv_events.subscriptions import WorkerSubscriptions
from epp.scheduling.kv_events.event_stream import KvEventStream
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.kv_events.settings import KvEventSettings
from epp.scheduling.kv_events.snapshot import CacheSnapshot
from epp.scraping.page_client import NoPageError, PageClient, PageError

if TYPE_CHECKING:
    import zmq.asyncio

    from epp.kv_events.tokens import WorkerTokens

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_MOST_ANSWER: Final = 1024 * 1024
_BUFFER_BYTES: Final = 64 * 1024
_ASK_AGAIN: Final = 60.0
_ASK_SELDOM: Final = 3600.0
"""Seconds until a worker that has said where it publishes, or that it does not, is asked again: at first, and at last."""
_RETRY: Final = 1.0
_RETRY_SELDOM: Final = 30.0
"""The same of one that gave no answer, or another one, as a 401 of a worker that wants a key."""
_ASKED: Final = 32
"""Workers that are asked at once."""
_SLEEP_PAUSE: Final = 1.0
"""Seconds between two looks whether a worker sleeps, if it can."""
_REPLAYS: Final = 8
"""Workers whose replay is read at once, as in the Go picker: so many hold what they publish meanwhile."""
_LINES_A_MINUTE: Final = 100


class KvEventFeed(ResourceOwner):
    """An async context manager. A `ConfiguredPart`: what a plugin of it reads is followed; without one it costs nothing.

    `wake`: lets what waits for tokens have its turn. `tls`: for workers that are asked over https.
    """

    def __init__(
        self,
        config: PickerConfig,
        datastore: Datastore,
        wake: Callable[[], None],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._datastore = datastore
        self._wake = wake
        self._tls = tls
        self._producer: PrecisePrefixCacheProducer | None = None
        self._changed = asyncio.Event()
        self._following: _FollowedPool | None = None
        self.ask_peers: Callable[[Key, str], Awaitable[CacheSnapshot | None]] = no_peers
        """For what other pickers know of a worker's publisher."""
        self.prepare(config)()

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        found = [one for one in config.scheduler.producers if isinstance(one, PrecisePrefixCacheProducer)]
        if found and found[0].settings.optional and importlib.util.find_spec("zmq") is None:
            found = []
        if found:
            _check_installed(found[0].settings)
        return partial(self._use, found[0] if found else None)

    def describe(self) -> dict[str, Any]:
        """A part of /status: what is known of each worker's cache."""
        if self._producer is None:
            return {}
        return {"kv_events": _describe(self._producer)}

    async def _open(self) -> None:
        self._start(self._run())

    def _use(self, producer: PrecisePrefixCacheProducer | None) -> None:
        if producer is not self._producer:
            self._producer = producer
            self._changed.set()

    async def _run(self) -> Never:
        while True:
            self._changed.clear()
            if self._producer is None:
                await self._changed.wait()
            else:
                following = _FollowedPool(
                    self._producer, self._datastore, self._wake, self._tls, lambda *of: self.ask_peers(*of)
                )
                self._following = following
                await following.run(until=self._changed)
                self._following = None

    async def snapshot(self, key: Key, events: str) -> CacheSnapshot | None:
        """The blocks that the worker's publisher at that address announced, for another picker; None: not all are known."""
        return None if self._following is None else await self._following.snapshot(key, events)

    @property
    def most_blocks(self) -> int:
        """That are known at once."""
        return 0 if self._producer is None else self._producer.index.most_blocks


class _FollowedPool:
    """Follows the workers for one plugin."""

    def __init__(
        self,
        producer: PrecisePrefixCacheProducer,
        datastore: Datastore,
        wake: Callable[[], None],
        tls: Callable[[], ssl.SSLContext | None],
        ask_peers: Callable[[Key, str], Awaitable[CacheSnapshot | None]],
    ) -> None:
        self._ask_peers = ask_peers
        self._producer = producer
        self._datastore = datastore
        self._wake = wake
        self._tls = tls
        self._buffer = bytearray(_BUFFER_BYTES)
        self._asked = asyncio.Semaphore(_ASKED)
        self._context: zmq.asyncio.Context | None = None
        self._tokens: WorkerTokens | None = None
        self._changed = asyncio.Event()
        self._replays = asyncio.Semaphore(_REPLAYS)
        self._log = RateLimitedLog(log, most=_LINES_A_MINUTE)
        # bounded: by the workers
        self._tasks: dict[_FollowedWorker, asyncio.Task[None]] = {}
        self._reset: dict[Key, asyncio.Event] = {}
        self._published_here: dict[Key, KvEventStream] = {}
        self._running: dict[Key, WorkerSubscriptions] = {}

    async def run(self, until: asyncio.Event) -> None:
        changed, datastore = self._changed, self._datastore
        datastore.on_change.append(changed.set)
        datastore.on_reset.append(self._on_reset)
        try:
            async with AsyncExitStack() as stack:
                owned = BackgroundTasks()
                stack.push_async_callback(owned.aclose)
                self._listen(owned)
                while not until.is_set():
                    changed.clear()
                    self._reconcile(owned)
                    if self._context is not None:
                        tokens = self._tokens = self._tokens or await self._token_source(stack)
                        tokens.retain({endpoint.key for endpoint in datastore.endpoints})
                    await first_of(changed.wait(), until.wait())
        finally:
            datastore.on_change.remove(changed.set)
            datastore.on_reset.remove(self._on_reset)
            self._forget_published_here(set())
            if self._context is not None:
                self._context.destroy(linger=0)

    def _sockets(self) -> "zmq.asyncio.Context":
        """Made for the first worker that publishes: where none does, ZeroMQ is not loaded and nobody is asked for tokens."""
        import zmq.asyncio

        if self._context is None:
            self._context = zmq.asyncio.Context()
            self._changed.set()
        return self._context

    async def _token_source(self, stack: AsyncExitStack) -> "WorkerTokens":
        import aiohttp

        from epp.kv_events.tokens import WorkerTokens

        producer = self._producer
        session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        await stack.enter_async_context(session)
        files, settings = None, producer.settings
        if settings.tokenizers:
            from epp.kv_events.tokenizer_files import TokenizerFiles

            files = TokenizerFiles(settings.tokenizers)
            stack.callback(files.close)
        tokens = WorkerTokens(
            self._datastore, session, producer.tokens_found, self._wake, settings.token_wait, files
        )
        stack.push_async_callback(tokens.aclose)
        producer.ask_for_tokens = tokens.ask
        stack.callback(setattr, producer, "ask_for_tokens", None)
        return tokens

    def _pushed(self, endpoint: Endpoint, load: Load) -> None:
        self._datastore.observe_pushed(endpoint, load, time.monotonic())

    async def snapshot(self, key: Key, events: str) -> CacheSnapshot | None:
        running = self._running.get(key)
        subscriber = None if running is None else running.subscribers.get(events)
        return None if subscriber is None else await subscriber.slices.run(subscriber.stream.snapshot())

    def _listen(self, owned: BackgroundTasks) -> None:
        """Where workers connect to the picker, if they do."""
        settings = self._producer.settings
        if settings.bind is not None:
            from epp.kv_events.subscriber import BoundSubscriber

            bound = BoundSubscriber(self._sockets(), settings.bind, settings.topic, self._stream_of)
            owned.start(bound.run(), f"KV events at {settings.bind}")

    def _stream_of(self, name: str) -> KvEventStream | None:
        """The stream of the worker that calls itself by its id or its address, when it publishes to the picker."""
        found = [one for one in self._datastore.endpoints if name in (one.id, one.destination, one.address)]
        if len(found) != 1:
            return None
        key = found[0].key
        stream = self._published_here.get(key)
        if stream is None:
            stream = self._published_here[key] = self._producer.open_stream(key, can_replay=False)
        return stream

    def _forget_published_here(self, present: set[Key]) -> None:
        """By workers that are absent."""
        for key in self._published_here.keys() - present:
            self._producer.remove_stream(key, self._published_here.pop(key))

    def _on_reset(self, endpoint: Endpoint) -> None:
        if (reset := self._reset.get(endpoint.key)) is not None:
            reset.set()

    def _reconcile(self, owned: BackgroundTasks) -> None:
        self._forget_published_here({endpoint.key for endpoint in self._datastore.endpoints})
        wanted = {_FollowedWorker.of(endpoint): endpoint for endpoint in self._datastore.endpoints}
        for gone in self._tasks.keys() - wanted.keys():
            self._tasks.pop(gone).cancel()
        for worker in wanted.keys() - self._tasks.keys():
            self._tasks[worker] = owned.start(
                self._follow(worker, wanted[worker]), f"KV events of {worker.address}"
            )

    async def _follow(self, worker: "_FollowedWorker", endpoint: Endpoint) -> Never:
        """Find the worker's sockets, again when its process was replaced, and seldom otherwise; read them meanwhile."""
        reset = self._reset[worker.key] = asyncio.Event()
        told: tuple[KvPublisher, ...] | str | None = None
        running = self._running[worker.key] = WorkerSubscriptions(
            self._producer, worker.key, endpoint.id, self._sockets, self._replays, self._ask_peers
        )
        running.on_load = partial(self._pushed, endpoint)
        watching = BackgroundTasks()
        pauses = _Pauses()
        try:
            while True:
                if reset.is_set():
                    await running.close()
                    reset.clear()
                    pauses = _Pauses()
                async with self._asked:
                    found = await self._find(worker)
                if found != told:
                    self._log.info("found", "%s (%s) %s", endpoint.id, worker.destination, _in_words(found))
                    told = found
                if not isinstance(found, str):
                    await running.use(found)
                if running.subscribers and not len(watching):
                    watching.start(self._watch_sleep(worker, endpoint), f"sleep of {worker.address}")
                await wait_at_most(pauses.after(found), reset)
        finally:
            await watching.aclose()
            await running.close()
            self._forget(worker.key, running, reset)

    def _forget(self, key: Key, running: WorkerSubscriptions, reset: asyncio.Event) -> None:
        """Another task may follow it already, if it serves elsewhere now."""
        if self._running.get(key) is running:
            del self._running[key]
        if self._reset.get(key) is reset:
            del self._reset[key]

    async def _find(self, worker: "_FollowedWorker") -> tuple[KvPublisher, ...] | str:
        """Where it publishes; a text: why that is unknown for now."""
        settings = self._producer.settings
        if worker.ports is not None:
            return publishers_said(worker.ports, worker.address)
        if settings.port is not None:
            return (publisher_at(worker.address, settings.port + (worker.rank or 0), settings.topic),)
        for path in (VLLM_PATH, SGLANG_PATH):
            client = self._client(worker, path)
            try:
                return read_publishers(await client.get(), path, worker.address)
            except NoPageError:
                continue
            except PageError as error:
                return str(error)
            except ValueError as error:
                return f"{path}: {error}"
            finally:
                client.close()
        return ()

    async def _watch_sleep(self, worker: "_FollowedWorker", endpoint: Endpoint) -> None:
        """Until it says that it has no such page: then it cannot sleep."""
        client, slept = self._client(worker, SLEEP_PATH), False
        try:
            while True:
                try:
                    sleeps = read_sleep(await client.get())
                except NoPageError:
                    return
                except PageError:
                    sleeps = slept
                if sleeps and not slept:
                    self._log.info(
                        "slept", "%s (%s) sleeps, and holds no blocks", endpoint.id, worker.destination
                    )
                    self._producer.slept(endpoint)
                slept = sleeps
                await asyncio.sleep(_SLEEP_PAUSE)
        finally:
            client.close()

    def _client(self, worker: "_FollowedWorker", path: str) -> PageClient:
        return PageClient(
            URL(f"{worker.scheme}://{worker.destination}{path}", encoded=True),
            self._buffer,
            tls=self._tls(),
            timeout=_TIMEOUT,
            limit=_MOST_ANSWER,
            accept="application/json",
        )


class _Pauses:
    """How long to wait until a worker is asked again: longer each time."""

    def __init__(self) -> None:
        self._again = _ASK_AGAIN
        self._retry = _RETRY

    def after(self, found: tuple[KvPublisher, ...] | str) -> float:
        if isinstance(found, str):
            pause, self._retry = self._retry, min(2 * self._retry, _RETRY_SELDOM)
        else:
            pause, self._again, self._retry = self._again, min(2 * self._again, _ASK_SELDOM), _RETRY
        return pause


class _FollowedWorker(NamedTuple):
    """Identifies the task of one worker: its incarnation, where it serves, and where its metadata say that it publishes."""

    key: Key
    scheme: str
    address: str
    port: int
    rank: int | None
    ports: KvEventPorts | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> "_FollowedWorker":
        # the scheme is known for the page of metrics only
        scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
        return cls(endpoint.key, scheme, endpoint.address, endpoint.port, endpoint.rank, endpoint.kv_events)

    @property
    def destination(self) -> str:
        return authority(self.address, self.port)


async def no_peers(key: Key, events: str) -> None:
    """Stands for `ask_peers` while this picker knows no other."""


def _check_installed(settings: KvEventSettings) -> None:
    """Raises ConfigError, also for a file of a tokenizer that is not there."""
    place = "plugins: precise-prefix-cache-producer"
    needs = {"zmq": "kv"} | (
        {"tokenizers": "tokenizers", "jinja2": "tokenizers"} if settings.tokenizers else {}
    )
    for module, extra in needs.items():
        if importlib.util.find_spec(module) is None:
            problem = f"needs {module}, which is not installed: pip install 'adsum[{extra}]'"
            raise ConfigError(place, problem)
    for model, path in settings.tokenizers.items():
        if not Path(path).exists():
            problem = f"modelTokenizerMap: {path[:200]!r}, of {model[:100]!r}, is not there; expected a tokenizer.json or its folder"
            raise ConfigError(place, problem)


def _in_words(found: tuple[KvPublisher, ...] | str) -> str:
    if isinstance(found, str):
        return f"does not say where it publishes KV events, and is asked again: {found}"
    if not found:
        return "publishes no KV events: its prefix cache is estimated"
    return f"publishes KV events at {', '.join(one.events for one in found)}"


def _describe(producer: PrecisePrefixCacheProducer) -> dict[str, Any]:
    return {
        "blocks": len(producer.index),
        "confidence": {
            key[0]: {
                "confidence": round(trust.confidence, 3),
                "believed": trust.believed,
                "checks": trust.checks,
            }
            for key, trust in producer.trusts.by_key.items()
        },
        "tokens": {by.value: count for by, count in producer.tokens_by.items()},
        "workers": {
            key[0]: [
                {
                    "knowledge": one.knowledge.value,
                    "blocks": one.holdings.count,
                    "block_tokens": one.holdings.block_tokens,
                    "batches": one.batches,
                    "restarts": one.restarts,
                    "gaps": one.gaps,
                    "unplaced": one.holdings.orphans,
                    "refused": one.holdings.refused,
                }
                for one in streams
            ]
            for key, streams in producer.streams().items()
        },
    }

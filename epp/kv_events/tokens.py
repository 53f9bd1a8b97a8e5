"""Asks workers for the tokens of a prompt: chat templates and tokenizers are theirs.

vLLM renders a request as it would be computed (`/v1/chat/completions/render`); others, and older versions, have `/tokenize`.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from xxhash import xxh3_128_digest

from adsum.tasks import BackgroundTasks
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, Key
from epp.request.inference_api import api_of
from epp.request.inference_request import InferenceRequest
from epp.scheduling.kv_events.prompt_tokens import are_tokens

log = logging.getLogger(__name__)

_CONCURRENT: Final = 64
"""Requests for tokens at once; a prompt that comes beyond them is estimated."""
_MOST_ANSWER: Final = 16 * 1024 * 1024
_MOST_ERROR: Final = 4096
"""Bytes of an error that are read."""
_MOST_KEPT: Final = 32 * 1024 * 1024
"""Bytes of tokens that are remembered."""
_TOKEN_BYTES: Final = 40
"""Of one token in a list."""
_MOST_BODY: Final = 4 * 1024 * 1024
"""Bytes of a request; what is longer is estimated."""
_TIMEOUT: Final = 5.0
"""Seconds: an answer that is late for this request is not for the next equal one."""
_RENDERED: Final = ("chat/completions", "completions", "responses")
_FORGET: Final = 60.0
"""Seconds until a worker without such an endpoint is asked again."""


class _Rendered(msgspec.Struct):
    """vLLM's GenerateRequest, or the answer of `/tokenize`."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    tokens: list[Any] | None = None


_ONE: Final = msgspec.json.Decoder(_Rendered)
_SEVERAL: Final = msgspec.json.Decoder(list[_Rendered])


def read_tokens(answer: bytes) -> list[int] | None:
    """The tokens of a prompt in an answer; None: there are none, or those of several prompts."""
    try:
        if answer[:1] == b"[":
            listed = _SEVERAL.decode(answer)
            if len(listed) != 1:
                return None
            one = listed[0]
        else:
            one = _ONE.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    tokens: Any = one.token_ids or one.prompt_token_ids or one.tokens
    if not tokens or not all(type(token) is int for token in tokens) or not are_tokens(tokens):
        return None
    return list(tokens)


class WorkerTokens:
    """Asks the workers of a datastore. `found`: told of the tokens of each request; `wake`: called after it."""

    def __init__(
        self,
        datastore: Datastore,
        session: aiohttp.ClientSession,
        found: Callable[[InferenceRequest, Sequence[int]], None],
        wake: Callable[[], None],
    ) -> None:
        self._datastore = datastore
        self._session = session
        self._found = found
        self._wake = wake
        self._rng = random.Random()
        self._tasks = BackgroundTasks()
        # bounded: _MOST_KEPT bytes
        self._kept: OrderedDict[bytes, Sequence[int]] = OrderedDict()
        self._kept_bytes = 0
        # bounded: by the workers, twice
        self._lacks: dict[tuple[Key, str], float] = {}
        self.asked = self.failed = 0

    def ask(self, request: InferenceRequest) -> bool:
        """Begin to find out the tokens of its prompt; whether there is hope. `found` may be called at once."""
        body, api = request.body, api_of(request.path)
        if body is None or api not in _RENDERED or not 0 < len(body) <= _MOST_BODY:
            return False
        key = xxh3_128_digest(bytes(body) + request.path.encode("utf-8", "surrogateescape"))
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self._found(request, kept)
            return True
        endpoint = self._choose(request.model)
        if endpoint is None or len(self._tasks) >= _CONCURRENT:
            return False
        self._tasks.start(self._find(request, endpoint, bytes(body), key, api), "tokens of a prompt")
        return True

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def retain(self, keys: set[Key]) -> None:
        """Other workers are gone."""
        for known in [one for one in self._lacks if one[0] not in keys]:
            del self._lacks[known]

    def _choose(self, model: str) -> Endpoint | None:
        """Any worker that serves the model, is reachable and has such an endpoint."""
        endpoints, serving = self._datastore.endpoints, self._datastore.serving(model)
        usable = [
            endpoint
            for row, endpoint in enumerate(endpoints)
            if (serving is None or serving[row])
            and endpoint.reachable
            and not self._datastore.is_lost(endpoint)
        ]
        now = asyncio.get_running_loop().time()
        able = [one for one in usable if not self._has_none(one.key, now)]
        return self._rng.choice(able) if able else None

    def _has_none(self, key: Key, now: float) -> bool:
        return all(self._lacks.get((key, kind), 0.0) > now for kind in ("render", "tokenize"))

    async def _find(
        self, request: InferenceRequest, endpoint: Endpoint, body: bytes, key: bytes, api: str
    ) -> None:
        self.asked += 1
        try:
            tokens = await self._ask(endpoint, f"{request.path}/render", "render", body)
            if tokens is None and api != "responses":
                tokens = await self._ask(endpoint, "/tokenize", "tokenize", body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s gave no tokens: %s", endpoint.id, type(error).__name__)
            tokens = None
        if tokens is None:
            self.failed += 1
            self._found(request, ())
        else:
            self._keep(key, tokens)
            self._found(request, tokens)
        self._wake()

    async def _ask(self, endpoint: Endpoint, path: str, kind: str, body: bytes) -> list[int] | None:
        """None: the worker has no such endpoint, or no tokens."""
        lacks, now = (endpoint.key, kind), asyncio.get_running_loop().time()
        if self._lacks.get(lacks, 0.0) > now:
            return None
        scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
        url = f"{scheme}://{endpoint.destination}{path}"
        headers = {"content-type": "application/json"}
        limit = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with self._session.post(
            url, data=body, headers=headers, timeout=limit, allow_redirects=False
        ) as answer:
            if answer.status in (404, 405, 501):
                begun = await answer.content.read(_MOST_ERROR)
                # what a client asked for says nothing of the worker: a model that is not there is a 404 too, with an error in it
                if b'"error"' not in begun:
                    self._lacks[lacks] = now + _FORGET
                return None
            if answer.status != 200:
                return None
            read = bytearray()
            async for chunk in answer.content.iter_chunked(64 * 1024):
                read += chunk
                if len(read) > _MOST_ANSWER:
                    return None
        return read_tokens(bytes(read))

    def _keep(self, key: bytes, tokens: Sequence[int]) -> None:
        if key not in self._kept:
            self._kept_bytes += len(tokens) * _TOKEN_BYTES
        self._kept[key] = tokens
        while self._kept_bytes > _MOST_KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest) * _TOKEN_BYTES

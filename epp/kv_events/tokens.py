"""Asks workers for the tokens of a prompt: chat templates and tokenizers are theirs. Else the model's files give them, if there are any.

vLLM renders a request as it would be computed (`/v1/chat/completions/render`); others, and older versions, have `/tokenize`.
"""

import asyncio
import logging
import random
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec
from xxhash import xxh3_128_digest

from adsum.tasks import BackgroundTasks
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, Key
from epp.kv_events.time_slices import TimeSlices
from epp.request.inference_api import api_of
from epp.request.inference_request import InferenceRequest
from epp.scheduling.kv_events.batches import Steps
from epp.scheduling.kv_events.prompt_tokens import TokensBy

if TYPE_CHECKING:
    from epp.kv_events.tokenizer_files import TokenizerFiles

log = logging.getLogger(__name__)

_CONCURRENT: Final = 64
"""Requests for tokens at once; a prompt that comes beyond them is estimated."""
_MOST_ANSWER: Final = 8 * 1024 * 1024
_PIECE: Final = 64 * 1024
"""Bytes of numbers that are read in one go, in a millisecond."""
_MOST_ERROR: Final = 4096
"""Bytes of an error that are read."""
_MOST_KEPT: Final = 32 * 1024 * 1024
"""Bytes of tokens that are remembered."""
_ENTRY_BYTES: Final = 200
"""Bytes that one prompt takes beside its tokens."""
_MOST_BODY: Final = 4 * 1024 * 1024
"""Bytes of a request; what is longer is estimated."""
_TIMEOUT: Final = 5.0
"""Seconds: an answer that is late for this request is not for the next equal one."""
_SHARE: Final = 0.5
"""A share of the time that a pick waits: what a worker has to answer in, where the model's files can be asked after it."""
_RENDERED: Final = ("chat/completions", "completions", "responses")
_FORGET: Final = 60.0
"""Seconds until a worker without such an endpoint is asked again."""


class _Rendered(msgspec.Struct):
    """vLLM's GenerateRequest, or the answer of `/tokenize`."""

    token_ids: msgspec.Raw = msgspec.Raw(b"")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")
    tokens: msgspec.Raw = msgspec.Raw(b"")


_ONE: Final = msgspec.json.Decoder(_Rendered)
_SEVERAL: Final = msgspec.json.Decoder(list[_Rendered])
_NUMBERS: Final = msgspec.json.Decoder(list[int])
_NONE: Final = (b"", b"null", b"[]")


def read_tokens(answer: bytes) -> Steps[bytes | None]:
    """The tokens of a prompt in an answer, 32 bits each; None: there are none, or those of several prompts."""
    try:
        if answer[:1] == b"[":
            listed = _SEVERAL.decode(answer)
            if len(listed) != 1:
                return None
            one = listed[0]
        else:
            one = _ONE.decode(answer)
        given = (bytes(raw) for raw in (one.token_ids, one.prompt_token_ids, one.tokens))
        return (yield from _numbers(next((raw for raw in given if raw not in _NONE), b"")))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        return None


def _numbers(text: bytes) -> Steps[bytes | None]:
    """A list of numbers piece by piece: the whole would stop the picker for a tenth of a second."""
    if text[:1] != b"[":
        return None
    found, at, end = array("I"), 1, len(text) - 1
    while at < end:
        yield
        cut = text.find(b",", min(at + _PIECE, end))
        found.extend(_NUMBERS.decode(b"[" + text[at : cut if cut >= 0 else end] + b"]"))
        at = cut + 1 if cut >= 0 else end
    return found.tobytes() or None


class WorkerTokens:
    """Asks the workers of a datastore, then `files`. `found`: told of the tokens of each request; `wake`: called after it.

    `longest`: seconds that a pick waits.
    """

    def __init__(
        self,
        datastore: Datastore,
        session: aiohttp.ClientSession,
        found: Callable[[InferenceRequest, bytes, TokensBy], None],
        wake: Callable[[], None],
        longest: float,
        files: "TokenizerFiles | None" = None,
    ) -> None:
        self._longest = longest
        self._files = files
        self._datastore = datastore
        self._session = session
        self._found = found
        self._wake = wake
        self._rng = random.Random()
        self._tasks = BackgroundTasks()
        # bounded: _MOST_KEPT bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        # bounded: by the workers, twice
        self._lacks: dict[tuple[Key, str], float] = {}

    def ask(self, request: InferenceRequest) -> bool:
        """Begin to find out the tokens of its prompt; whether there is hope. `found` may be called at once."""
        body, api = request.body, api_of(request.path)
        if body is None or api not in _RENDERED or not 0 < len(body) <= _MOST_BODY:
            return False
        key = xxh3_128_digest(bytes(body) + request.path.encode("utf-8", "surrogateescape"))
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self._found(request, kept, TokensBy.MEMORY)
            return True
        endpoint, files = self._choose(request.model), self._files
        if files is not None and not files.has(request.model):
            files = None
        if (endpoint is None and files is None) or len(self._tasks) >= _CONCURRENT:
            return False
        self._tasks.start(self._find(request, api, endpoint, files, bytes(body), key), "tokens of a prompt")
        return True

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def retain(self, keys: set[Key]) -> None:
        """Forget what workers lack that are not among these."""
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
        self,
        request: InferenceRequest,
        api: str,
        endpoint: Endpoint | None,
        files: "TokenizerFiles | None",
        body: bytes,
        key: bytes,
    ) -> None:
        tokens, by = None, TokensBy.WORKER
        if endpoint is not None:
            limit = _TIMEOUT if files is None else min(_TIMEOUT, _SHARE * self._longest)
            tokens = await self._ask_worker(request, endpoint, body, limit)
        if tokens is None and files is not None:
            tokens, by = await files.tokens(request.model, body, api), TokensBy.FILES
        if tokens is not None:
            self._keep(key, tokens)
            self._found(request, tokens, by)
        else:
            self._found(request, b"", TokensBy.NOBODY)
        self._wake()

    async def _ask_worker(
        self, request: InferenceRequest, endpoint: Endpoint, body: bytes, limit: float
    ) -> bytes | None:
        try:
            async with asyncio.timeout(limit):
                tokens = await self._ask(endpoint, f"{request.path}/render", "render", body)
                if tokens is None and api_of(request.path) != "responses":
                    tokens = await self._ask(endpoint, "/tokenize", "tokenize", body)
                return tokens
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s gave no tokens: %s", endpoint.id, type(error).__name__)
            return None

    async def _ask(self, endpoint: Endpoint, path: str, kind: str, body: bytes) -> bytes | None:
        """None: the worker has no such endpoint, or no tokens."""
        lacks, now = (endpoint.key, kind), asyncio.get_running_loop().time()
        if self._lacks.get(lacks, 0.0) > now:
            return None
        scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
        url = f"{scheme}://{endpoint.destination}{path}"
        headers = {"content-type": "application/json"}
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
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
        return await TimeSlices().run(read_tokens(bytes(read)))

    def _keep(self, key: bytes, tokens: bytes) -> None:
        if key not in self._kept:
            self._kept_bytes += len(tokens) + _ENTRY_BYTES
        self._kept[key] = tokens
        while self._kept_bytes > _MOST_KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest) + _ENTRY_BYTES

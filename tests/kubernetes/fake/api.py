"""A fake API server without sockets. `FakeApiServer` serves it over HTTP, `MemoryTransport` in this process."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from tests.kubernetes.fake.calls import Answer, Call, StatusError, expired, json_line, once, too_large
from tests.kubernetes.fake.faults import FaultScript, gzip_members
from tests.kubernetes.fake.kinds import (
    GROUPS,
    KINDS,
    about,
    discovered,
    group_of,
    is_discovery,
    plural_of,
    qualified,
    typed,
)
from tests.kubernetes.fake.reviews import Reviews
from tests.kubernetes.fake.rv_log import ExpiredError, Object, RvLog
from tests.kubernetes.fake.validation import ListOptions, check_slice
from tests.kubernetes.fake.watching import Limits, Watch

_OLD_PAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)
_GZIP_FROM = 128 * 1024


class FakeApi:
    """Lists, watches, gets and writes over one `RvLog`, as kube-apiserver 1.37 does. Times in seconds.

    `calls` are all requests so far; `faults` may answer instead. `allow_loopback`: slices may hold 127.0.0.x, which a
    real server refuses; for tests in which workers must answer.
    """

    def __init__(self, log: RvLog | None = None, *, allow_loopback: bool = False) -> None:
        self.log = log or RvLog()
        self.faults = FaultScript()
        self.calls: list[Call] = []
        self.watch_list = True
        """The gate; it is on since 1.34."""
        self.limits = Limits()
        self.page_size: int | None = None
        """The server pages lists though nobody asked for it."""
        self.too_large_wait = 3.0
        self.tokens: set[str] | None = None
        """Bearer tokens that are accepted; None: anybody."""
        self.allowed: set[tuple[str, str]] | None = None
        """(verb, resource) that RBAC grants; None: everything."""
        self.not_installed: set[str] = set()
        """Resources whose CustomResourceDefinition is missing."""
        self.poor: set[str] = set()
        """Tokens of accounts without any right."""
        self.reviews = Reviews()
        self._shutting_down = False
        self._open: set[Watch] = set()
        self._allow_loopback = allow_loopback

    @property
    def watches(self) -> int:
        """How many are open now."""
        return len(self._open)

    def shut_down(self) -> None:
        """As on SIGTERM: watches end cleanly, new requests get 429 with Retry-After, until `come_back`."""
        self._shutting_down = True
        self.end_watches()

    def end_watches(self) -> None:
        """All that are open end cleanly, without what was written in the same moment."""
        for watch in self._open:
            watch.end()

    def come_back(self) -> None:
        """As after a restart: the new watch cache begins now."""
        self._shutting_down = False
        self.log.forget()

    def asked(self, verb: str, since: int = 0, *, resource: str = "endpointslices") -> list[Call]:
        """The calls of that verb for the resource, from call number `since` on."""
        return [c for c in self.calls[since:] if c.verb == verb and c.resource == resource]

    async def answer(self, call: Call) -> Answer:
        """Never raises for what a client did; a fault may raise `CutError` or hang."""
        self.calls.append(call)
        fault = self.faults.take(call)
        answer = await (fault(call, self.serve) if fault else self.serve(call))
        answer.headers.setdefault("Audit-Id", str(len(self.calls)))
        return answer

    async def serve(self, call: Call) -> Answer:
        """The answer of a healthy server."""
        try:
            return await self._route(call)
        except StatusError as error:
            return Answer(error.code, once(json_line(error.status)), _json(error.headers))

    async def _route(self, call: Call) -> Answer:
        self._admit(call, needs_right=not is_discovery(call.path))
        if is_discovery(call.path) and (found := discovered(call.path, self.not_installed)) is not None:
            return Answer(200, once(json_line(found)))
        if (review := self.reviews.answer(call)) is not None:
            return review
        if call.resource not in KINDS and call.path.startswith(GROUPS):
            raise StatusError(404, "NotFound", "the server could not find the requested resource", about={})
        if call.resource not in KINDS or call.resource in self.not_installed:
            return Answer(404, once(b"404 page not found\n"), {"Content-Type": "text/plain; charset=utf-8"})
        if call.method != "GET":
            return self._write(call)
        if call.verb == "get":
            return Answer(200, once(json_line(self._named(call))))
        options = ListOptions.parse(call.params, watch_list=self.watch_list)
        return await (self._watch if options.watch else self._list)(call, options)

    def _admit(self, call: Call, *, needs_right: bool) -> None:
        if self._shutting_down:
            raise StatusError(
                429,
                "TooManyRequests",
                "The apiserver is shutting down, please try again later.",
                retry_after=1,
            )
        token = call.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        is_allowed = self.allowed is None or (call.verb, call.resource) in self.allowed
        if needs_right and (token in self.poor or not is_allowed):
            raise _forbidden(call)

    def _named(self, call: Call) -> Object:
        if obj := self.log.get(call.resource, call.namespace, call.name):
            return typed(call.resource, obj)
        raise _not_found(call, call.name)

    def _write(self, call: Call) -> Answer:
        if call.verb == "delete":
            gone = self._named(call)
            self.log.delete(call.resource, call.namespace, call.name)
            details = about(call.resource, call.name) | {"uid": gone["metadata"]["uid"]}
            done = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
            return Answer(200, once(json_line(done)))
        obj = json.loads(call.body)
        for given in ("kind", "apiVersion"):
            obj.pop(given, None)
        name = obj.setdefault("metadata", {})["name"]
        obj["metadata"]["namespace"] = call.namespace
        exists = self.log.get(call.resource, call.namespace, name) is not None
        if call.verb == "create" and exists:
            said = f'{qualified(call.resource)} "{name}" already exists'
            raise StatusError(409, "AlreadyExists", said, about=about(call.resource, name))
        if call.verb == "update" and not exists:
            raise _not_found(call, name)
        stored = typed(call.resource, self.put(call.resource, obj))
        return Answer(201 if call.verb == "create" else 200, once(json_line(stored)))

    def put(self, resource: str, obj: Object) -> Object:
        """Create or replace. Raises `StatusError` 422 as the server's validation does."""
        if resource == "endpointslices":
            check_slice(obj, allow_loopback=self._allow_loopback)
            obj = obj | {part: obj.get(part) or None for part in ("endpoints", "ports")}
        return self.log.put(resource, obj)

    async def _list(self, call: Call, options: ListOptions) -> Answer:
        at = self.log.rv
        start = ""
        if options.token:
            at, start = self._read_token(options.token)
        elif version := _listed_version(options.version):
            exact = options.match == "Exact" or (options.limit and not options.match)
            await self._wait_for(version)
            at = version if exact else self.log.rv
        try:
            found = self.log.objects(call.resource, call.namespace, options.selector, at=at)
        except ExpiredError as error:
            raise self._expired_list(options) from error
        return self._page(call, options, [o for o in found if o["metadata"]["name"] > start], at)

    async def _wait_for(self, version: int) -> None:
        wake = asyncio.Event()
        try:
            async with asyncio.timeout(self.too_large_wait):
                with self.log.listening(wake.set):
                    while self.log.rv < version:
                        wake.clear()
                        await wake.wait()
        except TimeoutError as error:
            raise too_large(version, self.log.rv) from error

    def _expired_list(self, options: ListOptions) -> StatusError:
        if not options.token:
            return expired("The resourceVersion for the provided list is too old.")
        _, start = self._read_token(options.token)
        return expired(_OLD_PAGE, _token(self.log.rv, start))

    def _page(self, call: Call, options: ListOptions, found: list[Object], at: int) -> Answer:
        kind, version = KINDS[call.resource]
        size = options.limit or self.page_size or len(found)
        page, rest = found[:size], found[size:]
        meta: dict[str, Any] = {"resourceVersion": str(at)}
        if rest:
            meta["continue"] = _token(at, page[-1]["metadata"]["name"])
            meta["remainingItemCount"] = len(rest)
        body = json_line({"kind": f"{kind}List", "apiVersion": version, "metadata": meta, "items": page})
        headers = _json({})
        if len(body) > _GZIP_FROM and _accepts_gzip(call):
            return Answer(200, once(gzip.compress(body)), headers | {"Content-Encoding": "gzip"})
        return Answer(200, once(body), headers)

    def _read_token(self, token: str) -> tuple[int, str]:
        try:
            at, start = json.loads(base64.urlsafe_b64decode(token))
        except ValueError as error:
            raise StatusError(
                400, "BadRequest", "invalid continue token: continue key is not valid"
            ) from error
        return int(at), str(start)

    async def _watch(self, call: Call, options: ListOptions) -> Answer:
        version = _version(options.version)
        answer = Answer(200, self._stream(call, options, version))
        # WatchListCompression, on since 1.37
        if options.initial_events and options.bookmarks and _accepts_gzip(call):
            answer.body = gzip_members(answer.body)
            answer.headers["Content-Encoding"] = "gzip"
        return answer

    async def _stream(self, call: Call, options: ListOptions, version: int) -> AsyncGenerator[bytes, None]:
        if not options.initial_events and version < self.log.oldest_watch:
            yield expired(f"too old resource version: {version} ({self.log.oldest_watch})").event()
            return
        watch = Watch(self.log, call, options, version, self.limits)
        self._open.add(watch)
        try:
            for line in watch.initial() if options.initial_events else ():
                yield line
            async with aclosing(watch.lines()) as lines:
                async for line in lines:
                    yield line
        finally:
            self._open.discard(watch)


def _not_found(call: Call, name: str) -> StatusError:
    said = f'{qualified(call.resource)} "{name}" not found'
    return StatusError(404, "NotFound", said, about=about(call.resource, name))


def _forbidden(call: Call) -> StatusError:
    user = f"system:serviceaccount:{call.namespace}:frontend"
    what = f'{qualified(call.resource)} "{call.name}"' if call.name else qualified(call.resource)
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    said = (
        f'{what} is forbidden: User "{user}" cannot {call.verb} resource "{plural_of(call.resource)}" '
        f'in API group "{group_of(call.resource)}" {where}'
    )
    return StatusError(403, "Forbidden", said, about=about(call.resource, call.name))


def _version(text: str) -> int:
    """0 for "" and "0"; to a watch what is no number is an internal error on a real server too (1.37, seen)."""
    try:
        return int(text or "0")
    except ValueError as error:
        said = (
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
        raise StatusError(500, "", said) from error


def _listed_version(text: str) -> int:
    try:
        return _version(text)
    except StatusError as error:
        raise StatusError(400, "BadRequest", f"invalid resource version: {error}") from error


def _token(at: int, start: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([at, start]).encode()).decode()


def _accepts_gzip(call: Call) -> bool:
    return "gzip" in call.headers.get("Accept-Encoding", "")


def _json(headers: Mapping[str, str]) -> dict[str, str]:
    return {"Content-Type": "application/json", **headers}

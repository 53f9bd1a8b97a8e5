"""The same requests put to an API server, real or fake, and what of the answers must be alike."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohttp

from tests.kubernetes.fake.objects import SERVICE, endpoint, endpoint_slice

Shape: TypeAlias = Any
_UNKEPT: Final = frozenset(["managedFields"])
"""What the fake does not keep: no client of ours reads it."""
_KEPT: Final = frozenset(
    [
        "kind",
        "apiVersion",
        "type",
        "code",
        "reason",
        "status",
        "addressType",
        "ready",
        "serving",
        "terminating",
        "field",
        "port",
        "protocol",
        "remainingItemCount",
        "retryAfterSeconds",
        "group",
        "name",
        "k8s.io/initial-events-end",
    ]
)
"""Keys whose values must be equal, not only of one type."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str | None]
    documents: list[Any]
    """One for an answer, the events of a watch in order."""

    def shape(self) -> Shape:
        shapes = [shape(document) for document in self.documents]
        if self.status == 400:
            shapes = [{**one, "message": "what a parser says of nonsense"} for one in shapes]
        distinct = [
            one for at, one in enumerate(shapes) if at == 0 or not _same_bookmark(shapes[at - 1], one)
        ]
        return {"status": self.status, **self.headers, "said": distinct}


class ApiSpeaker:
    """Puts requests to one server; `headers` show who asks."""

    def __init__(self, session: aiohttp.ClientSession, url: str, namespace: str, token: str) -> None:
        self._session = session
        self._url = url
        self.token = token
        self.namespace = namespace

    @property
    def slices(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **params: Any
    ) -> Reply:
        """`token`: "" for none."""
        async with self._asking(method, path, body, token, params) as answer:
            text = await answer.text()
            return _reply(answer, text.splitlines() if "watch" in params else [text])

    async def watch(
        self, then: Callable[[], Awaitable[object]], *, until: str | None = None, **params: Any
    ) -> Reply:
        """A watch during which `then` is called, to its end, or up to the first event of the slice `until`."""
        lines: list[str] = []
        async with self._asking("GET", self.slices, None, None, params | {"watch": "true"}) as answer:
            await then()
            async for line in answer.content:
                lines.append(line.decode())
                if until is not None and _decoded(lines[-1])["object"]["metadata"].get("name") == until:
                    break
            return _reply(answer, lines)

    @asynccontextmanager
    async def _asking(
        self, method: str, path: str, body: Any, token: str | None, params: Mapping[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        shown = self.token if token is None else token
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        asked = {name.rstrip("_"): str(value) for name, value in params.items()}
        async with self._session.request(
            method, self._url + path, json=body, params=asked, headers=headers, ssl=False
        ) as answer:
            yield answer

    async def get(self, path: str = "", /, **params: Any) -> Reply:
        return await self.ask("GET", path or self.slices, **params)

    async def put(self, name: str, *addresses: str, **how: Any) -> Reply:
        """A slice made by hand, created or replaced."""
        where = f"{self.slices}/{name}"
        made = self.made(name, *addresses, **how)
        exists = (await self.get(where)).status == 200
        return await (self.ask("PUT", where, made) if exists else self.ask("POST", self.slices, made))

    def made(self, name: str, *addresses: str, **how: Any) -> dict[str, Any]:
        endpoints = [endpoint(address, f"pod-{address[-1]}", ready=True) for address in addresses]
        made = endpoint_slice(name, *endpoints, namespace=self.namespace, **how)
        if not endpoints:
            made |= {"endpoints": [], "ports": []}
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        return kind | made

    async def version(self) -> int:
        return int((await self.get()).documents[0]["metadata"]["resourceVersion"])


def shape(thing: Any, key: str = "") -> Shape:
    """Keys, types and the values that matter; numbers in a message are all alike."""
    if isinstance(thing, dict):
        return {name: shape(value, name) for name, value in sorted(thing.items()) if name not in _UNKEPT}
    if isinstance(thing, list):
        return [shape(item, key) for item in thing]
    if key == "message":
        return re.sub(r"\d+", "N", re.sub(r"test-[\d-]+", "NS", str(thing)))
    return thing if key in _KEPT or thing is None else type(thing).__name__


def _reply(answer: aiohttp.ClientResponse, lines: Sequence[str]) -> Reply:
    seen = {name: answer.headers.get(name) for name in ("Content-Type", "Retry-After", "Content-Encoding")}
    seen["Audit-Id"] = "some" if answer.headers.get("Audit-Id") else None
    return Reply(answer.status, seen, [_decoded(line) for line in lines if line])


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _same_bookmark(before: Shape, after: Shape) -> bool:
    return before == after and isinstance(after, dict) and after.get("type") == "BOOKMARK"


async def lists(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
    """Lists of three slices, a, b and c, and of none."""
    yield "a list of none", await speaker.get(labelSelector="kubernetes.io/service-name=nobody")
    yield "a list", await speaker.get()
    by_service = f"kubernetes.io/service-name={SERVICE}"
    yield "a list by label", await speaker.get(labelSelector=by_service)
    yield "a list by name", await speaker.get(fieldSelector="metadata.name=b")
    yield "a selector with a set", await speaker.get(labelSelector="kubernetes.io/service-name in (x,y)")
    yield "one", await speaker.get(f"{speaker.slices}/a")
    yield "one that is not there", await speaker.get(f"{speaker.slices}/nobody")
    first = await speaker.get(limit=2)
    yield "the first page", first
    token = first.documents[0]["metadata"]["continue"]
    yield "the second page", await speaker.get(limit=2, continue_=token)
    yield "a page of nonsense", await speaker.get(limit=2, continue_="nonsense")
    now = await speaker.version()
    yield "any version", await speaker.get(resourceVersion=0)
    yield "not older", await speaker.get(resourceVersion=now, resourceVersionMatch="NotOlderThan")
    yield "exact", await speaker.get(resourceVersion=now, resourceVersionMatch="Exact")
    yield "a version of the future", await speaker.get(resourceVersion=now + 1_000_000)
    yield "no version", await speaker.get(resourceVersion="x")
    yield "no selector", await speaker.get(labelSelector="a=!")
    yield "no limit", await speaker.get(limit="many")
    yield "another field", await speaker.get(fieldSelector="spec.x=y")


async def invalid_parameters(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
    for params in (
        {"resourceVersionMatch": "NotOlderThan"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue_": "x"},
        {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
        {"sendInitialEvents": "true"},
        {"watch": "1", "resourceVersionMatch": "NotOlderThan"},
        {"watch": "1", "sendInitialEvents": "true"},
    ):
        yield f"contradiction {params}", await speaker.get(**params)


async def quiet_watch(speaker: ApiSpeaker, **params: Any) -> Reply:
    """A watch of some seconds, from the present if nobody says otherwise."""
    params.setdefault("resourceVersion", await speaker.version())
    return await speaker.get(watch="true", **{"timeoutSeconds": 2, **params})


async def watch_while(speaker: ApiSpeaker, change: Callable[[], Awaitable[object]], **params: Any) -> Reply:
    """A watch from the present, what is changed meanwhile, and the creation of one more, with which it ends."""
    since = await speaker.version()

    async def change_and_end() -> None:
        await change()
        await speaker.put("end", "10.244.9.99")

    reply = await speaker.watch(change_and_end, until="end", resourceVersion=since, **params)
    await speaker.ask("DELETE", f"{speaker.slices}/end")
    return reply


async def watches(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
    selected = {"labelSelector": f"kubernetes.io/service-name={SERVICE}"}
    yield "a quiet watch", await quiet_watch(speaker)
    yield "a quiet watch with bookmarks", await quiet_watch(speaker, allowWatchBookmarks="true")
    yield "a new one", await watch_while(speaker, lambda: speaker.put("w", "10.244.9.1"))
    yield "a changed one", await watch_while(speaker, lambda: speaker.put("w", "10.244.9.2"))
    yield "emptied", await watch_while(speaker, lambda: speaker.put("w"))
    yield (
        "it leaves the selection",
        await watch_while(speaker, lambda: speaker.put("w", service="x"), **selected),
    )
    yield "it joins the selection", await watch_while(speaker, lambda: speaker.put("w"), **selected)
    gone = await watch_while(speaker, lambda: speaker.ask("DELETE", f"{speaker.slices}/w"))
    yield "a deleted one", gone
    marks = {"allowWatchBookmarks": "true", "timeoutSeconds": 6, "resourceVersion": await speaker.version()}
    yield "bookmarks", await speaker.watch(lambda: speaker.put("w", "10.244.9.3"), **marks)
    await speaker.ask("DELETE", f"{speaker.slices}/w")
    yield "from nothing", await quiet_watch(speaker, resourceVersion="", allowWatchBookmarks="true")
    yield "from nothing, without bookmarks", await quiet_watch(speaker, resourceVersion="")
    yield "from zero", await quiet_watch(speaker, resourceVersion="0")
    begin = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    yield "watch list", await quiet_watch(speaker, resourceVersion="", **begin)
    future = await speaker.version() + 1_000_000
    silent = quiet_watch(speaker, resourceVersion=future, allowWatchBookmarks="true")
    yield "from the future", (await asyncio.gather(silent, speaker.put("a", "10.244.9.1")))[0]
    yield "from no version", await quiet_watch(speaker, resourceVersion="x")


async def refusals(speaker: ApiSpeaker, poor: str) -> AsyncIterator[tuple[str, Reply]]:
    """`poor`: the token of an account without rights."""
    yield "no token", await speaker.get(token="")
    yield "another token", await speaker.get(token="nonsense")
    yield "no right to list", await speaker.get(token=poor)
    yield "no right to watch", await speaker.get(token=poor, watch="true", resourceVersion=1)
    yield "no right to get", await speaker.get(f"{speaker.slices}/a", token=poor)
    yield "no right to ask what there is", await speaker.get("/apis/discovery.k8s.io/v1", token=poor)
    yield "the same of no group", await speaker.get("/apis/nothing.k8s.io/v1", token=poor)
    yield "no such kind", await speaker.get(speaker.slices.replace("endpointslices", "slices"))
    yield "no such group", await speaker.get(speaker.slices.replace("discovery.k8s.io", "nothing.k8s.io"))


async def writes(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
    where = f"{speaker.slices}/n"
    yield "create", await speaker.ask("POST", speaker.slices, speaker.made("n", "10.244.9.1"))
    yield "create again", await speaker.ask("POST", speaker.slices, speaker.made("n", "10.244.9.1"))
    yield "replace", await speaker.ask("PUT", where, speaker.made("n", "10.244.9.2"))
    yield "delete", await speaker.ask("DELETE", where)
    yield "delete again", await speaker.ask("DELETE", where)
    yield "replace nothing", await speaker.ask("PUT", where, speaker.made("n") | {"metadata": {"name": "n"}})
    for address in ("127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "fe80::1", "::1", "ten"):
        kind = "IPv6" if ":" in address else "IPv4"
        refused = await speaker.ask("POST", speaker.slices, speaker.made("x", address, kind=kind))
        yield f"an address that no pod has, {address}", refused
    mixed = speaker.made("x", "2001:db8::1")
    yield "the other family", await speaker.ask("POST", speaker.slices, mixed)
    unknown = speaker.made("x", "10.244.9.1", kind="IPX")
    yield "an unknown family", await speaker.ask("POST", speaker.slices, unknown)
    nowhere = speaker.made("x", "10.244.9.1")
    nowhere["endpoints"][0]["addresses"] = []
    yield "an endpoint without an address", await speaker.ask("POST", speaker.slices, nowhere)


async def compressed(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
    """A list of more than 128 KiB, for who can read it."""
    for name in ("y", "z"):
        addresses = [f"10.244.{i // 250}.{i % 250 + 1}" for i in range(500)]
        await speaker.put(name, *addresses)
    reply = await speaker.get()
    yield "a long list", Reply(reply.status, reply.headers, [])

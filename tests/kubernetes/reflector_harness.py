"""Drives a Reflector by hand: its requests, a server's answers, and a clock that the test moves."""

import json
import random
from typing import Any, TypeAlias

from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.reflector.recovery import ReflectorEvent
from discovery.kubernetes.reflector.reflector import Get, Reflector, Wait
from discovery.kubernetes.slices.decoding import EndpointSlice, SliceDecoder

Event: TypeAlias = ReflectorEvent[EndpointSlice]
JSON = {"Content-Type": "application/json"}


def status(code: int, reason: str = "", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": f"said {code}", "details": details}


TOO_LARGE = status(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge"}], retryAfterSeconds=1)


def a_slice(name: str = "s", version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "addressType": "IPv4"}


def a_list(version: int, *names: str, rest: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), "continue": rest}
    return {"kind": "EndpointSliceList", "metadata": metadata, "items": [a_slice(n) for n in names]}


def line(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(version)}})


class ReflectorHarness:
    """One reflector and its clock. `next_request` is the reflector's step; each other method is an act of the server."""

    def __init__(self, **timings: Any) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.events: list[Event] = []
        self.reflector = Reflector(
            {"labelSelector": "a=b"}, SliceDecoder(), Timings(uniform=random.Random(7).uniform, **timings)
        )

    def next_request(self) -> dict[str, str]:
        """The query of its next GET, after all waits, without the label selector."""
        step, started = self.reflector.next_step(self.now), self.now
        while isinstance(step, Wait):
            assert step.until > self.now
            self.now = step.until
            step = self.reflector.next_step(self.now)
        self.waits.append(self.now - started)
        assert isinstance(step, Get)
        assert step.params["labelSelector"] == "a=b"
        return {name: value for name, value in step.params.items() if name != "labelSelector"}

    def probes(self, longer_than: float = 0.0) -> bool:
        """Whether it tries to connect while it waits, as it does now, for longer than that."""
        step = self.reflector.next_step(self.now)
        assert isinstance(step, Wait)
        assert step.until - self.now > longer_than
        return step.probe_connection

    def head(self, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self.reflector.headers_received(code, JSON | (headers or {}), self.now)

    def answers(self, body: dict[str, Any] | bytes, code: int = 200, **headers: str) -> list[Event]:
        self.head(code, {name.replace("_", "-"): value for name, value in headers.items()})
        return self.sends(body if isinstance(body, bytes) else json.dumps(body).encode()) + self.ends()

    def sends(self, chunk: bytes, after: float = 0.0) -> list[Event]:
        self.now += after
        news = self.reflector.data_received(chunk, self.now)
        self.events += news
        return news

    def ends(self, after: float = 0.0) -> list[Event]:
        self.now += after
        news = [] if self.reflector.finished else self.reflector.eof_received(self.now)
        self.events += news
        return news

    def breaks(self, after: float = 0.0) -> list[Event]:
        self.now += after
        return self.reflector.request_failed("connection reset", self.now)

    def fails_to_connect(self, after: float = 0.0) -> list[Event]:
        self.now += after
        return self.reflector.request_failed("connection refused", self.now, connect_failed=True)

    def watching(self, version: int = 5) -> "ReflectorHarness":
        """Answers a list, then the headers of a watch."""
        self.next_request()
        self.answers(a_list(version))
        self.next_request()
        self.head()
        return self


def kind(params: dict[str, str]) -> str:
    if "watch" in params:
        return f"watch {params['resourceVersion']}"
    if "continue" in params:
        return f"page {params['continue']}"
    if params.get("resourceVersionMatch") == "NotOlderThan":
        return f"list since {params['resourceVersion']}"
    return "list" if not params else f"? {params}"

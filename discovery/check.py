"""Tests a worker against the wire contract: the requests and verdicts of `python -m discovery check URL`."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp
from yarl import URL

from discovery.errors import MetadataUnavailableError
from discovery.instance import (
    HEALTH_PATH,
    INSTANCE_ID_HEADER,
    INSTANCE_INCARNATION_HEADER,
    INSTANCE_STATUS_HEADER,
    LIVE_PATH,
    METADATA_LIMIT,
    METADATA_PATH,
    Instance,
    InstanceStatus,
)
from discovery.metadata.connections import connection_problem, read_body
from discovery.metadata.document import read_document, read_etag, read_metadata
from discovery.metadata.known_keys import ignored_keys

_HOLD: Final = 1
"""Seconds for which the worker is asked to hold a GET."""
_TIMEOUT: Final = 5.0
_REVISION: Final = re.compile(r'(W/)?"[^".]+\.[^".]+\.\d+"')


_CONDITIONAL: Final = "with If-None-Match it answers 304 while nothing changed (RFC 9110)"
_KEYS: Final = "its known keys are spelt and typed as readers expect"
_HELD: Final = "with Prefer: wait=N it holds the answer and says Preference-Applied (RFC 7240)"


class Verdict(StrEnum):
    """WEAK: usable as a plain server, polled or unverified. BROKEN: discovery cannot use it."""

    OK = "ok"
    WEAK = "weak"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement; `seen`: what the worker did instead, if the verdict is not OK."""

    requirement: str
    verdict: Verdict
    seen: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


async def check_contract(url: str, *, token: str | None = None) -> AsyncIterator[Finding]:
    """Test all requirements on the worker at `url` (`http://host:port`); yields findings as the answers arrive.

    Raises ValueError for an invalid URL. Takes a second at least, for the GET that is held.
    """
    base = URL(url)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"{url!r} is not a worker's URL; expected http://host:port")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(
        headers=headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT)
    ) as session:
        metadata = await _get(session, base.with_path(METADATA_PATH))
        for finding in _judge_metadata(metadata):
            yield finding
        if isinstance(metadata, _Answer) and read_etag(metadata.headers) is not None:
            etag = metadata.headers["ETag"]
            async for finding in _judge_conditional(session, base.with_path(METADATA_PATH), etag):
                yield finding
        else:
            yield Finding(_CONDITIONAL, Verdict.WEAK, "no valid ETag to send")
            yield Finding(_HELD, Verdict.WEAK, "no valid ETag to send, so that it will be polled")
        yield _judge_health(await _get(session, base.with_path(HEALTH_PATH)))
        yield _judge_live(await _get(session, base.with_path(LIVE_PATH)))


async def _get(
    session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str] | None = None
) -> _Answer | str:
    """The answer, or why there is none."""
    started = asyncio.get_running_loop().time()
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            body = await read_body(response)
            seconds = asyncio.get_running_loop().time() - started
            return _Answer(response.status, response.headers, body, seconds)
    except TimeoutError:
        return f"no answer within {_TIMEOUT:g} s"
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        return connection_problem(error)


def _judge_metadata(answer: _Answer | str) -> list[Finding]:
    requirement = f"GET {METADATA_PATH} answers 200 with a JSON object of at most {METADATA_LIMIT} bytes"
    if isinstance(answer, str):
        return [Finding(requirement, Verdict.BROKEN, answer)]
    if answer.status in (404, 405, 501):
        return [Finding(requirement, Verdict.WEAK, f"HTTP {answer.status}: an instance without metadata")]
    if answer.status != 200:
        return [Finding(requirement, Verdict.BROKEN, f"HTTP {answer.status}")]
    try:
        document = read_document(_ANYBODY, answer.headers, answer.body)
    except MetadataUnavailableError as error:
        return [Finding(requirement, Verdict.BROKEN, error.reason)]
    findings = [Finding(requirement, Verdict.OK), *(_judge_header(answer, *rule) for rule in _HEADERS)]
    ignored = [*ignored_keys(read_metadata(_ANYBODY, document))]
    return [*findings, Finding(_KEYS, Verdict.WEAK, "; ".join(ignored))] if ignored else findings


_ANYBODY: Final = Instance("worker", "", "", "", 0, incarnation="")
"""Stands for the worker: whose document it is, is not checked."""
_HEADERS: Final = (
    ("ETag", _REVISION, '"<incarnation>.<epoch>.<count>"'),
    (INSTANCE_ID_HEADER, re.compile(r".+"), "the instance id"),
    (INSTANCE_INCARNATION_HEADER, re.compile(r".+"), "the incarnation"),
    (INSTANCE_STATUS_HEADER, re.compile("|".join(InstanceStatus)), " or ".join(InstanceStatus)),
)


def _judge_header(answer: _Answer, name: str, form: re.Pattern[str], expected: str) -> Finding:
    value = answer.headers.get(name)
    requirement = f"its header {name} is {expected}"
    if value is None:
        return Finding(requirement, Verdict.WEAK, "absent")
    if form.fullmatch(value) and value.isprintable():
        return Finding(requirement, Verdict.OK)
    return Finding(requirement, Verdict.WEAK, value if value.isprintable() else repr(value))


async def _judge_conditional(session: aiohttp.ClientSession, url: URL, etag: str) -> AsyncIterator[Finding]:
    unchanged = await _get(session, url, {"If-None-Match": etag})
    requirement = _CONDITIONAL
    if isinstance(unchanged, _Answer) and unchanged.status == 304:
        yield Finding(requirement, Verdict.OK)
    else:
        yield Finding(
            requirement, Verdict.WEAK, unchanged if isinstance(unchanged, str) else f"HTTP {unchanged.status}"
        )
    held = await _get(session, url, {"If-None-Match": etag, "Prefer": f"wait={_HOLD}"})
    requirement = _HELD
    if isinstance(held, str):
        yield Finding(requirement, Verdict.BROKEN, held)
    elif held.seconds >= _HOLD * 0.9 and "wait" in held.headers.get("Preference-Applied", ""):
        yield Finding(requirement, Verdict.OK)
    else:
        yield Finding(requirement, Verdict.WEAK, f"answered after {held.seconds:.2f} s: it will be polled")


def _judge_health(answer: _Answer | str) -> Finding:
    requirement = f"GET {HEALTH_PATH} answers 200 when ready, else 503"
    if isinstance(answer, _Answer) and answer.status in (200, 503):
        return Finding(requirement, Verdict.OK)
    return Finding(requirement, Verdict.WEAK, answer if isinstance(answer, str) else f"HTTP {answer.status}")


def _judge_live(answer: _Answer | str) -> Finding:
    requirement = f"GET {LIVE_PATH} answers 200"
    if isinstance(answer, _Answer) and answer.status == 200:
        return Finding(requirement, Verdict.OK)
    return Finding(requirement, Verdict.WEAK, answer if isinstance(answer, str) else f"HTTP {answer.status}")

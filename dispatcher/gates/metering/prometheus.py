"""Reads one number from Prometheus by instant queries (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

import json
import ssl
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import aiohttp

from dispatcher.broker.capacity.budget import parse_decimal
from dispatcher.gates.credentials import GateSourceError, SourceCredentials
from dispatcher.gates.metering.fetch import fetch, sample_age
from dispatcher.gates.metering.target_source import Sample

MAX_DENOMINATOR: Final = 10**9
"""Prometheus divides in floating point and prints all digits: 0.6666666666666666 was 2/3."""


class PrometheusReader:
    """Reads the first of `queries` that has a sample. A result of several samples is an error: it is unclear which is meant.

    An instant query returns a sample with the time of the query, not of the scrape. So the gate's `lag` must cover the
    time from the target into Prometheus.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, queries: Sequence[str], credentials: SourceCredentials
    ) -> None:
        self._session = session
        self._url = f"{url.rstrip('/')}/api/v1/query"
        self._queries = queries
        self._access = credentials
        self._tls: ssl.SSLContext | bool = credentials.tls()

    async def read(self) -> Sample:
        for query in self._queries:
            document = await fetch(
                self._session, self._url, self._access, tls=self._tls, query={"query": query}
            )
            found = _only_sample(document.body)
            if found is not None:
                value, at = found
                return Sample(value, sample_age(at, document.served_at))
        raise GateSourceError(f"Prometheus has no sample of {' nor of '.join(self._queries)}")


def _only_sample(body: bytes) -> tuple[Fraction, float] | None:
    """Value and Unix time of the only sample; None without one."""
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise GateSourceError(f"Prometheus says {answer.get('error', 'no success')!s:.200}")
        time_and_text = _only_point(answer["data"])
        if time_and_text is None:
            return None
        at, text = float(time_and_text[0]), time_and_text[1]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise GateSourceError(f"not an answer of Prometheus: {type(error).__name__}") from error
    value = parse_decimal(text) if isinstance(text, str) else None
    if value is None:
        raise GateSourceError(f"the sample is {text!s:.40}, expected a finite number")
    return value.limit_denominator(MAX_DENOMINATOR), at


def _only_point(data: dict[str, Any]) -> Any:
    kind, result = data["resultType"], data["result"]
    if kind == "scalar":
        return result
    if kind != "vector":
        raise GateSourceError(f"the query gives a {kind!s:.20}, expected an instant vector or a scalar")
    if len(result) > 1:
        raise GateSourceError(
            f"the query gives {len(result)} samples, expected one: aggregate them, as with max(...)"
        )
    return result[0]["value"] if result else None

"""docs/endpoint-picker-protocol.md shows names and answers as they are on the wire."""

import json
import re
from pathlib import Path

from epp.config.settings import Settings
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.ext_proc.protocol import METADATA_NAMESPACE, SUBSET_NAMESPACE, immediate
from epp.health import LIVENESS, READINESS
from epp.request.control_headers import DESTINATION, DROPPED_REASON, FALLBACK, SCORES, SERVED, SUBSET
from epp.request.rejection import Rejection
from epp.scheduling.saturation import SATURATED

PAGE = (Path(__file__).parents[2] / "docs" / "endpoint-picker-protocol.md").read_text()


def test_the_protocol_s_names_are_those_on_the_wire() -> None:
    names = (
        DESTINATION,
        FALLBACK,
        SERVED,
        SUBSET,
        SCORES,
        METADATA_NAMESPACE,
        SUBSET_NAMESPACE,
        *READINESS[1:],
    )
    assert [name for name in (*names, DROPPED_REASON, LIVENESS) if f"`{name}`" not in PAGE] == []
    [heads] = re.findall(r"^\| \| (.* \(default\) .*) \|$", PAGE, re.MULTILINE)
    assert heads.replace(" (default)", "").split(" | ") == [version.value for version in ProtocolVersion]
    assert f"{ProtocolVersion.V1_0} (default)" in heads
    assert Settings().protocol_version is ProtocolVersion.V1_0


def test_the_refusal_that_is_shown_is_one() -> None:
    [(head, body)] = re.findall(
        r"```text\nHTTP/1.1 429 Too Many Requests\n(.*?)\n\n(.*?)```", PAGE, re.DOTALL
    )
    shown = json.loads(body)
    error = shown["error"]
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    refused = Rejection(
        429,
        error["code"],
        error["message"],
        reason=fields[DROPPED_REASON],
        retry_after=float(fields["retry-after"]),
    )
    answer = immediate(refused).immediate_response
    assert json.loads(answer.body) == shown
    assert {o.header.key: o.header.raw_value.decode() for o in answer.headers.set_headers} == fields
    assert fields[DROPPED_REASON] == SATURATED

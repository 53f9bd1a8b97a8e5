"""h2spec, the conformance suite for HTTP/2 and HPACK, against the picker's own server."""

import asyncio
import datetime
import time
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from epp.config.settings import TransportKind
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress
from tests.system.building import BINARIES

SECTIONS: Final = ("generic", "hpack", "http2")
EXCEPTIONS: Final[dict[str, str]] = {}
"""A case that may fail, and why; there is none."""
CASES: Final = 145
"""Of h2spec 2.2.1 in these sections."""


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_every_case_passes(tmp_path: Path, secure: bool) -> None:
    pair = Certificate(certificate.self_signed(datetime.datetime.now(datetime.UTC))) if secure else None
    transport = open_transport(
        TransportKind.HTTP2, pytest.fail, Health(), MemoryBudget(10**8), time.monotonic
    )
    async with transport.listener(ListenAddress("127.0.0.1", 0, pair), processing=False) as listener:
        report = tmp_path / "report.xml"
        arguments = ["--host", "127.0.0.1", "--port", str(listener.port), "--junit-report", str(report)]
        arguments += ["--timeout", "60"] + (["--tls", "--insecure"] if secure else [])
        running = await asyncio.create_subprocess_exec(
            BINARIES / "h2spec", *arguments, *SECTIONS, stdout=asyncio.subprocess.DEVNULL
        )
        await running.wait()
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) == CASES
    assert {_name(case) for case in cases if not _passed(case)} <= set(EXCEPTIONS)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('package')} {case.get('classname')}"


def _passed(case: ElementTree.Element) -> Any:
    return all(case.find(kind) is None for kind in ("failure", "error", "skipped"))

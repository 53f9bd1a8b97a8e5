"""What is said when spans cannot be sent."""

import logging
from collections.abc import Sequence

import pytest

from adsum.tracing.exporting import SdkLog, WatchedExporter, _hiding

export = pytest.importorskip("opentelemetry.sdk.trace.export")


class Refusing:
    """An exporter whose collector answers with this text."""

    def __init__(self, sdk: SdkLog, text: str) -> None:
        self._sdk = sdk
        self._text = text

    def export(self, spans: Sequence[object]) -> object:
        self._sdk.said = self._text
        return export.SpanExportResult.FAILURE


def test_a_collector_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sdk = SdkLog()
    refusing: object = Refusing(sdk, "no\x1b[2J\nWARNING: forged")
    watched = WatchedExporter(refusing, sdk, lambda text: text)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        watched.export([])
    (line,) = caplog.messages
    assert line.isprintable()
    assert watched.problem.isprintable()


def test_an_endpoint_without_a_user_hides_nothing() -> None:
    hide = _hiding({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://@host:4317"})
    assert hide("cannot connect") == "cannot connect"
    hide = _hiding({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:s3cret@host:4317"})
    assert hide("http://me:s3cret@host:4317 refused") == "http://...@host:4317 refused"

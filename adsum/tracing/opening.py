"""Opens the tracing of a program from OTEL_* variables; OpenTelemetry is imported here, and only if traces are asked for."""

import asyncio
import logging
import os
import random
from typing import TYPE_CHECKING, Any, Final, Self

from adsum.command_line import installed_version, not_installed
from adsum.errors import AdsumError
from adsum.tracing.span import Tracer, read_sampling
from adsum.tracing.trace_context import note_trace

if TYPE_CHECKING:
    from adsum.tracing.exporting import Exporting

FLUSH_TIMEOUT: Final = 3.0
"""Seconds at the end of a program to send what was recorded."""

log = logging.getLogger("tracing")


class MissingTracingError(AdsumError):
    """Traces were asked for without the extra that records them."""


class Tracing:
    """An async context manager; left, what was recorded is sent. Entering raises AdsumError."""

    def __init__(self, service: str, scope: str) -> None:
        """`service`: its name where OTEL_SERVICE_NAME gives none; `scope`: the code that makes the spans."""
        self._service = service
        self._scope = scope
        self._exporting: Exporting | None = None
        self.tracer: Tracer | None = None

    async def __aenter__(self) -> Self:
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            log.warning("traces are asked for, but OTEL_SDK_DISABLED is true: nothing is recorded")
            return self
        try:
            from adsum.tracing.exporting import Exporting
        except ModuleNotFoundError as missing:
            raise MissingTracingError(
                f"traces cannot be recorded: {not_installed(missing, 'otel')}"
            ) from missing
        sampling, fault = read_sampling(os.environ)
        if fault is not None:
            log.warning("%s", fault)
        version = installed_version() or "unknown"
        self._exporting = Exporting(self._service, self._scope, version, os.environ)
        for handler in logging.getLogger().handlers:
            handler.addFilter(note_trace)
        self.tracer = Tracer(self._exporting.ended, random.Random(), sampling)
        return self

    async def __aexit__(self, *_: object) -> None:
        for handler in logging.getLogger().handlers:
            handler.removeFilter(note_trace)
        exporting, self._exporting = self._exporting, None
        if exporting is not None:
            await asyncio.to_thread(exporting.close, FLUSH_TIMEOUT)

    def describe(self) -> dict[str, Any]:
        """For a status page: how many spans were sent and lost, and why the last ones were."""
        exporter = None if self._exporting is None else self._exporting.exporter
        if exporter is None:
            return {"exporting": False}
        return {
            "exporting": True,
            "sent": exporter.sent,
            "lost": exporter.lost,
            "problem": exporter.problem or None,
        }

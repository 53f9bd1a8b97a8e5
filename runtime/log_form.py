"""The lines of a log as text or as JSON, with times in a chosen form; the keys are those of Go's zap."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

TIMES: Final = ("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano")
"""Names of zap's time encoders."""


class TextForm(logging.Formatter):
    """`times` None: local time, as Python's logging writes it."""

    def __init__(self, times: str | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._time = None if times is None else _FORMS[times]

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        return super().formatTime(record, datefmt) if self._time is None else str(self._time(record.created))


class JsonForm(logging.Formatter):
    """One JSON object a line: level, ts, logger, msg, and stacktrace where an exception is logged."""

    def __init__(self, times: str) -> None:
        super().__init__()
        self._time = _FORMS[times]

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "level": _LEVELS.get(record.levelno, record.levelname.lower()),
            "ts": self._time(record.created),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line)


_LEVELS: Final = {logging.WARNING: "warn", logging.CRITICAL: "panic"}
"""zap's names where they differ from Python's."""


def _utc(seconds: float, timespec: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


_FORMS: Final[Mapping[str, Callable[[float], object]]] = {
    "epoch": lambda seconds: seconds,
    "millis": lambda seconds: seconds * 1e3,
    "nano": lambda seconds: round(seconds * 1e6) * 1000,
    "iso8601": lambda seconds: _utc(seconds, "milliseconds"),
    "rfc3339": lambda seconds: _utc(seconds, "seconds"),
    "rfc3339nano": lambda seconds: _utc(seconds, "microseconds"),
}

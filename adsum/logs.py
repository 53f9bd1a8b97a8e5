"""The lines of a log as text or as JSON, with times in a chosen form; the keys are those of Go's zap.

Where the log is JSON, so are the ready line of a program and the error that ends it.
"""

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

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
    """One JSON object a line: level, ts, logger, msg, and stacktrace where an exception is logged.

    A record whose attribute `trace` says that the request's trace is recorded has trace_id and span_id too.
    """

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
        trace: Any = getattr(record, "trace", None)  # a adsum.tracing.trace_context.TraceContext
        if trace is not None:
            line["trace_id"], line["span_id"] = f"{trace.trace_id:032x}", f"{trace.span_id:016x}"
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line)

    def event(self, level: str, logger: str, message: str, fields: Mapping[str, str]) -> str:
        """A line that is no log record."""
        return json.dumps(
            {"level": level, "ts": self._time(time.time()), "logger": logger, "msg": message, **fields}
        )


def write_log(level: int, form: logging.Formatter) -> None:
    """Write the log of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level, handlers=[handler])


def form_of(log_format: str | None, text: str | None = None) -> logging.Formatter:
    """The form that `--log-format` names; `text`: the format string of a log as text."""
    if log_format == "json":
        return JsonForm("rfc3339")
    return TextForm() if text is None else logging.Formatter(text)


def print_ready(pairs: Sequence[str]) -> None:
    """Print the ready line: `ready`, then these name=value pairs."""
    form = _json_form()
    fields = [pair.partition("=") for pair in pairs]
    as_json = form and form.event("info", "ready", "ready", {name: value for name, _, value in fields})
    print(as_json or " ".join(("ready", *pairs)), flush=True)


def error_line(text: str, *, as_json: bool = False) -> str:
    """The line for stderr of an error that ends a program; `as_json`: also if no log has been opened yet."""
    form = _json_form() or (JsonForm("rfc3339") if as_json else None)
    return f"error: {text}" if form is None else form.event("error", "error", text, {})


def announced(line: str) -> tuple[str, str]:
    """Reads what the two above wrote: `ready` or `error`, and the text; of any other line nothing, and the line."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)  # bounded: a line of a process that this one started
            if event.get("logger") in ("ready", "error"):
                return event["logger"], str(event.get("msg"))
    for word, mark in (("ready", "ready "), ("error", "error: ")):
        if line.startswith(mark):
            return word, line.removeprefix(mark)
    return "", line


def relayed(program: str, line: str) -> str:
    """A line of another program, for this log: behind its name, or as JSON unless it is that already."""
    form = _json_form()
    if form is None:
        return f"{program:<10} {line}"
    return line if line.startswith("{") else form.event("info", program, line, {})


def _json_form() -> JsonForm | None:
    forms = (handler.formatter for handler in logging.getLogger().handlers)
    return next((form for form in forms if isinstance(form, JsonForm)), None)


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


LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines of one cause."""


class RateLimitedLog:
    """Logs each cause at most `most` times a minute, with the number of occurrences meanwhile.

    Causes are constants, never input, so that a peer cannot grow the dictionary.
    """

    def __init__(
        self, log: logging.Logger, clock: Callable[[], float] = time.monotonic, *, most: int = 1
    ) -> None:
        self._log = log
        self._clock = clock
        self._most = most
        self._began_at: dict[str, float] = {}
        """When the minute of each cause began."""
        self._seen: Counter[str] = Counter()
        """In that minute."""

    def warning(self, cause: str, message: str, *arguments: object) -> None:
        self.log(logging.WARNING, cause, message, *arguments)

    def info(self, cause: str, message: str, *arguments: object) -> None:
        self.log(logging.INFO, cause, message, *arguments)

    def log(self, level: int, cause: str, message: str, *arguments: object) -> None:
        now, suppressed = self._clock(), 0
        began_at = self._began_at.get(cause)
        if began_at is None or now - began_at >= LOG_INTERVAL:
            suppressed = max(0, self._seen[cause] - self._most)
            self._began_at[cause], self._seen[cause] = now, 0
        self._seen[cause] += 1
        if self._seen[cause] > self._most:
            return
        if suppressed:
            self._log.log(level, f"{message}; %d more times since the last such line", *arguments, suppressed)
        elif self._seen[cause] == self._most > 1:
            self._log.log(level, f"{message}; more such lines of this minute are only counted", *arguments)
        else:
            self._log.log(level, message, *arguments)

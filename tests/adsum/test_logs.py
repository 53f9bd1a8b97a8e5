import asyncio
import io
import json
import logging
import re

import pytest

from adsum.logs import TIMES, JsonForm, TextForm
from adsum.tracing.trace_context import TraceContext, note_trace, traced

LINE = logging.LogRecord("epp", logging.WARNING, "f.py", 1, "a %s\nof two lines", ("text",), None)
LINE.created = 1_700_000_000.125


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ("epoch", 1_700_000_000.125),
        ("millis", 1_700_000_000_125.0),
        ("nano", 1_700_000_000_125_000_000),
        ("iso8601", "2023-11-14T22:13:20.125Z"),
        ("rfc3339", "2023-11-14T22:13:20Z"),
        ("rfc3339nano", "2023-11-14T22:13:20.125000Z"),
    ],
)
def test_times(times: str, expected: object) -> None:
    assert times in TIMES
    assert json.loads(JsonForm(times).format(LINE))["ts"] == expected
    assert TextForm(times).format(LINE).startswith(f"{expected} WARNING epp: a text")


def test_one_object_a_line() -> None:
    text = JsonForm("rfc3339").format(LINE)
    assert "\n" not in text
    assert json.loads(text) == {
        "level": "warn",
        "ts": "2023-11-14T22:13:20Z",
        "logger": "epp",
        "msg": "a text\nof two lines",
    }


def test_text_has_pythons_form_unless_a_time_is_chosen() -> None:
    assert re.match(r"2023-11-1\d \d\d:\d\d:\d\d,\d{3} WARNING epp: a text\n", TextForm().format(LINE))


def test_an_exception_is_a_field() -> None:
    stream, logger = io.StringIO(), logging.getLogger("tests.log_form")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonForm("epoch"))
    logger.addHandler(handler)
    try:
        raise KeyError("key")
    except KeyError:
        logger.exception("it failed")
    logger.removeHandler(handler)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["msg"]) == ("error", "it failed")
    assert line["stacktrace"].startswith("Traceback (most recent call last):")
    assert line["stacktrace"].endswith("KeyError: 'key'")


def test_the_trace_of_a_line_is_two_fields() -> None:
    record = logging.LogRecord("epp", logging.ERROR, "f.py", 1, "a fault", (), None)
    assert "trace_id" not in json.loads(JsonForm("epoch").format(record))
    record.trace = TraceContext(10, 11, sampled=True)
    line = json.loads(JsonForm("epoch").format(record))
    assert (line["trace_id"], line["span_id"]) == (f"{10:032x}", f"{11:016x}")


async def test_a_line_has_the_trace_of_its_task() -> None:
    async def line() -> logging.LogRecord:
        traced(TraceContext(10, 11, sampled=True))
        record = logging.LogRecord("epp", logging.ERROR, "f.py", 1, "a fault", (), None)
        assert note_trace(record)
        return record

    record = await asyncio.create_task(line())
    assert record.trace.trace_id == 10  # type: ignore[attr-defined]
    assert note_trace(LINE)
    assert LINE.trace is None  # type: ignore[attr-defined]

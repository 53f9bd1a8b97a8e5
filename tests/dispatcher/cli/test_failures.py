"""The summary of errors in one line."""

from dispatcher.broker.contract.message import ErrorCode, Result
from dispatcher.cli.progress import FailureSummary


def told(*results: Result) -> str:
    failures = FailureSummary()
    for number, result in enumerate(results):
        failures.add(f"r{number}", result)
    return str(failures)


def of(status: int, code: ErrorCode | None = None, message: str = "") -> Result:
    return Result("i", "t", status, b"", code, message)


def test_no_error() -> None:
    assert told() == told(of(200), of(204), of(302)) == "no errors"


def test_each_kind_is_named_with_one_to_look_up() -> None:
    late = ErrorCode.DEADLINE_EXCEEDED
    assert told(of(200), of(503), of(400), of(503), of(0, late, "no answer within 5 s"), of(503, late)) == (
        "5 errors: 2 x HTTP 503 Service Unavailable, as custom_id 'r1'; 1 x HTTP 400 Bad Request, as custom_id 'r2'; "
        "1 x DEADLINE_EXCEEDED (no answer within 5 s), as custom_id 'r4'; "
        "1 x DEADLINE_EXCEEDED HTTP 503 Service Unavailable, as custom_id 'r5'"
    )


def test_the_line_stays_a_line_of_bounded_length() -> None:
    text = "\x1b[2J\n\u2028" + "x" * 10_000
    many = [of(status, ErrorCode.INFERENCE_ERROR, text) for status in range(400, 600)]
    said = told(*many)
    assert len(said) < 2000
    assert said.isprintable()
    assert said.startswith("200 errors: 1 x INFERENCE_ERROR HTTP 400 Bad Request (")
    assert said.endswith("; 195 of other kinds")

import pytest

from adsum.tracing.trace_context import NOT_RECORDED, TraceContext, parse_traceparent

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_reads_what_it_writes() -> None:
    context = parse_traceparent(TRACEPARENT)
    assert context is not None
    assert context.traceparent == TRACEPARENT
    assert TraceContext(1, 2, sampled=False).traceparent == f"00-{1:032x}-{2:016x}-00"


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)]
)
def test_of_the_flags_only_the_lowest_counts(flags: str, sampled: bool) -> None:
    context = parse_traceparent(TRACEPARENT[:-2] + flags)
    assert context is not None
    assert context.sampled is sampled
    assert (NOT_RECORDED.fullmatch(context.traceparent[:-2] + flags) is None) is sampled


@pytest.mark.parametrize("text", [TRACEPARENT.replace("00-", "01-", 1), "cc" + TRACEPARENT[2:] + "-more"])
def test_a_later_version_is_read_as_far_as_it_is_known(text: str) -> None:
    assert parse_traceparent(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACEPARENT[:-1],
        TRACEPARENT + "0",
        TRACEPARENT + "-more",
        "cc" + TRACEPARENT[2:] + ".more",
        "ff" + TRACEPARENT[2:],
        TRACEPARENT.upper(),
        TRACEPARENT.replace("-", "_"),
        "00-" + "0" * 32 + TRACEPARENT[35:],
        TRACEPARENT[:36] + "0" * 16 + "-01",
        "00-" + "\N{ARABIC-INDIC DIGIT ONE}" * 32 + TRACEPARENT[35:],
        TRACEPARENT + "\n",
    ],
)
def test_what_is_malformed_is_none(text: str) -> None:
    assert parse_traceparent(text) is None
    assert NOT_RECORDED.fullmatch(text.replace("-01", "-00")) is None

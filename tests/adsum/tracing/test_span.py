import random

import pytest
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from adsum.tracing.span import Sampling, read_sampling
from adsum.tracing.trace_context import NOT_RECORDED, TraceContext, parse_traceparent

SENT = TraceContext(7, 7, sampled=True)
NOT_SENT = TraceContext(7, 7, sampled=False)


def test_the_default_is_the_go_pickers() -> None:
    assert read_sampling({}) == (Sampling(0.1, parent_based=True), None)


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("always_on", "", Sampling(1.0, parent_based=False)),
        ("always_off", "", Sampling(0.0, parent_based=False)),
        ("parentbased_always_on", "", Sampling(1.0)),
        ("parentbased_always_off", "0.5", Sampling(0.0)),
        ("traceidratio", "0.25", Sampling(0.25, parent_based=False)),
        ("traceidratio", "", Sampling(0.1, parent_based=False)),
        ("parentbased_traceidratio", "1", Sampling(1.0)),
        ("", "0", Sampling(0.0)),
    ],
)
def test_the_variables_of_opentelemetry(name: str, argument: str, expected: Sampling) -> None:
    given = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert read_sampling(given) == (expected, None)


@pytest.mark.parametrize("argument", ["-0.1", "1.5", "nan", "inf", "ten percent"])
def test_a_ratio_that_is_none_is_the_default_and_told(argument: str) -> None:
    sampling, fault = read_sampling({"OTEL_TRACES_SAMPLER_ARG": argument})
    assert sampling == Sampling(0.1)
    assert fault is not None
    assert "OTEL_TRACES_SAMPLER_ARG" in fault


def test_an_unknown_sampler_is_the_default_and_told() -> None:
    sampling, fault = read_sampling({"OTEL_TRACES_SAMPLER": "jaeger_remote"})
    assert sampling == Sampling(0.1)
    assert fault is not None
    assert "'jaeger_remote'; expected one of traceidratio, parentbased_traceidratio" in fault


def test_the_sender_decides_if_it_is_asked() -> None:
    assert Sampling(0.0).records(SENT, 7)
    assert not Sampling(1.0).records(NOT_SENT, 7)
    assert not Sampling(0.0, parent_based=False).records(SENT, 7)
    assert Sampling(1.0, parent_based=False).records(NOT_SENT, 7)


def test_trace_ids_are_judged_as_by_the_sdk() -> None:
    """So that all processes of a trace decide alike."""
    rng = random.Random(1)
    for ratio in (0.0, 0.01, 0.1, 0.5, 1.0):
        theirs, ours = TraceIdRatioBased(ratio), Sampling(ratio)
        for _ in range(2000):
            trace_id = rng.getrandbits(128)
            sampled = theirs.should_sample(None, trace_id, "").decision.is_sampled()
            assert ours.records(None, trace_id) is sampled
            assert (f"{trace_id:032x}"[16:] < ours.below) is sampled


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

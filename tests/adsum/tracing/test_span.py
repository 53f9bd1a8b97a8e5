import random

import pytest
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from adsum.tracing.span import Sampling, read_sampling
from adsum.tracing.trace_context import TraceContext

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

from prometheus_client import CollectorRegistry

from epp.ext_proc.request_report import Observer
from epp.request.inference_request import InferenceRequest
from epp.scheduling.pick import Pick
from epp.telemetry.counters import Telemetry
from epp.telemetry.picker_metrics import RewriteDecisions

NAME = "llm_d_epp_model_rewrite_decisions_total"


def value(registry: CollectorRegistry, rule: str, model: str, target: str) -> float | None:
    labels = {"model_rewrite_name": rule, "model_name": model, "target_model": target}
    return registry.get_sample_value(NAME, labels)


def test_decisions_are_counted_by_rule_and_both_models() -> None:
    registry, decisions = CollectorRegistry(), RewriteDecisions()
    registry.register(decisions)
    assert not list(decisions.collect())
    for target in ("b", "c", "c"):
        decisions.count("canary", "a", target)
    assert (value(registry, "canary", "a", "b"), value(registry, "canary", "a", "c")) == (1, 2)


def test_a_client_cannot_make_more_series_than_there_may_be() -> None:
    registry, decisions = CollectorRegistry(), RewriteDecisions(label_sets=10)
    registry.register(decisions)
    for number in range(1_000):
        decisions.count("any", f"model-{number}", "b")
    assert value(registry, "any", "model-9", "b") == 1
    assert value(registry, "any", "other", "b") == 990
    assert len(next(iter(decisions.collect())).samples) == 11


def test_requests_are_counted_by_the_clients_model_and_by_the_one_that_serves() -> None:
    telemetry = Telemetry()
    observer: Observer = telemetry
    for served in ("llama", "llama", None):
        request = InferenceRequest("r", "/", {}, "gpt")
        if served is not None:
            request.rewrite(served)
        pick = Pick(request, ())
        observer.picked(pick, 0.0)
        observer.released(pick, 0.0, 1.0)

    def count(target: str) -> float | None:
        labels = {
            "model_name": "gpt",
            "target_model_name": target,
            "fairness_id": "default-flow",
            "priority": "0",
        }
        return telemetry.registry.get_sample_value("llm_d_epp_request_total", labels)

    assert (count("llama"), count("gpt")) == (2, 1)

"""What programs got and how long they waited, under the Go picker's metric names. Computed on the event loop."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.flow_control.program_aware import ProgramAware
from epp.telemetry.labels import PREFIX, label_value


class ProgramMetrics(Collector):
    """`policies`: those in force; without any there is nothing to show. Programs of several policies count together."""

    def __init__(self, policies: Callable[[], Sequence[ProgramAware]]) -> None:
        self._policies = policies

    def collect(self) -> Iterator[Metric]:
        policies = self._policies()
        if not policies:
            return
        attained: dict[str, float] = {}
        waits: dict[str, tuple[float, int]] = {}
        for policy in policies:
            for name, tokens in policy.attained().items():
                label, program = label_value(name), policy.programs[name]
                attained[label] = attained.get(label, 0.0) + tokens
                waited, requests = waits.get(label, (0.0, 0))
                waits[label] = waited + program.waited, requests + program.requests
        averages = {name: 1000.0 * waited / count for name, (waited, count) in waits.items() if count}
        index = GaugeMetricFamily(
            PREFIX + "program_aware_jains_fairness_index",
            "Jain's index of the average waits of programs; 1 is fair.",
        )
        index.add_metric((), _jain(list(averages.values())))
        yield index
        yield _by_program("avg_wait_time_milliseconds", "The average wait of a program's requests.", averages)
        yield _by_program(
            "attained_service_tokens",
            "Tokens that a program got, those of answers twice; old ones count less.",
            attained,
        )


def _by_program(name: str, help_text: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}program_aware_{name}", help_text, labels=("program_id",))
    for program, value in values.items():
        family.add_metric((program,), value)
    return family


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if len(values) > 1 and squares else 1.0

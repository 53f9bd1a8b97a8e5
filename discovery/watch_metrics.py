"""The metrics of one watched component: who is there, what changed, whether the source is up to date. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from discovery.events import InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, RemovalReason
from discovery.instance import Instance, InstanceStatus
from discovery.watch import WatchHealth, WatchState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "adsum_discovery_"
_EVENTS: Final = (
    ("added", ""),
    ("updated", ""),
    *(("removed", reason) for reason in get_args(RemovalReason)),
)


@dataclass(frozen=True, slots=True)
class WatchMetric:
    """One family of samples; `name` without the `_total` that a counter's samples have."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    label_names: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float], ...]


class WatchMetrics:
    """`component`: as `namespace/component`. `excluded`: as `SourceDiscovery.excluded`."""

    def __init__(self, component: str, excluded: Callable[[], Mapping[str, InstanceStatus | None]]) -> None:
        self._component = component
        self._excluded = excluded
        self._events = Counter(dict.fromkeys(_EVENTS, 0))

    def count(self, event: InstanceEvent) -> None:
        match event:
            case InstanceAddedEvent():
                self._events["added", ""] += 1
            case InstanceRemovedEvent(_, reason):
                self._events["removed", reason] += 1
            case _:
                self._events["updated", ""] += 1

    def families(self, instances: Mapping[str, Instance], health: WatchHealth) -> Iterator[WatchMetric]:
        """`instances`, `health`: of the watch, now."""
        unreachable = sum(not instance.reachable for instance in instances.values())
        excluded = list(self._excluded().values())
        draining = excluded.count(InstanceStatus.DRAINING)
        states = {
            "ready": len(instances) - unreachable,
            "unreachable": unreachable,
            "draining": draining,
            "not_ready": len(excluded) - draining,
        }
        yield WatchMetric(
            _PREFIX + "synced",
            "gauge",
            "1: the source is up to date; 0: it is out of reach, and the last known set is kept.",
            ("component",),
            (((self._component,), float(health.state is WatchState.SYNCED)),),
        )
        yield WatchMetric(
            _PREFIX + "instances",
            "gauge",
            "Candidates by state; unreachable: a ready instance that does not answer.",
            ("component", "state"),
            tuple(((self._component, state), float(count)) for state, count in states.items()),
        )
        yield WatchMetric(
            _PREFIX + "events",
            "counter",
            "Changes that were told to this reader.",
            ("component", "event", "reason"),
            tuple(((self._component, *which), float(count)) for which, count in self._events.items()),
        )


def metrics_text(metrics: Iterable[WatchMetric]) -> str:
    """The page in Prometheus' text format, https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
    By hand, since discovery is installed without Prometheus' client; no label value needs an escape: they are DNS labels
    and words of ours.
    """
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric))


def _lines(metric: WatchMetric) -> Iterator[str]:
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for values, number in metric.samples:
        labels = ",".join(
            f'{label}="{value}"' for label, value in zip(metric.label_names, values, strict=True)
        )
        yield f"{name}{{{labels}}} {number}"

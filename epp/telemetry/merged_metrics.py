"""The metrics of several processes as those of one picker: what each counted is added up, also what those counted that ended. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from prometheus_client import Metric
from prometheus_client.samples import Sample

_COUNTED: Final = ("counter", "histogram")
_SUMMED: Final = re.compile(
    "(?:llm_d_epp|inference_extension|inference_objective|inference_pool)_(?:request_running|running_requests"
    "|flow_control_(?:queue_size|queue_bytes|reclaim_target|pending_reclaim)|per_endpoint_inflight_requests"
    "|extproc_streams_inflight|outcomes_awaited|prefix_indexer_(?:bytes|limit_bytes))"
)
"""What a process has of its own. Other gauges tell of the workers, which all see alike, or of the process that answers."""
MOST_SAMPLES: Final = 100_000
"""Of processes that ended."""

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, array_like=True):
    """One metric of one process. `samples`: name, labels, value."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]

    @property
    def is_counted(self) -> bool:
        return self.type in _COUNTED


class Counted(msgspec.Struct):
    """What is known of all processes. `lives`: by the place of a process, the name of its life, and what it counted when it was asked
    last. `ended`: what lives before these counted, all together."""

    lives: dict[int, tuple[str, list[Family]]] = {}
    ended: list[Family] = []


def families(metrics: Iterable[Metric]) -> list[Family]:
    return [
        Family(
            one.name,
            one.documentation,
            one.type,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in one.samples],
        )
        for one in metrics
    ]


def metrics(found: Iterable[Family]) -> Iterator[Metric]:
    for one in found:
        metric = Metric(one.name, one.documentation, one.type)
        metric.samples = [Sample(*sample) for sample in one.samples]
        yield metric


def note(known: Counted, told: Mapping[int, tuple[str, list[Family]]]) -> Counted:
    """`told`: by those processes that were reached. A process that was not stays as it was told last; one that is another life than
    before leaves what it had counted."""
    ended, lives = known.ended, dict(known.lives)
    for place, (life, found) in told.items():
        before = lives.get(place)
        if before is not None and before[0] != life:
            ended = _bounded(merged(ended, [before[1]], everything=False))
        lives[place] = life, [one for one in found if one.is_counted]
    return Counted(lives, ended)


def merged(
    first: Iterable[Family], others: Iterable[Iterable[Family]], *, everything: bool = True
) -> list[Family]:
    """The sums; gauges that are no sum are those of `first`. Without `everything` only what is counted."""
    found: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, Labels], float]] = {}
    for number, told in enumerate((first, *others)):
        for one in told:
            if not one.is_counted and (not everything or (number and not _is_sum(one.name))):
                continue
            found.setdefault(one.name, one)
            of_family = sums.setdefault(one.name, {})
            for name, labels, value in one.samples:
                key = name, tuple(sorted(labels.items()))
                of_family[key] = of_family.get(key, 0.0) + value
    return [
        Family(
            one.name,
            one.documentation,
            one.type,
            [(name, dict(labels), value) for (name, labels), value in sums[one.name].items()],
        )
        for one in found.values()
    ]


def _is_sum(name: str) -> bool:
    return _SUMMED.fullmatch(name) is not None


def _bounded(found: list[Family]) -> list[Family]:
    left = MOST_SAMPLES
    kept: list[Any] = []
    for one in found:
        left -= len(one.samples)
        if left < 0:
            break
        kept.append(one)
    return kept

"""The configurations that are compared; the picker's own code reads and runs them."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.profiles import GO_DEFAULT
from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.director import Director, Policy
from epp.scheduling.plugin import DataProducer
from epp.scheduling.scheduler import Scheduler

_DEMO: Final = Path(__file__).parents[2] / "examples" / "demo" / "picker.yaml"


@dataclass(frozen=True, slots=True)
class Arm:
    """`learns_late`: a prefix counts as cached only from the response headers on."""

    config: str
    learns_late: bool = False


LEAST_COST: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: least-cost-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: least-cost-scorer}
  - {pluginRef: max-score-picker}
"""

ARMS: Final[Mapping[str, Arm]] = {
    "least cost": Arm(LEAST_COST),
    "default": Arm(DEFAULT_CONFIG),
    "the Go picker's weights": Arm(GO_DEFAULT),
    "the Go picker's weights, learning at the headers": Arm(GO_DEFAULT, learns_late=True),
    "the demo's weights": Arm(_DEMO.read_text()),
}


class LearnsLate:
    """A data producer that ignores picks and learns from responses only."""

    def __init__(self, producer: DataProducer) -> None:
        self._producer = producer

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self._producer.prepare(request, pool)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        pass

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        self._producer.served(request, endpoints)

    def failed(self, request: InferenceRequest) -> None:
        pass

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        self._producer.sized(endpoint, tokens)

    def forget(self, endpoint: Endpoint) -> None:
        self._producer.forget(endpoint)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        self._producer.retain(endpoints)


def picker(arm: Arm, workers: int, seed: int) -> tuple[Datastore, Director]:
    """The scheduling of a picker without its server; worker `n` is the endpoint in row `n`."""
    rng = random.Random(seed)
    config = load_config(arm.config, rng=rng)
    scheduler = config.scheduler
    if arm.learns_late:
        profile = scheduler.profiles["default"]
        producers = [LearnsLate(producer) for producer in profile.producers]
        scheduler = Scheduler({"default": dataclasses.replace(profile, producers=producers)})
    store = Datastore()
    director = Director(store, scheduler, config.detector, Policy(), rng)
    for number in range(workers):
        instance = Instance(f"w{number}", "bench", "worker", f"10.0.0.{number + 1}", 8000, "a")
        store.apply(InstanceAddedEvent(instance), {})
    return store, director

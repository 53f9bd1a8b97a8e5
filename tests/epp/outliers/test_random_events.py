"""Random requests, answers, ends, deaths and ticks: what must hold at every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.outliers.detection import OutlierDetection
from epp.outliers.outlier_record import OutlierState
from epp.outliers.settings import Failure, OutlierSettings

NAMES = st.sampled_from("abcde")


class RandomEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = Datastore()
        rules = OutlierSettings(consecutive_5xx=2, consecutive_local_origin_failure=2, stalled_requests=1)
        self.detection = OutlierDetection(self.store, rules)
        self.in_flight: dict[object, Endpoint] = {}
        self.most = 0

    def instance(self, name: str) -> Instance:
        return Instance(name, "ns", "c", "10.0.0.1", 8000, "1")

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        self.store.apply(InstanceAddedEvent(self.instance(name)))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.store.apply(InstanceRemovedEvent(self.instance(name), "deleted"))
        self.most = len(self.detection.ejected)

    @precondition(lambda self: self.store.endpoints)
    @rule(row=st.integers(0, 9), streamed=st.booleans())
    def send(self, row: int, streamed: bool) -> None:
        endpoints = self.store.endpoints
        request, endpoint = object(), endpoints[row % len(endpoints)]
        self.in_flight[request] = endpoint
        self.detection.sent(request, endpoint, self.now, streamed=streamed)

    @precondition(lambda self: self.in_flight)
    @rule(
        row=st.integers(0, 99),
        elsewhere=st.booleans(),
        outcome=st.sampled_from(
            [(200, None), (500, None), (503, Failure.CONNECT), (504, Failure.TIMEOUT), None]
        ),
    )
    def end(self, row: int, elsewhere: bool, outcome: tuple[int, Failure | None] | None) -> None:
        request = list(self.in_flight)[row % len(self.in_flight)]
        endpoint = self.in_flight.pop(request)
        if outcome is not None:
            if elsewhere and self.store.endpoints:
                self.detection.attempt_failed(endpoint, self.now)
                endpoint = self.store.endpoints[row % len(self.store.endpoints)]
            self.detection.answered(request, endpoint, *outcome, self.now)
        self.detection.ended(request, self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 12.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.detection.tick(self.now)

    @rule(alive=st.booleans())
    def probe(self, alive: bool) -> None:
        for endpoint in self.detection.to_probe:
            self.detection.probed(endpoint, self.now, alive=alive)

    @precondition(lambda self: self.store.endpoints)
    @rule(row=st.integers(0, 9))
    def replace_process(self, row: int) -> None:
        self.store.process_replaced(self.store.endpoints[row % len(self.store.endpoints)])

    @invariant()
    def the_share_is_kept(self) -> None:
        """Only endpoints that go away leave a larger share ejected than may be."""
        count = len(self.detection.ejected)
        assert count <= max(self.detection.settings.ejectable(len(self.store.endpoints)), self.most, 0)
        self.most = min(self.most, count)

    @invariant()
    def those_that_are_ejected_get_no_requests(self) -> None:
        ejected = {one.endpoint.key: one for one in self.detection.ejected}
        reachable = self.store.pool(self.now).reachable
        for row, endpoint in enumerate(self.store.endpoints):
            record = ejected.get(endpoint.key)
            on_trial = record is not None and record.state is OutlierState.TRIAL and record.trial is None
            assert reachable[row] == (record is None or on_trial)
        assert ejected.keys() <= {endpoint.key for endpoint in self.store.endpoints}

    @invariant()
    def nothing_is_kept_of_requests_that_are_over(self) -> None:
        assert self.detection._sent.keys() <= self.in_flight.keys()


def test_random_events() -> None:
    run_state_machine_as_test(
        RandomEvents, settings=settings(max_examples=60, stateful_step_count=60, deadline=None)
    )

"""The book of one target: no interleaving of readings, requests and replicas overruns it.

The steps after a 429 are in `tests/dispatcher/broker/contract/test_ledger.py`, which runs over this ledger too.
"""

import json
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.broker.capacity.budget import closing_point, from_load, spare
from dispatcher.broker.capacity.target_ledger import LONGEST_RETRY_AFTER_MS, RAMP_END, TargetLedger
from dispatcher.broker.contract.ledger import Reading, Reservation
from tests.dispatcher.broker.contract.test_ledger import refused, reserved

LEASE = 1000
ENDLESS = Reading(Fraction(2**52), 2**53)


@dataclass
class Sent:
    units: int
    arrives_ms: int


@dataclass
class Seen:
    """A reading, and what the model knows of the sample behind it."""

    reading: Reading
    load: int
    included: frozenset[str]


class Target(RuleBasedStateMachine):
    """Some replicas with readings of different ages; what they send arrives up to LAG later; others load the target."""

    CAPACITY = 20
    BASELINE = Fraction(1, 10)
    LAG = 5

    def __init__(self) -> None:
        super().__init__()
        self.ledger = TargetLedger(10**9)
        self.now = 1_000
        self.interactive = 0
        self.running: dict[str, Sent] = {}
        self.seen: dict[int, Seen] = {}
        self.last: tuple[Seen, str] | None = None
        self.count = 0

    def arrived(self) -> dict[str, Sent]:
        return {id: sent for id, sent in self.running.items() if sent.arrives_ms <= self.now}

    @rule(by=st.integers(1, 20))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(load=st.integers(0, 25))
    def others_load_it(self, load: int) -> None:
        self.interactive = load

    @rule(replica=st.integers(0, 2), took=st.integers(0, 10))
    def a_replica_reads(self, replica: int, took: int) -> None:
        asked = self.now
        self.now += took  # the sample is taken later than the broker's time was
        present = self.arrived()
        load = self.interactive + sum(sent.units for sent in present.values())
        capacity = Fraction(self.CAPACITY)
        headroom = capacity * spare(from_load(Fraction(load), capacity), self.BASELINE)
        self.seen[replica] = Seen(Reading(headroom, asked - self.LAG), load, frozenset(present))

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), units=st.sampled_from([1, 1, 1, 4, 30]), delay=st.integers(0, LAG - 1))
    def a_replica_sends(self, data: st.DataObject, units: int, delay: int) -> None:
        seen = self.seen[data.draw(st.sampled_from(sorted(self.seen)))]
        self.count += 1
        answer = self.ledger.reserve(self.now, seen.reading, units, f"r{self.count}")
        if isinstance(answer, Reservation):
            self.running[answer.id] = Sent(units, self.now + delay)
            self.last = (seen, answer.id)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[id]
        self.ledger.release(id, accepted=True)

    @invariant()
    def load_at_the_reading_and_what_it_cannot_have_seen_fit(self) -> None:
        if self.last is None:
            return
        seen, id = self.last
        if id not in self.running:
            return
        unseen = sum(sent.units for one, sent in self.running.items() if one not in seen.included)
        fits = seen.load + unseen <= closing_point(Fraction(self.CAPACITY), self.BASELINE)
        assert fits or len(self.running) == 1

    @invariant()
    def the_book_knows_what_runs(self) -> None:
        assert self.ledger.in_flight == sum(sent.units for sent in self.running.values())


class TestTarget(Target.TestCase):  # type: ignore[misc, name-defined]  # made by Hypothesis
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_12_the_later_retry_after_counts() -> None:
    ledger = TargetLedger(LEASE)
    ledger.report_overload(20, 500)
    ledger.report_overload(30, 0)
    assert refused(ledger.reserve(40, Reading(Fraction(9), 40), 1, "a"), "asked").until_ms == 520
    reserved(ledger.reserve(520, Reading(Fraction(9), 40), 1, "a"))


def test_12_what_began_before_the_probe_widens_nothing() -> None:
    ledger = TargetLedger(LEASE)
    reserved(ledger.reserve(10, Reading(Fraction(100), 10), 1, "before"))
    ledger.report_overload(20, 0)
    new = Reading(Fraction(100), 21)
    reserved(ledger.reserve(22, new, 1, "probe"))
    for id in ("probe", "before"):
        ledger.release(id, accepted=True)
    granted = [isinstance(ledger.reserve(24, new, 1, f"w{i}"), Reservation) for i in range(3)]
    assert granted == [True, True, False]


@pytest.mark.parametrize("end", ["released", "lapsed"])
def test_12_a_probe_that_says_nothing_is_followed_by_another(end: str) -> None:
    ledger = TargetLedger(LEASE)
    ledger.report_overload(0, 0)
    reserved(ledger.reserve(1, Reading(Fraction(9), 1), 1, "probe"))
    if end == "released":
        ledger.release("probe", accepted=False)
    else:
        ledger.drop_lapsed(1 + LEASE)
    assert reserved(ledger.reserve(1 + LEASE, Reading(Fraction(9), 1), 1, "second")).probe


def test_12_the_ramp_ends_at_n_or_where_it_holds_nobody_up() -> None:
    for reading, accepted in ((Reading(Fraction(4), 5), 2), (ENDLESS, RAMP_END.bit_length())):
        ledger = TargetLedger(LEASE)
        ledger.report_overload(0, 0)
        for number in range(accepted):
            reserved(ledger.reserve(5, reading, 1, f"p{number}"))
            ledger.release(f"p{number}", accepted=True)
        granted = [ledger.reserve(6, reading, 1, f"r{number}") for number in range(2000)]
        expected = min(2000, int(reading.headroom))
        assert sum(isinstance(answer, Reservation) for answer in granted) == expected


def test_09_a_reading_from_before_the_broker_clock_went_back_lets_nobody_in() -> None:
    ledger = TargetLedger(LEASE)
    before = Reading(Fraction(2), 10_000)
    reserved(ledger.reserve(10_000, before, 1, "a"))
    for number in range(5):  # what began now cannot be told from what the reading has seen
        refused(ledger.reserve(4_000, before, 1, f"b{number}"), "future")
    reserved(ledger.reserve(4_100, Reading(Fraction(2), 4_050), 1, "c"))
    refused(ledger.reserve(4_100, Reading(Fraction(2), 4_050), 1, "d"), "spent")  # "a" may not be in it


def test_12_a_target_opens_again_though_the_broker_clock_went_back() -> None:
    ledger = TargetLedger(LEASE)
    ledger.report_overload(9_000_000, LONGEST_RETRY_AFTER_MS)
    refused(ledger.reserve(1_000, Reading(Fraction(2), 1_000), 1, "a"), "stale")
    newer = Reading(Fraction(2), 1_001)
    refusal = refused(ledger.reserve(1_002, newer, 1, "a"), "asked")
    assert refusal.until_ms is not None
    assert refusal.until_ms <= 1_002 + LONGEST_RETRY_AFTER_MS


def test_20_a_killed_holder_is_forgotten_though_the_broker_clock_went_back() -> None:
    ledger = TargetLedger(LEASE)
    reserved(ledger.reserve(9_000_000, Reading(Fraction(1), 9_000_000), 1, "killed"))
    ledger.drop_lapsed(1_000)
    assert ledger.drop_lapsed(1_000 + LEASE)
    assert ledger.in_flight == 0


class Kept(RuleBasedStateMachine):
    """A ledger that a broker stores as JSON after each step answers as one that is only kept in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.count = 0
        self.ledger, self.stored = TargetLedger(LEASE), TargetLedger(LEASE)

    @rule(later=st.integers(0, LEASE), units=st.integers(1, 3), room=st.integers(0, 9), ago=st.integers(0, 5))
    def reserve(self, later: int, units: int, room: int, ago: int) -> None:
        self.now, self.count = self.now + later, self.count + 1
        reading = Reading(Fraction(room), self.now - ago)
        for one in (self.ledger, self.stored):
            one.drop_lapsed(self.now)
        id = f"r{self.count}"
        answers = [one.reserve(self.now, reading, units, id) for one in (self.ledger, self.stored)]
        assert answers[0] == answers[1]

    @rule(number=st.integers(1, 9), accepted=st.booleans())
    def release(self, number: int, accepted: bool) -> None:
        ended = [one.release(f"r{number}", accepted=accepted) for one in (self.ledger, self.stored)]
        assert ended[0] == ended[1]

    @rule(asked=st.integers(0, 50))
    def overload(self, asked: int) -> None:
        for one in (self.ledger, self.stored):
            one.report_overload(self.now, asked)

    @invariant()
    def it_is_loaded_again(self) -> None:
        self.stored = TargetLedger.load(LEASE, json.loads(json.dumps(self.stored.dump())))
        assert self.stored.dump() == self.ledger.dump()
        assert self.stored.in_flight == self.ledger.in_flight


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

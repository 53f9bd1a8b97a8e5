"""What a peer may say, and what is believed of it."""

import random
from array import array
from collections.abc import Callable

import pytest

from epp.endpoints.load import Load
from epp.outlier_watch import OutlierWatch
from epp.outliers.settings import OutlierSettings
from epp.peers.messages.peers_pb2 import Learnt, News, Picks, Queues
from epp.peers.publisher import MOST_CHAINS, PART, RecentChains, packed, unpacked
from epp.peers.subscriber import (
    MOST_FORWARDED,
    MOST_MESSAGE,
    MOST_NUMBERED,
    MOST_PICKS,
    PeerFaultError,
    PickSubscriber,
)
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.plugin import ChainProducer
from epp.scheduling.work_ahead.cost_model import WorkerPace
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from tests.epp.peers.pickers import PublishingPicker, Wire, two

PROMPT = "a long prompt that fills some blocks of a prefix cache " * 100


def held(picker: PublishingPicker) -> int:
    """Blocks in its prefix index."""
    (found,) = [one for one in picker.director.producers if isinstance(one, PrecisePrefixCacheProducer)]
    return len(found.estimate.index)


def named() -> News:
    news = News()
    news.endpoints.add(number=1, id="w0", incarnation="1")
    return news


def test_a_pick_counts_at_the_peer_as_its_own() -> None:
    one, other, wire = two(3)
    pick = one.pick(PROMPT, 1.0, only=2)
    assert one.is_awake
    wire.tell(1.02)
    assert one.inflight() == {("w2", "1"): (1, 0)}
    assert other.inflight() == {("w2", "1"): (0, 1)}
    pool = other.store.pool(1.03)
    assert (pool.inflight.tolist(), pool.peer_inflight.tolist()) == ([0, 0, 1], [0, 0, 1])
    for picker in one, other:
        picker.read_pages(1.03)
    # the prompt that is ahead there is as dear as an own one, and its prefix as good
    chosen = [picker.pick(PROMPT + "and more", 1.04).endpoints[0].id for picker in (one, other)]
    assert chosen[0] == chosen[1]
    one.director.picks.responded(pick, 200, 1.05)
    one.director.picks.release(pick, 1.06)
    wire.tell(1.08)
    assert other.store.peer_inflight(pick.endpoints[0]) == 0


def test_a_prompt_on_a_worker_of_its_own_is_ahead_there_and_over_when_the_answer_begins() -> None:
    one, other = PublishingPicker(0), PublishingPicker(0)
    for picker in one, other:
        picker.join(0, "decode")
        picker.join(1, "prefill")
        for endpoint, running in zip(picker.store.endpoints, (20.0, 0.0), strict=True):
            picker.store.observe(endpoint, Load(waiting=0.0, running=running, kv_usage=0.0), 0.9)
    wire = Wire(one, other)
    [work] = [one for one in other.director.producers if isinstance(one, WorkAheadProducer)]
    pick = one.pick(PROMPT, 1.0, stream=True)
    assert pick.helpers["prefill"] == (one.store.endpoints[1],)
    wire.tell(1.02)
    ahead = work.ahead(other.store.pool(1.03)).tolist()
    assert ahead == [1.0, pick.request.prompt_size / 4]
    assert other.inflight() == {("w0", "1"): (0, 1), ("w1", "1"): (0, 1)}
    one.director.picks.responded(pick, 200, 1.1)
    wire.tell(1.12)
    assert work.ahead(other.store.pool(1.13))[1] == 0.0
    assert other.inflight() == {("w0", "1"): (0, 1)}
    one.director.picks.release(pick, 1.2)
    wire.tell(1.22)
    assert other.inflight() == {}


def test_where_pages_do_not_tell_a_prompt_is_over_at_the_peer_when_its_answer_begins() -> None:
    one, other, wire = two(1)
    [work] = [one for one in other.director.producers if isinstance(one, WorkAheadProducer)]
    other.read_pages(0.9)
    first, second = one.pick(PROMPT, 1.0, stream=True), one.pick("another", 1.0, stream=True)
    wire.tell(1.02)
    (ledger,) = work.ledgers.by_key.values()
    ledger.hold(held=True)
    for pick in first, second:
        one.director.picks.responded(pick, 200, 1.1)
    one.director.picks.release(second, 1.1)  # its Envoy says no more than that headers came

    def ahead(now: float) -> float:
        wire.tell(now)
        return work.ahead(other.store.pool(now)).item()

    assert ahead(1.12) == (first.request.prompt_size + second.request.prompt_size) / 4
    one.director.picks.first_byte(first, 1.2, 1.2)
    assert ahead(1.22) == second.request.prompt_size / 4
    one.director.picks.first_byte(second, 1.3, 1.3)
    assert ahead(1.32) == 0.0


def test_a_newcomer_is_told_what_is_in_flight_and_held() -> None:
    one, newcomer = PublishingPicker(3), PublishingPicker(3)
    served = one.pick(PROMPT, 1.0, only=1)
    one.publisher.flush(1.01)
    one.director.picks.responded(served, 200, 1.5)
    one.director.picks.release(served, 1.5)
    one.pick("another", 1.6, only=0)
    one.publisher.flush(1.61)
    newcomer.read_pages(1.9)
    Wire(one, newcomer).carry(2.0)
    assert newcomer.inflight() == {("w0", "1"): (0, 1)}
    assert newcomer.pick(PROMPT, 2.1).endpoints[0].id == "w1"


def test_what_was_told_goes_with_the_connection() -> None:
    one, other, wire = two(3)
    for _ in range(10):
        one.pick(PROMPT, 1.0)
    wire.tell(1.02)
    assert sum(count for _, count in other.inflight().values()) == 10
    wire.cut()
    assert other.inflight() == {}
    wire.carry(1.1)
    assert sum(count for _, count in other.inflight().values()) == 10


def test_blocks_that_an_earlier_pick_had_are_not_told_again() -> None:
    one, other, wire = two(1)
    one.pick(PROMPT, 1.0)
    wire.tell(1.02)
    first = wire.bytes
    one.pick(PROMPT + "more", 1.1)
    wire.tell(1.12)
    assert wire.bytes - first < first / 2
    assert held(other) == held(one) > 0


def test_much_at_once_is_several_messages() -> None:
    """As when a pool that was full has room for all that waits: who hears bounds a message."""
    one, other, wire = two(1)
    picks = [one.pick(f"{number} " * 5000, 1.0) for number in range(2 * PART + 1)]
    late = Wire(one, PublishingPicker(1))
    late.carry(1.0)
    one.publisher.flush(1.01)
    kept = [one.publisher.since(at) for at in range(4)]
    assert [news is not None and len(news.data) < MOST_MESSAGE for news in kept] == [True, True, True, False]
    for each in wire, late:
        each.carry(1.02)
        assert len(each.subscriber) == len(picks)
    one.is_awake = False
    for pick in picks:
        one.director.picks.release(pick, 1.1)
    assert one.is_awake
    wire.tell(1.12)
    assert other.inflight() == {}


def test_a_worker_that_is_known_here_later_counts_from_then_on() -> None:
    one, other = PublishingPicker(3), PublishingPicker(2)
    wire = Wire(one, other)
    one.pick(PROMPT, 1.0, only=2)
    wire.tell(1.0)
    assert (other.inflight(), wire.subscriber.unplaced) == ({}, 1)
    one.pick("another", 1.1, only=0)
    other.join(2)
    wire.tell(1.2)
    assert other.inflight() == {("w0", "1"): (0, 1), ("w2", "1"): (0, 1)}
    assert wire.subscriber.unplaced == 0


def test_hashes_of_another_layout_are_not_compared() -> None:
    one, other = PublishingPicker(2), PublishingPicker(2)
    for producer in one.director.producers:
        if isinstance(producer, ChainProducer):
            producer.use_seed(8)
    wire = Wire(one, other)
    one.pick(PROMPT, 1.0)
    wire.tell(1.02)
    assert wire.subscriber.other_layout
    assert held(other) == 0
    assert sum(count for _, count in other.inflight().values()) == 1


def test_what_one_has_ejected_the_others_avoid_as_far_as_that_is_allowed() -> None:
    one, other, wire = two(4)
    watch = OutlierWatch(other.director, other.store, lambda: 1.0, random.Random(1))
    watch.use(OutlierSettings(), None)

    def told(*numbers: int) -> list[bool]:
        one.publisher.ejected([one.store.endpoints[number] for number in numbers])
        wire.tell(1.0)
        watch.set_ejected_by_peers(wire.subscriber.ejected)
        return other.store.pool(1.0).reachable.tolist()

    assert told(1) == [True, False, True, True]
    assert told(2, 3, 1) == [True, False, False, True], "half of the pool at most"
    assert told() == [True] * 4
    assert other.store.all_reachable
    told(0)
    wire.cut()
    watch.set_ejected_by_peers(wire.subscriber.ejected)
    assert other.store.all_reachable, "it goes with the connection"
    told(0)
    wire.carry(1.0)
    watch.use(None, None)
    watch.set_ejected_by_peers(wire.subscriber.ejected)
    assert other.store.all_reachable, "a configuration without outlierDetection ejects nothing"


def add(
    news: News, number: int, endpoint: int = 1, *, size: int = 0, units: int = 0, fresh: int = 0
) -> Picks:
    """One row."""
    picks = news.picks
    for column, value in (
        (picks.numbers, number), (picks.endpoints, endpoint), (picks.models, 0), (picks.prompt_bytes, size), (picks.held, 0),
        (picks.streaming, False), (picks.units, units), (picks.backs, 0), (picks.shared, 0), (picks.fresh, fresh),
    ):  # fmt: skip
        column.append(value)
    return picks


def _unnamed(news: News) -> None:
    add(news, 1, 9)


def _short_column(news: News) -> None:
    add(news, 1).endpoints.clear()


def _everywhere(news: News) -> None:
    for _ in range(1000):
        news.picks.helpers.add(row=0, endpoint=1)
    add(news, 1)


def _stray_helper(news: News) -> None:
    add(news, 1).helpers.add(row=1, endpoint=1)


def _backwards(news: News) -> None:
    add(news, 5)
    add(news, 5)


def _huge(news: News) -> None:
    add(news, 1, size=2**32 - 1)


def _crowd(news: News) -> None:
    for number in range(MOST_PICKS + 1):
        add(news, number + 1)


def _long_chain(news: News) -> None:
    add(news, 1, units=9).shared[0] = 2**32 - 1


def _missing_blocks(news: News) -> None:
    add(news, 1, units=9, fresh=1).blocks = b"123"


def _long_name(news: News) -> None:
    news.endpoints.add(number=2, id="x" * 10_000)


def _moved_away(news: News) -> None:
    news.moves.add(number=1, endpoint=7)


def _names(news: News) -> None:
    for number in range(30_000):
        news.models.add(number=number, name="m")


def _many_outcomes(news: News) -> None:
    news.served.extend(range(2000))
    news.failed.extend(range(2000))
    news.ended.extend(range(1001))


def _many_ejections(news: News) -> None:
    news.ejections.endpoints.extend([1] * (MOST_NUMBERED + 1))


def _many_entries(news: News) -> None:
    news.log_entries.extend([b""] * (MOST_FORWARDED + 1))


LIES = [
    _unnamed, _short_column, _everywhere, _stray_helper, _backwards, _huge, _crowd, _long_chain, _missing_blocks, _long_name, _moved_away, _names,
    _many_outcomes, _many_ejections, _many_entries,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__.strip("_"))
def test_what_makes_no_sense_is_a_fault(lie: Callable[[News], None]) -> None:
    picker, news = PublishingPicker(2), named()
    lie(news)
    heard = picker.subscriber()
    with pytest.raises(PeerFaultError):
        heard.hear(News.FromString(news.SerializeToString()), 1.0)
    heard.forget()
    assert picker.inflight() == {}


def test_outcomes_of_unknown_picks_are_skipped() -> None:
    picker, news = PublishingPicker(2), named()
    for numbers in news.served, news.failed, news.ended:
        numbers.extend([1, 2**64 - 1, 0])
    picker.subscriber().hear(news, 1.0)
    assert picker.inflight() == {}


def test_more_in_flight_than_a_picker_can_have_is_a_fault() -> None:
    picker, news = PublishingPicker(1), named()
    for number in range(11):
        add(news, number + 1)
    with pytest.raises(PeerFaultError, match="more than 10 picks in flight"):
        PickSubscriber(picker.director.picks, picker.store, most_open=10).hear(news, 1.0)


def test_fields_of_a_newer_picker_are_skipped() -> None:
    picker, news = PublishingPicker(2), named()
    add(news, 1)
    newer = news.SerializeToString() + b"\xfa\x3e\x03abc"  # field 1007
    picker.subscriber().hear(News.FromString(newer), 1.0)
    assert picker.inflight() == {("w0", "1"): (0, 1)}


def test_hashes_survive_packing() -> None:
    hashes = array("Q", [0, 1, 2**64 - 1, 0x0102030405060708])
    assert array("Q", unpacked(packed(hashes[:]))) == hashes
    assert packed(array("Q", [1])) == b"\1" + bytes(7)


def test_what_was_learnt_is_told_and_goes_with_the_connection() -> None:
    one, other, newcomer = PublishingPicker(1), PublishingPicker(1), PublishingPicker(1)
    wire, late = Wire(one, other), Wire(one, newcomer)
    wire.carry(1.0)
    (producer,) = [found for found in one.director.producers if isinstance(found, WorkAheadProducer)]
    one.publisher.teach()
    assert not one.is_awake, "nothing was learnt yet"
    rng, pace = random.Random(1), WorkerPace()
    for _ in range(100):
        known = rng.choice((1.0, 3000.0)), rng.choice((0.0, 6000.0)), float(rng.randrange(8)), 0.0, 0.0
        producer.model.observe(pace, known, 0.02 + known[0] / 4000 + known[1] / 10_000, -1.0)
    assert producer.own_fit is not None
    one.publisher.teach()
    one.publisher.flush(1.1)
    for each in wire, late:
        each.carry(1.2)
        assert each.subscriber.learnt == producer.own_fit
    one.is_awake = False
    one.publisher.teach()
    assert not one.is_awake, "it is told once"
    wire.cut()
    assert wire.subscriber.learnt is None


@pytest.mark.parametrize(
    ("seconds", "answers"),
    [([float("nan")], 1), ([-1.0], 1), ([float("inf")], 1), ([3601.0], 1), ([0.1] * 33, 1), ([0.1] * 6, 0)],
)
def test_what_cannot_be_learnt_is_a_fault(seconds: list[float], answers: int) -> None:
    subscriber = PublishingPicker(1).subscriber()
    with pytest.raises(PeerFaultError, match="learnt"):
        subscriber.hear(News(learnt=Learnt(seconds=seconds, answers=answers)), 1.0)


def test_what_waits_is_told_and_goes_with_the_connection() -> None:
    one, other, newcomer = PublishingPicker(1), PublishingPicker(1), PublishingPicker(1)
    wire, late = Wire(one, other), Wire(one, newcomer)
    wire.carry(1.0)
    one.publisher.queued({0: 3, -2: 1})
    one.publisher.flush(1.1)
    for each in wire, late:
        each.carry(1.2)
        assert each.subscriber.waiting == {0: 3, -2: 1}
    one.is_awake = False
    one.publisher.queued({0: 3, -2: 1})
    assert not one.is_awake, "it is told once"
    one.publisher.queued({})
    wire.tell(1.4)
    assert wire.subscriber.waiting == {}
    late.cut()
    assert late.subscriber.waiting == {}
    with pytest.raises(PeerFaultError, match="queues"):
        other.subscriber().hear(News(queues=Queues(priorities=[1], waiting=[])), 1.0)


def test_what_a_conversation_begins_with_is_told_once_as_long_as_it_goes_on() -> None:
    chains, number = RecentChains(), 0
    for turn in range(1, 9):
        number += 1
        base, shared = chains.add(number, range(1, turn + 1))
        assert shared == turn - 1
        assert number - base <= MOST_CHAINS
        for _ in range(MOST_CHAINS // 2 - 100):
            number += 1
            assert chains.add(number, [10_000 + number]) == (0, 0)
    for _ in range(MOST_CHAINS):
        number += 1
        chains.add(number, [10_000 + number])
    assert chains.add(number, range(1, 9)) == (0, 0)

"""What one picker knows of a cache is handed to another: as much as the first knows, or nothing."""

import random
from collections import deque

import pytest

from epp.scheduling.kv_events.batches import BlocksCleared, BlocksRemoved, BlocksStored
from epp.scheduling.kv_events.cache_index import CacheIndex
from epp.scheduling.kv_events.event_stream import Knowledge, KvEventStream
from epp.scheduling.kv_events.snapshot import CacheSnapshot, SnapshotError, SnapshotReader, written
from tests.epp.kv_events.steps import done
from tests.epp.scheduling.kv_events.test_cache_index import GPU, HOST, PROMPT, blocks, store
from tests.epp.scheduling.kv_events.test_event_stream import PROMPTS, SIZE, Publisher, held_by, replay

SEED = 5


def opened(seed: int = SEED) -> tuple[CacheIndex, KvEventStream]:
    index = CacheIndex(seed=seed)
    # of another worker, which has other names for the same blocks
    other = index.add_publisher()
    for prompt in range(PROMPTS // 2):
        done(index.apply(other, [BlocksStored(GPU, [prompt + 1000], None, [prompt] * SIZE, SIZE)]))
    return index, KvEventStream(index, index.add_publisher(), can_replay=True)


def carried(given: CacheSnapshot) -> CacheSnapshot:
    header, *parts = written(given)
    reader = SnapshotReader(header, 1000)
    for part in parts:
        reader.add(part)
    return reader.snapshot()


def following(publisher: Publisher, batches: int) -> tuple[CacheIndex, KvEventStream]:
    """One that has followed from the beginning."""
    index, stream = opened()
    replay(stream, publisher)
    for _ in range(batches):
        done(stream.live(*publisher.publish()))
    return index, stream


def known() -> tuple[Publisher, KvEventStream, CacheSnapshot]:
    """A publisher that keeps little, one that has followed it for long, and what that one knows."""
    publisher = Publisher(random.Random(1), 20)
    _, knowing = following(publisher, 300)
    given = done(knowing.snapshot())
    assert given is not None
    return publisher, knowing, given


def test_a_newcomer_knows_what_the_publisher_no_longer_keeps() -> None:
    publisher, _, given = known()
    index, stream = opened()
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.PARTIAL
    for _ in range(5):  # meanwhile
        done(stream.live(*publisher.publish()))
    assert done(stream.adopt(carried(given)))
    assert stream.knowledge is Knowledge.CATCHING_UP
    replay(stream, publisher)
    for _ in range(300):
        done(stream.live(*publisher.publish()))
        assert held_by(index, stream.holdings) == publisher.held
    assert (stream.knowledge, stream.restarts) == (Knowledge.EXACT, 0)


def test_what_is_known_of_another_life_is_not_believed() -> None:
    publisher, _, given = known()
    publisher.restart()
    for _ in range(320):
        publisher.publish()
    index, stream = opened()
    replay(stream, publisher)
    assert done(stream.adopt(given))
    replay(stream, publisher)
    assert (stream.knowledge, stream.restarts) == (Knowledge.PARTIAL, 1)
    assert held_by(index, stream.holdings) <= publisher.held


def test_only_what_is_exact_is_handed_over_and_only_to_who_lacks_it() -> None:
    publisher, knowing, given = known()
    assert not done(knowing.adopt(given)), "it knows all"
    _, partial = opened()
    replay(partial, publisher)
    assert done(partial.snapshot()) is None
    assert not done(partial.adopt(given._replace(layout=1))), "its keys are others"
    _, fresh = opened()
    assert not done(fresh.adopt(given)), "its own replay comes first"


def test_references_and_names_are_handed_over() -> None:
    source = CacheIndex(seed=SEED)
    holdings = source.add_publisher()
    window = ("gpu", 1, "", "")
    sparse = BlocksStored(window, [2], whole=False)
    events = [
        store([1, 2, 3, 4]),
        store([1], tokens=[], scope=HOST),  # in two tiers
        store([9], parent=1, tokens=PROMPT[16:32]),  # a second name of 2
        sparse,
        BlocksRemoved(GPU, [4]),
    ]
    done(source.apply(holdings, events))
    target = CacheIndex(seed=SEED)
    stranger, copy = target.add_publisher(), target.add_publisher()
    done(target.apply(stranger, [store([7, 8])]))
    held = done(source.held_by(holdings))
    done(target.restore(copy, held))
    more = [
        [BlocksRemoved(GPU, [1])],
        [BlocksRemoved(HOST, [1])],
        [store([1])],
        [BlocksRemoved(GPU, [2])],
        [BlocksRemoved(GPU, [9])],
        [BlocksRemoved(window, [2])],
        [BlocksCleared()],
    ]
    for step in [[], *more]:
        done(source.apply(holdings, step))
        done(target.apply(copy, step))
        assert blocks(target, copy) == blocks(source, holdings), step
        assert copy.count == holdings.count
    assert blocks(target, stranger) == 2


def test_it_can_be_interrupted() -> None:
    publisher, _, given = known()
    index, stream = opened()
    replay(stream, publisher)
    work = stream.adopt(given)
    next(work)
    stream.interrupted()
    assert not done(work)
    assert (stream.knowledge, held_by(index, stream.holdings)) == (Knowledge.CATCHING_UP, set())
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.PARTIAL


def test_there_is_no_room() -> None:
    publisher, _, given = known()
    index = CacheIndex(4, SEED)
    stream = KvEventStream(index, index.add_publisher(), can_replay=True)
    replay(stream, publisher)
    assert done(stream.adopt(given))
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.PARTIAL
    assert held_by(index, stream.holdings) <= publisher.held


def test_what_is_no_snapshot_is_refused() -> None:
    *_, given = known()
    header, *parts = written(given)
    for wrong in (b"", b"\xc1", bytes(70_000), header[:-1], header.replace(b"little", b"bigger")):
        with pytest.raises(SnapshotError):
            SnapshotReader(wrong, 1000)
    with pytest.raises(SnapshotError, match="expected at most 3"):
        SnapshotReader(header, 3)
    reader = SnapshotReader(header, 1000)
    with pytest.raises(SnapshotError, match="its header says"):
        reader.snapshot()
    for part in parts:
        reader.add(part)
    with pytest.raises(SnapshotError, match="more than"):
        reader.add(b"x")


@pytest.mark.parametrize("seed", range(3))
def test_many_hand_overs_between_lost_and_late_batches(seed: int) -> None:
    rng = random.Random(seed)
    publisher = Publisher(rng, 15)
    knowing = following(publisher, 0)
    recent: deque[CacheSnapshot] = deque(maxlen=3)
    exact = 0
    for _ in range(300):
        for _ in range(rng.randrange(1, 30)):
            batch = publisher.publish()
            if rng.random() < 0.98:
                done(knowing[1].live(*batch))
            replay(knowing[1], publisher)
        if rng.random() < 0.03:
            publisher.restart()
            knowing[1].interrupted()
            replay(knowing[1], publisher)
        if (fresh := done(knowing[1].snapshot())) is not None:
            recent.append(fresh)
        index, stream = opened()
        replay(stream, publisher)
        if recent and done(stream.adopt(rng.choice(recent))):
            replay(stream, publisher)
        known, held = stream.knowledge, held_by(index, stream.holdings)
        assert held <= publisher.held
        if known is Knowledge.EXACT:
            exact += 1
            assert held == publisher.held
        if rng.random() < 0.2:
            knowing = index, stream
    assert exact > 100

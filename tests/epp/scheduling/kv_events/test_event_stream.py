"""Batches in any order: lost, doubled, late, of another life of the publisher. What is believed is right, or said to be partial."""

import random
from collections import Counter, deque

import msgspec
import pytest

from epp.scheduling.kv_events.cache_holdings import CacheHoldings
from epp.scheduling.kv_events.cache_index import CacheIndex
from epp.scheduling.kv_events.event_stream import Knowledge, KvEventStream
from epp.scheduling.kv_events.prompt_tokens import pack_tokens
from examples.simulator.kv_messages import AllBlocksCleared, removed, stored, vllm
from tests.epp.kv_events.steps import done

SIZE = 16
PROMPTS = 30


class Publisher:
    """One life of a worker after the other. It holds prompts of one block each. `keeps`: batches for a replay."""

    def __init__(self, rng: random.Random, keeps: int) -> None:
        self._rng = rng
        self._keeps = keeps
        self._now = 0.0
        self.restart()

    def restart(self) -> None:
        self.held: set[int] = set()
        self._number = 0
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=self._keeps)

    def publish(self) -> tuple[int, bytes]:
        self._now += 1.0
        prompt = self._rng.randrange(PROMPTS)
        if self._rng.random() < 0.01:
            event, self.held = AllBlocksCleared(), set[int]()
        elif prompt in self.held:
            self.held.discard(prompt)
            event = removed(prompt)
        else:
            self.held.add(prompt)
            event = stored([prompt], [prompt] * SIZE)
        batch = self._number, vllm(event, ts=self._now)
        self._number += 1
        self.kept.append(batch)
        return batch


def held_by(index: CacheIndex, holdings: CacheHoldings) -> set[int]:
    root = index.root(None, "")
    tokens = (pack_tokens([prompt] * SIZE) for prompt in range(PROMPTS))
    return {at for at, one in enumerate(tokens) if index.match(one, root, holdings.bit, SIZE)}


def replay(stream: KvEventStream, publisher: Publisher, rng: random.Random | None = None) -> None:
    """As the subscriber does. With `rng` some fail on the way."""
    rounds = 0
    while stream.wants_replay:
        rounds += 1
        assert rounds < 10, "replays for ever"
        first = stream.begin_replay()
        for number, payload in list(publisher.kept):
            if number >= first and not done(stream.replayed(number, payload)):
                break
        if stream.replaying and rng is not None and rng.random() < 0.1:
            stream.interrupted()
            return
        if stream.replaying:
            done(stream.end_replay(complete=True))


def opened(*, can_replay: bool = True) -> tuple[CacheIndex, KvEventStream]:
    index = CacheIndex()
    return index, KvEventStream(index, index.add_publisher(), can_replay=can_replay)


def test_what_was_published_before_is_replayed_and_then_followed() -> None:
    index, stream = opened()
    publisher = Publisher(random.Random(1), 10_000)
    for _ in range(100):
        publisher.publish()
    assert stream.knowledge is Knowledge.CATCHING_UP
    first = stream.begin_replay()
    assert first == 0
    batches = list(publisher.kept)
    late = publisher.publish()
    done(stream.live(*late))  # published during the replay, and part of it or not
    for number, payload in batches:
        assert done(stream.replayed(number, payload))
    done(stream.end_replay(complete=True))
    assert stream.knowledge is Knowledge.EXACT
    assert held_by(index, stream.holdings) == publisher.held
    done(stream.live(*late))  # twice
    assert held_by(index, stream.holdings) == publisher.held


def test_a_gap_is_filled_and_nothing_is_believed_meanwhile() -> None:
    index, stream = opened()
    publisher = Publisher(random.Random(1), 10_000)
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.EXACT  # it has published nothing
    for _ in range(10):
        done(stream.live(*publisher.publish()))
    publisher.publish()
    done(stream.live(*publisher.publish()))
    assert (stream.knowledge, stream.gaps) == (Knowledge.CATCHING_UP, 1)
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.EXACT
    assert held_by(index, stream.holdings) == publisher.held


@pytest.mark.parametrize("more", [False, True], ids=["its numbers step back", "it has published more"])
def test_another_life_is_seen(more: bool) -> None:
    index, stream = opened()
    publisher = Publisher(random.Random(1), 10_000)
    for _ in range(10):
        publisher.publish()
    replay(stream, publisher)
    publisher.restart()
    if more:
        for _ in range(30):
            publisher.publish()
        stream.interrupted()
    else:
        done(stream.live(*publisher.publish()))
    replay(stream, publisher)
    assert (stream.knowledge, stream.restarts) == (Knowledge.EXACT, 1)
    assert held_by(index, stream.holdings) == publisher.held


def test_a_lost_connection_alone_loses_nothing() -> None:
    index, stream = opened()
    publisher = Publisher(random.Random(1), 10)
    stream.wants_replay = False
    for _ in range(50):
        done(stream.live(*publisher.publish()))
    stream.interrupted()
    assert stream.knowledge is Knowledge.CATCHING_UP
    publisher.publish()
    replay(stream, publisher)
    assert (stream.knowledge, stream.restarts) == (Knowledge.EXACT, 0)
    assert held_by(index, stream.holdings) == publisher.held


def test_without_a_replay_what_is_missing_is_said() -> None:
    index, stream = opened(can_replay=False)
    publisher = Publisher(random.Random(1), 0)
    assert stream.knowledge is Knowledge.UNKNOWN
    publisher.publish()
    done(stream.live(*publisher.publish()))
    assert stream.knowledge is Knowledge.PARTIAL
    publisher.restart()
    done(stream.live(*publisher.publish()))
    assert stream.knowledge is Knowledge.EXACT  # from its first batch on
    assert held_by(index, stream.holdings) == publisher.held
    stream.interrupted()
    assert (stream.knowledge, held_by(index, stream.holdings)) == (Knowledge.UNKNOWN, set())


def test_what_follows_a_clear_is_all() -> None:
    index, stream = opened(can_replay=False)
    done(stream.live(7, vllm(stored([1], [1] * SIZE), ts=1.0)))
    assert stream.knowledge is Knowledge.PARTIAL
    done(stream.live(8, vllm(AllBlocksCleared(), stored([2], [2] * SIZE), ts=2.0)))
    assert (stream.knowledge, held_by(index, stream.holdings)) == (Knowledge.EXACT, {2})


@pytest.mark.parametrize("can_replay", [True, False])
def test_of_a_batch_whose_application_was_interrupted_nothing_counts(can_replay: bool) -> None:
    tokens = [token for block in range(2000) for token in [block] * SIZE]
    payload = vllm(stored(list(range(2000)), tokens), removed(*range(1000)))
    for step in range(1, 40):
        _, stream = opened(can_replay=can_replay)
        stream.wants_replay = False
        work = stream.live(0, payload)
        if sum(1 for _, _ in zip(range(step), work, strict=False)) < step:
            break
        stream.interrupted()
        done(work)
        assert stream.holdings.count == 0
        assert stream.knowledge is (Knowledge.CATCHING_UP if can_replay else Knowledge.UNKNOWN)
        assert not can_replay or stream.begin_replay() == 0
    assert step > 8
    assert stream.holdings.count == 1000


def test_a_short_buffer_is_said() -> None:
    index, stream = opened()
    publisher = Publisher(random.Random(1), 5)
    for _ in range(50):
        publisher.publish()
    replay(stream, publisher)
    assert stream.knowledge is Knowledge.PARTIAL
    assert held_by(index, stream.holdings) <= publisher.held


def test_a_batch_that_cannot_be_read_may_have_removed_anything() -> None:
    for broken in (b"\xc1", vllm({"type": "BlockRemoved", "block_hashes": None})):
        index, stream = opened(can_replay=False)
        done(stream.live(0, vllm(stored([1], [1] * SIZE))))
        assert held_by(index, stream.holdings) == {1}
        done(stream.live(1, broken))
        assert (held_by(index, stream.holdings), stream.knowledge) == (set(), Knowledge.PARTIAL)
        done(stream.live(2, vllm(stored([2], [2] * SIZE))))
        assert held_by(index, stream.holdings) == {2}


def test_what_others_publish_there_has_no_end() -> None:
    """A clock that was set back: batches of lower numbers and earlier times are another life at last."""
    index, stream = opened(can_replay=False)
    done(stream.live(0, vllm(stored([1], [1] * SIZE), ts=1e9)))
    done(stream.live(1, vllm(stored([2], [2] * SIZE), ts=1e9)))
    for number in range(40):
        done(
            stream.live(number % 2, vllm(stored([3 + number % 2], [3 + number % 2] * SIZE), ts=float(number)))
        )
    assert stream.restarts
    assert not held_by(index, stream.holdings) & {1, 2}


def test_held_batches_are_bounded() -> None:
    _, stream = opened()
    stream.begin_replay()
    big = msgspec.msgpack.encode([1.0, [{"type": "X", "x": b"x" * 1_000_000}]])
    for number in range(200):
        done(stream.live(number, big))
    assert stream._held_bytes <= 32 * 1024 * 1024
    for number in range(20_000):
        done(stream.live(number, b""))
    assert len(stream._held) <= 10_000


def storm(seed: int, keeps: int, batches: int) -> Counter[Knowledge]:
    """Batches lost, doubled, late, foreign and of other lives. Returns how often what was known of it, and it was right."""
    rng = random.Random(seed)
    publisher = Publisher(rng, keeps)
    index, stream = opened(can_replay=keeps > 0)
    late: list[tuple[int, bytes]] = []
    seen: Counter[Knowledge] = Counter()
    for step in range(batches):
        batch = publisher.publish()
        chance = rng.random()
        if chance < 0.03:
            pass
        elif chance < 0.06:
            late.append(batch)
        elif chance < 0.09:
            done(stream.live(*batch))
            done(stream.live(*batch))
        else:
            done(stream.live(*batch))
        if late and rng.random() < 0.05:
            done(stream.live(*late.pop(rng.randrange(len(late)))))
        if rng.random() < 0.002:
            publisher.restart()
            late.clear()  # TCP: what an earlier process sent does not come after its end
            stream.interrupted()
        if rng.random() < 0.01:
            done(stream.live(rng.getrandbits(8), rng.randbytes(rng.randrange(40))))
        if keeps and rng.random() < 0.5:
            replay(stream, publisher, rng)
        if step % 20 == 0:
            done(stream.live(*publisher.publish()))
            if keeps:
                replay(stream, publisher)
            known, held = stream.knowledge, held_by(index, stream.holdings)
            seen[known] += 1
            if known is Knowledge.EXACT:
                assert held == publisher.held, step
            elif known is Knowledge.PARTIAL:
                assert held <= publisher.held, step
    return seen


@pytest.mark.parametrize("keeps", [10_000, 40, 0])
@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_batches_lost_doubled_late_and_of_other_lives(seed: int, keeps: int) -> None:
    seen = storm(seed, keeps, 12_000)
    assert keeps < 10_000 or seen[Knowledge.EXACT] > 400  # but after batches that cannot be read

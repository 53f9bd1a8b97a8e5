"""Whatever the windows are: every stream's bytes leave in order, within them, and what waits is counted."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from epp.request.body import MemoryBudget
from epp.wire.http2.frames import DATA, DEFAULT_WINDOW, FRAME_HEADER, FRAME_HEADER_SIZE
from epp.wire.http2.outgoing import BATCH_SIZE, Outgoing
from epp.wire.http2.streams import Stream, Streams

WINDOW = 30_000
PIECES = st.lists(st.sampled_from([0, 1, 5, 1023, 1024, 3536, 16_383, 16_384, 62_000]), max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 3]), PIECES),
    st.tuples(
        st.just("grow"), st.sampled_from([0, 1, 3]), st.sampled_from([[1], [100], [20_000], [300_000]])
    ),
    st.tuples(st.sampled_from(["block", "unblock", "frame size", "take"]), st.just(0), st.just([])),
)


class Peer:
    """What reads it, and the windows that it has given."""

    def __init__(self) -> None:
        self.memory = MemoryBudget(2**30)
        streams = Streams()
        self.outgoing = Outgoing(streams, self.memory, lambda: None)
        self.streams = {stream_id: Stream(stream_id, None) for stream_id in (1, 3)}
        self.outgoing.set_initial_window(WINDOW)
        streams.open.update(self.streams)
        self.given = Counter({0: DEFAULT_WINDOW, 1: WINDOW, 3: WINDOW})
        self.sent = {1: b"", 3: b""}
        self.read = {1: b"", 3: b""}
        self.written = 0

    def send(self, stream_id: int, sizes: list[int]) -> None:
        pieces = []
        for size in sizes:
            self.written += 1
            pieces.append(bytes((self.written % 251,)) * size)
        self.sent[stream_id] += b"".join(pieces)
        lent = [memoryview(piece) if len(piece) > 2000 else piece for piece in pieces]
        self.outgoing.send(self.streams[stream_id], lent)

    def grow(self, stream_id: int, increment: int) -> None:
        self.given[stream_id] += increment
        self.outgoing.increment_window(self.streams.get(stream_id), increment)

    def take(self) -> bool:
        self.outgoing.flush()
        said = self.outgoing.data_to_send()
        at = 0
        while at < len(said):
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(said, at)
            size = high << 8 | low
            assert (kind, flags) == (DATA, 0)
            assert 0 <= size <= self.outgoing.frame_size
            self.read[stream_id] += said[at + FRAME_HEADER_SIZE : at + FRAME_HEADER_SIZE + size]
            at += FRAME_HEADER_SIZE + size
        assert at == len(said) <= BATCH_SIZE * 1.1
        for stream_id, read in self.read.items():
            assert self.sent[stream_id].startswith(read)
            assert len(read) <= self.given[stream_id]
        assert sum(map(len, self.read.values())) <= self.given[0]
        assert self.memory.held == sum(map(len, self.sent.values())) - sum(map(len, self.read.values()))
        return bool(said)


@given(st.lists(STEPS, max_size=30))
def test_bytes_leave_in_order_within_their_windows(steps: list[tuple[str, int, list[int]]]) -> None:
    peer = Peer()
    for step, stream_id, sizes in steps:
        match step:
            case "send":
                peer.send(stream_id, sizes)
            case "grow":
                peer.grow(stream_id, sizes[0])
            case "frame size":
                peer.outgoing.frame_size = 40_000
            case "take":
                peer.take()
            case _:
                peer.outgoing.blocked = step == "block"
    peer.outgoing.blocked = False
    for stream_id in (0, 1, 3):
        peer.grow(stream_id, 2**24)
    while peer.take():
        pass
    assert peer.read == peer.sent
    assert peer.memory.held == 0


def test_streams_that_wait_share_what_may_go_at_once() -> None:
    peer = Peer()
    for stream_id in (1, 3):
        peer.grow(stream_id, 2**24)
        peer.send(stream_id, [62_000] * 10)
    peer.grow(0, 2**24)
    peer.take()
    most, least = max(map(len, peer.read.values())), min(map(len, peer.read.values()))
    assert most + least == BATCH_SIZE
    assert most - least <= 64 * 1024  # more than one share

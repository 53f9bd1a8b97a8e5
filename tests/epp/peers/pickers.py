"""Pickers without a process: a director that tells what it sends, and hears what others tell."""

import json
import random
from collections import Counter

from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.config.settings import Settings
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Key
from epp.endpoints.load import Load
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.kv_events.feed import KvEventFeed
from epp.peers.connections import PeerConnections
from epp.peers.messages.peers_pb2 import News
from epp.peers.peering import Peers
from epp.peers.publisher import MOST_KEPT, MOST_NAMES, PickPublisher
from epp.peers.subscriber import PickSubscriber
from epp.picking import Picking
from epp.request.subset import Subset
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import ChainProducer
from epp.scheduling.request_reader import Policy
from epp.telemetry.counters import Telemetry

HEADERS = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}


class PublishingPicker:
    """The scheduling of a picker, of `workers` endpoints `w0` and so on; `flush` when it is time to. `kept`, `names`: bounds."""

    def __init__(self, workers: int, seed: int = 0, kept: int = MOST_KEPT, names: int = MOST_NAMES) -> None:
        rng = random.Random(seed)
        config = load_config(DEFAULT_CONFIG, rng=rng)
        self.store = Datastore()
        self.director = Director(self.store, config.scheduler, config.detector, Policy(), rng)
        self.publisher = PickPublisher(self._wake, kept, names)
        self.is_awake = False
        for one in self.director.producers:
            if isinstance(one, ChainProducer):
                one.use_seed(7)
        self.publisher.use(self.director.producers)
        self.director.picks.peers = self.publisher
        self.sent: Counter[Key] = Counter()
        for number in range(workers):
            self.join(number)

    def _wake(self) -> None:
        self.is_awake = True

    def join(self, number: int, role: str = "") -> None:
        self.store.apply(InstanceAddedEvent(instance(number, role)), {})

    def read_pages(self, now: float) -> None:
        """All workers are idle."""
        for one in self.store.endpoints:
            self.store.observe(one, Load(waiting=0.0, running=0.0, kv_usage=0.0), now)

    def pick(self, prompt: str, now: float, only: int | None = None, *, stream: bool = False) -> Pick:
        body = json.dumps({"model": "m", "prompt": prompt, "stream": stream}).encode()
        subset = None if only is None else Subset.of([f"10.0.0.{only + 1}:8000"])
        pick = self.director.direct(HEADERS, body, subset, now)
        assert isinstance(pick, Pick)
        return pick

    def subscriber(self) -> PickSubscriber:
        return PickSubscriber(self.director.picks, self.store)

    def inflight(self) -> dict[Key, tuple[int, int]]:
        """Of each endpoint that has any: its own, and those of peers."""
        counts = {
            one.key: (self.store.inflight(one), self.store.peer_inflight(one)) for one in self.store.endpoints
        }
        return {key: both for key, both in counts.items() if any(both)}


def instance(number: int, role: str = "") -> Instance:
    labels = {"llm-d.ai/role": role} if role else {}
    return Instance(f"w{number}", "ns", "worker", f"10.0.0.{number + 1}", 8000, "1", labels=labels)


def two(workers: int) -> tuple[PublishingPicker, PublishingPicker, "Wire"]:
    """One of them hears what the other tells."""
    one, other = PublishingPicker(workers), PublishingPicker(workers)
    return one, other, Wire(one, other)


class Wire:
    """What a link does between two of them, without a socket."""

    def __init__(self, teller: PublishingPicker, hearer: PublishingPicker) -> None:
        self._teller = teller.publisher
        self.subscriber = hearer.subscriber()
        self._position = -1
        self.bytes = 0

    def carry(self, now: float) -> None:
        """All that was told so far."""
        if self._teller.is_lost(self._position):
            parts, self._position = self._teller.anew()
            for part in parts:
                self._hear(News.FromString(part), now)
        while (kept := self._teller.since(self._position)) is not None:
            news = News.FromString(kept.data)
            news.age_ms = round((now - kept.at) * 1000)
            self._hear(news, now)
            self._position += 1

    def tell(self, now: float) -> None:
        """All until now is told, and heard."""
        self._teller.flush(now)
        self.carry(now)

    def _hear(self, news: News, now: float) -> None:
        self.bytes += news.ByteSize()
        self.subscriber.hear(news, now)

    def cut(self) -> None:
        """The connection breaks."""
        self.subscriber.forget()
        self._position = -1


def connections_with_one() -> PeerConnections:
    """A picker that has a stream to another one, with which nobody has spoken yet."""
    store, config = Datastore(), load_config(None, rng=random.Random(1))
    settings = Settings(peers="memory://pickers")
    picking = Picking(settings, config, store, Telemetry(), lambda: 2.0)
    feed = KvEventFeed(config, store, lambda: None, lambda: None)
    peers = Peers(settings, None, picking, store, OutcomeLedger("0" * 16), feed)
    link = peers._new_link("10.0.0.9:9004", True)
    link.name = "f" * 16
    peers.connections.links[link.name] = link
    return peers.connections

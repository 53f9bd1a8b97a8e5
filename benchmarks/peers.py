"""`python -m benchmarks.peers`: what it costs a picker to tell its picks, and another one to hear them; bytes a second.

Without sockets: the pick, the message, and what is booked for it at the other picker. Each prompt has a tenth in common with
others, or is a further turn of one of 200 conversations. A pick is served 0.5 s later and ends then.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.peers.messages.peers_pb2 import News
from epp.peers.publisher import PickPublisher
from epp.peers.subscriber import PickSubscriber
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import ChainProducer
from epp.scheduling.request_reader import Policy

_HEADERS: Final = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
_WORKERS: Final = 100
_TICK: Final = 0.01
_LASTS: Final = 0.5
_SHARED: Final = "You are a helpful assistant. " * 14


def distinct(rng: random.Random) -> Iterator[str]:
    """A thousand tokens, the first hundred of which are those of all."""
    while True:
        yield _SHARED + " ".join(f"{rng.getrandbits(28):07x}" for _ in range(450))


def conversations(rng: random.Random) -> Iterator[str]:
    """Up to 4,000 tokens, of which a turn brings 200."""
    said = [""] * 200
    while True:
        at = rng.randrange(len(said))
        said[at] = ("" if len(said[at]) > 16_000 else said[at]) + f"{rng.getrandbits(32):08x} " * 90
        yield _SHARED + said[at]


PROMPTS: Final = {"distinct": distinct, "conversations": conversations}


def picker(*, tells: bool) -> tuple[Director, Datastore, PickPublisher]:
    rng = random.Random(1)
    config = load_config(DEFAULT_CONFIG, rng=rng)
    store = Datastore()
    for number in range(_WORKERS):
        store.apply(InstanceAddedEvent(Instance(f"w{number}", "ns", "c", "10.0.0.1", number + 1, "1")), {})
    for endpoint in store.endpoints:
        store.observe(endpoint, Load(waiting=0.0, running=1.0, kv_usage=0.5), 0.0)
        store.set_cache_tokens(endpoint, 500_000)
    director = Director(store, config.scheduler, config.detector, Policy(), rng)
    publisher = PickPublisher(lambda: None)
    for one in director.producers:
        if isinstance(one, ChainProducer):
            one.use_seed(1)
    publisher.use(director.producers)
    if tells:
        director.picks.peers = publisher
    return director, store, publisher


def run(
    prompts: Callable[[random.Random], Iterator[str]], rate: int, seconds: float, *, tells: bool
) -> tuple[float, float, float]:
    """Processor time of a pick at its picker and at the other one, in µs, and bytes a second."""
    director, _, publisher = picker(tells=tells)
    other, store, _ = picker(tells=False)
    subscriber, texts = PickSubscriber(other.picks, store), prompts(random.Random(2))
    gc.freeze()  # with the threshold, as `epp.process` does
    gc.set_threshold(10_000)
    now, position, sent, own, heard, count = 0.0, 0, 0, 0.0, 0.0, 0
    under_way: list[tuple[float, Pick]] = []
    while now < seconds:
        now += _TICK
        bodies = [
            json.dumps({"model": "m", "prompt": next(texts)}).encode() for _ in range(round(rate * _TICK))
        ]
        began = time.process_time()
        for body in bodies:
            pick = director.direct(_HEADERS, body, None, now)
            assert isinstance(pick, Pick)
            under_way.append((now + _LASTS, pick))
        while under_way and under_way[0][0] <= now:
            _, over = under_way.pop(0)
            director.picks.responded(over, 200, now)
            director.picks.release(over, now)
        publisher.flush(now)
        own += time.process_time() - began
        count += len(bodies)
        began = time.process_time()
        while (kept := publisher.since(position)) is not None:
            subscriber.hear(News.FromString(kept.data), now)
            sent += len(kept.data)
            position += 1
        heard += time.process_time() - began
    return 1e6 * own / count, 1e6 * heard / count, sent / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each round, in the pickers' time (default: 10)"
    )
    given = parser.parse_args(arguments)
    print(
        "| prompts | picks a second | a pick that is not told, µs | told, µs | heard, µs | KB/s | bytes a pick |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, prompts in PROMPTS.items():
        for rate in (100, 1000):
            untold, told, heard = [], [], []
            for _ in range(given.rounds):
                untold.append(run(prompts, rate, given.seconds, tells=False)[0])
                own, other, sent = run(prompts, rate, given.seconds, tells=True)
                told.append(own)
                heard.append(other)
            median = statistics.median
            print(
                f"| {name} | {rate} | {median(untold):.0f} | {median(told):.0f} | {median(heard):.0f} | {sent / 1000:.1f} "
                f"| {sent / rate:.0f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random events over three pickers that tell each other, against a plain model: all agree once nothing happens any more."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from epp.scheduling.pick import Pick
from tests.epp.peers.pickers import PublishingPicker, Wire

WORKERS = 6
EVENTS = 4000
MOST_OPEN = 200
"""Requests in flight at one picker: more begin than end otherwise."""


def wires(pickers: list[PublishingPicker]) -> Iterator[tuple[int, int, Wire]]:
    for teller, one in enumerate(pickers):
        for hearer, other in enumerate(pickers):
            if teller != hearer:
                yield teller, hearer, Wire(one, other)


@pytest.mark.parametrize("seed", range(3))
def test_three_pickers_agree_once_events_stop(seed: int) -> None:
    agree(seed, EVENTS)


def agree(seed: int, events: int) -> None:
    rng, now = random.Random(seed), 100.0
    # so few that slow ones are told anew, and new numbers begin
    pickers = [PublishingPicker(WORKERS - 1, seed=at, kept=5, names=WORKERS) for at in range(3)]
    carried = {(a, b): wire for a, b, wire in wires(pickers)}
    open_picks: list[list[Pick]] = [[], [], []]
    stems = [f"{number} " * 400 for number in range(5)]
    for event in range(events):
        now += rng.expovariate(200.0)
        at = rng.randrange(3)
        picker, mine = pickers[at], open_picks[at]
        match rng.randrange(12):
            case 0 | 1 | 2 | 3 if len(mine) < MOST_OPEN:
                prompt = rng.choice(stems) + f"{rng.randrange(40)} " * rng.randrange(200)
                mine.append(picker.pick(prompt, now, stream=rng.random() < 0.5))
            case 4 if mine:
                pick = rng.choice(mine)
                picker.director.picks.served(pick, f"10.0.0.{rng.randrange(WORKERS - 1) + 1}:8000")
            case 5 if mine:
                picker.director.picks.responded(rng.choice(mine), rng.choice([200, 200, 200, 503]), now)
            case 0 | 1 | 2 | 3 | 6 | 7 if mine:
                picker.director.picks.release(mine.pop(rng.randrange(len(mine))), now)
            case 8 | 9:
                picker.publisher.flush(now)
            case 10:
                for (teller, _), wire in carried.items():
                    if teller == at and rng.random() < 0.7:
                        wire.carry(now)
            case 11 if rng.random() < 0.05:
                rng.choice(list(carried.values())).cut()
        if event == events // 2:
            for number, one in enumerate(pickers):  # one of them learns of it later
                if number:
                    one.join(WORKERS - 1)
    pickers[0].join(WORKERS - 1)
    for picker in pickers:
        picker.publisher.flush(now)
    for wire in carried.values():
        wire.carry(now)
    for at, picker in enumerate(pickers):
        own = Counter(one.in_flight_at[0].key for one in open_picks[at])
        others = Counter(
            one.in_flight_at[0].key for n, picks in enumerate(open_picks) if n != at for one in picks
        )
        expected = {key: (own[key], others[key]) for key in own | others}
        assert picker.inflight() == expected, (seed, at)
    for at, mine in enumerate(open_picks):
        for pick in mine:
            pickers[at].director.picks.release(pick, now)
        pickers[at].publisher.flush(now)
    for wire in carried.values():
        wire.carry(now)
    assert [picker.inflight() for picker in pickers] == [{}, {}, {}]

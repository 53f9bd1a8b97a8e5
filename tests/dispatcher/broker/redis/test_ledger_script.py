"""ledger.lua and `TargetAccount` are one state machine."""

from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis as BlockingRedis

from dispatcher.broker.capacity.account import REASONS, TargetAccount
from dispatcher.broker.contract.ledger import Reading, Reservation
from dispatcher.broker.redis.ledger import SCRIPT
from tests.redis_server import RedisServer

Step = tuple[Any, ...]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("R"),
            st.integers(1, 3),
            st.integers(-3, 1),
            st.sampled_from([0, 0.5, 1, 3, 8, 40]),
            st.sampled_from([0, 0, 2.5, 6, 30]),
        ),
        st.tuples(st.just("L")),
        st.tuples(st.just("F"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("F"), st.integers(0, 9), st.just(True)),
        st.tuples(st.just("O"), st.sampled_from([0, 0, 3])),
    ),
    max_size=40,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_the_script_keeps_the_same_book_as_the_account(redis_server: RedisServer, steps: list[Step]) -> None:
    """Each step is told to both, with the broker's own time; every answer must be the same."""
    redis_server.flush()
    account = TargetAccount(60_000)
    with BlockingRedis(port=redis_server.port) as client:
        script = client.register_script(SCRIPT.read_text())

        def told(*words: object) -> tuple[int, list[Any]]:
            now, _, answer = script(["{t}began", "{t}leases", "{t}state"], ["{t}channel", 60_000, "", *words])
            return now, [word.decode() if isinstance(word, bytes) else word for word in answer]

        def clock() -> int:
            now: int = script(["{t}began", "{t}leases", "{t}state"], ["{t}channel", 60_000, ""])[0]
            return now

        members: list[str] = []
        for number, step in enumerate(steps):
            if step[0] == "R":
                _, units, ago, headroom, allotment = step
                member, exact = f"{units}:{number}", Fraction(str(headroom))
                at = clock() + ago
                now, answer = told("R", member, units, at, int(exact), int(exact > 0), int(allotment))
                expected = account.reserve(now, Reading(exact, at, Fraction(str(allotment))), units, member)
                if isinstance(expected, Reservation):
                    assert answer[:2] == [1, int(expected.probe)]
                    members.append(member)
                else:
                    until = -1 if expected.until_ms is None else expected.until_ms
                    assert answer[0] == 0
                    assert (REASONS[answer[1]], answer[2]) == (expected.reason, until)
            elif step[0] == "F" and members:
                member = members.pop(step[1] % len(members))
                _, answer = told("F", member, int(step[2]))
                assert answer == [int(account.release(member, accepted=step[2]))]
            elif step[0] == "L":
                _, in_flight = told("L")
                assert in_flight == [account.in_flight]
            elif step[0] == "O":
                now, _ = told("O", step[1])
                account.report_overload(now, step[1])

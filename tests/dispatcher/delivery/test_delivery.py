"""The states of a delivery: abort, loss and verdict in every order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.broker.contract.message import Claim, DispatchCandidate, Request
from dispatcher.delivery.sender import Delivery, DeliveryState
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import Slot

S = DeliveryState


@contextlib.asynccontextmanager
async def admitted() -> AsyncIterator[Slot]:
    yield Slot()


def delivery() -> Delivery:
    request = Request("r1", b"{}", 0)
    candidate = DispatchCandidate(request.id, request.token, request.tenant, 0, 2)
    return Delivery(Claim(request, "fence", 1, 0, 0), Admission(candidate, admitted(), Slot()), 0.0)


@given(st.lists(st.sampled_from(["send", "settle", "abort", "lose"]), max_size=8))
def test_whatever_comes_first_counts(steps: list[str]) -> None:
    one, seen = delivery(), [S.CLAIMED]
    for step in steps:
        getattr(one, step)()
        if one.state is not seen[-1]:
            seen.append(one.state)
    assert len(seen) == len(set(seen))  # no way back
    if S.SETTLING in seen:
        assert one.state is S.SETTLING
        assert not one.aborted
    if one.aborted:
        assert (S.ABORTED_SENT in seen) <= (S.SENDING in seen)
        assert (S.ABORTED_UNSENT in seen) <= (S.SENDING not in seen)
    if "lose" in steps and S.SETTLING not in seen:
        assert one.state is S.LOST


@pytest.mark.parametrize(("sent", "state"), [(False, S.ABORTED_UNSENT), (True, S.ABORTED_SENT)])
async def test_only_what_is_being_sent_is_cancelled(sent: bool, state: DeliveryState) -> None:
    one = delivery()
    if sent:
        one.send()
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    one.task = asyncio.create_task(work())
    await asyncio.sleep(0)
    one.abort()
    assert one.state is state
    go_on.set()
    await asyncio.wait([one.task])
    assert one.task.cancelled() is sent

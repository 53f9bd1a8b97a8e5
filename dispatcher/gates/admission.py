"""Where admissions begin and end: what a gate granted is given back exactly once, whoever holds it and whatever fails.

`HeldAdmissions` asks gates and holds what they granted until it is sent or released. `ReservingGate` is the other side: a gate
that reserves something for each admission.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Generic, Self, TypeVar

from adsum.tasks import ResourceOwner, background
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Scope, Slot

RECHECK_INTERVAL: Final = 1.0
"""Seconds after which a refused request is tried again: the lease of a killed replica ends without a wake-up."""
OUTAGE_PAUSE: Final = 0.5
"""Seconds between two tries while the broker is away."""

Held = TypeVar("Held")

log = logging.getLogger(__name__)


class Admission:
    """The slot of a gate, held for one candidate; released exactly once."""

    def __init__(
        self, candidate: DispatchCandidate, manager: AbstractAsyncContextManager[Slot], slot: Slot
    ) -> None:
        self.candidate = candidate
        self._manager: AbstractAsyncContextManager[Slot] | None = manager
        self._slot = slot

    async def release(self, outcome: Outcome = Outcome.UNUSED, retry_after_ms: int = 0) -> None:
        """Release the slot with the target's outcome. A second call does nothing.

        A fault of the gate is logged, not raised: it must not stop an answer, or the release of other slots.
        """
        manager, self._manager = self._manager, None
        if manager is None:
            return
        self._slot.outcome, self._slot.retry_after_ms = outcome, retry_after_ms
        try:
            await manager.__aexit__(None, None, None)
        except QueueError as error:
            log.debug("cannot release the slot of a gate, it lapses with its lease: %s", error)
        except Exception:  # a gate of an installed package may raise anything
            log.exception("unexpected error of a gate that released a slot")


class HeldAdmissions:
    """Admissions that nobody has taken over yet. Leaving it releases them, the last one first."""

    def __init__(self) -> None:
        self._held: dict[Admission, None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release(self._held)

    async def enter(self, gate: DispatchGate, candidate: DispatchCandidate) -> Admission:
        """Hold what the gate admits until it is released. Raises RefusedError."""
        manager = gate.admit(candidate)
        admission = Admission(candidate, manager, await manager.__aenter__())
        self._held[admission] = None
        return admission

    async def ask(self, gate: DispatchGate, candidate: DispatchCandidate) -> Admission | RefusedError:
        try:
            return await self.enter(gate, candidate)
        except RefusedError as refusal:
            return refusal

    async def ask_all(
        self, gate: DispatchGate, candidates: Sequence[DispatchCandidate]
    ) -> list[Admission | RefusedError]:
        """The answers in the order of the candidates, who are asked for at once. Raises the first fault of the gate."""
        asked = (self.ask(gate, candidate) for candidate in candidates)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RefusedError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Admission | RefusedError)]

    def take(self, admissions: Iterable[Admission]) -> list[Admission]:
        """The caller releases them from now on."""
        taken = list(admissions)
        for admission in taken:
            del self._held[admission]
        return taken

    def take_all(self) -> list[Admission]:
        return self.take(self._held)

    async def release(self, admissions: Collection[Admission]) -> None:
        """Release those of them that are held here, as unused."""
        unused = self.take(reversed([one for one in admissions if one in self._held]))
        await asyncio.gather(*(admission.release() for admission in unused))


class ReservingGate(ResourceOwner, DispatchGate, Generic[Held]):
    """Reserves something for each admission: `reserve`, which raises RefusedError, and `give_back`."""

    def __init__(self) -> None:
        self._entered: set[_Reservation[Held]] = set()

    def admit(self, candidate: DispatchCandidate) -> AbstractAsyncContextManager[Slot]:
        return _Reservation(self, self._entered, candidate)

    @abstractmethod
    async def reserve(self, candidate: DispatchCandidate) -> Held:
        """Raises RefusedError, or QueueError, which refuses all candidates of the queue for a moment."""

    @abstractmethod
    async def give_back(self, held: Held, slot: Slot) -> None:
        """`slot` has the outcome. A QueueError is no fault: the broker gets it later, or a lease ends."""

    async def keep_leases(self, heartbeat: Callable[[list[Held]], Awaitable[None]], lease_ms: int) -> None:
        """Pass what is reserved to `heartbeat` three times a lease, until the gate is left. One may be lost."""

        async def send() -> None:
            while True:
                await asyncio.sleep(lease_ms / 3000)
                with suppress(QueueError):
                    if self._entered:
                        await heartbeat([one.held for one in self._entered])

        await self._stack.enter_async_context(background(send(), "heartbeat"))


class _Reservation(AbstractAsyncContextManager[Slot], Generic[Held]):
    """One admission, entered once. A class, since `asynccontextmanager` would take twice the time for each request."""

    held: Held

    def __init__(
        self, gate: ReservingGate[Held], entered: "set[_Reservation[Held]]", candidate: DispatchCandidate
    ) -> None:
        self._gate = gate
        self._entered = entered
        self._candidate = candidate

    async def __aenter__(self) -> Slot:
        try:
            self.held = await self._gate.reserve(self._candidate)
        except QueueError as error:
            raise RefusedError(str(error), Scope.QUEUE, lambda: asyncio.sleep(OUTAGE_PAUSE)) from error
        self._entered.add(self)
        self._slot = Slot()
        return self._slot

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._entered.discard(self)
        if kind is not None:
            self._slot.outcome = Outcome.UNUSED
        with suppress(QueueError):
            await self._gate.give_back(self.held, self._slot)

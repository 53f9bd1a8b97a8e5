"""The ledger of one target within one process, over `dispatcher.broker.capacity.account`."""

from collections.abc import Callable, Sequence

from dispatcher.broker.capacity.account import TargetAccount
from dispatcher.broker.contract.ledger import LedgerState, Reading, Refusal, Reservation
from dispatcher.broker.contract.message import new_token
from dispatcher.broker.contract.wake_up import Changes


class MemoryLedger:
    """Implements `dispatcher.broker.contract.ledger.Ledger`; `clock_ms` is the broker's clock."""

    def __init__(self, clock_ms: Callable[[], int], *, lease_ms: int = 15_000) -> None:
        self._clock_ms = clock_ms
        self._account = TargetAccount(lease_ms)
        self._began: dict[str, int] = {}
        self._changes = Changes()

    @property
    def lease_ms(self) -> int:
        return self._account.lease_ms

    async def now_ms(self) -> int:
        return self._clock_ms()

    async def state(self) -> LedgerState:
        now = self._clock_ms()
        self._drop_lapsed(now)
        return LedgerState(now, self._account.in_flight)

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        now = self._clock_ms()
        self._drop_lapsed(now)
        answer = self._account.reserve(now, reading, units, new_token())
        if isinstance(answer, Refusal):
            return Refusal(answer.reason, answer.until_ms, self._changes.count)
        self._began[answer.id] = now
        return answer

    async def heartbeat(self, reservations: Sequence[Reservation]) -> None:
        now = self._clock_ms()
        for reservation in reservations:
            # A heartbeat that was on its way when its reservation was released must not count it again.
            if (began := self._began.get(reservation.id)) is not None:
                self._account.heartbeat(now, reservation, began)
        self._drop_lapsed(now)

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        self._began.pop(reservation.id, None)
        if self._account.release(reservation.id, accepted=accepted):
            self._changes.tell()

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        self._account.report_overload(self._clock_ms(), retry_after_ms)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    def _drop_lapsed(self, now: int) -> None:
        if self._account.drop_lapsed(now):
            self._changes.tell()

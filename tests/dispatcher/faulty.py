"""`python -m tests.dispatcher.faulty`: a dispatcher that kills itself with SIGKILL at a named point of a request's life."""

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.config.reloader import ConfigReloader, load
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.sender import DispatchObserver
from dispatcher.delivery.verdict import Retry, Verdict
from dispatcher.gates.gate import RefusedError
from dispatcher.process import serve_until_signalled
from dispatcher.server import DispatcherServer


class KilledAt(DispatchObserver):
    """Passes everything on; dies at the `count`-th time that `point` is reached."""

    def __init__(self, observer: DispatchObserver, point: str, count: int) -> None:
        self._observer = observer
        self._point = point
        self._left = count
        self._parked = False

    def _reached(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> None:
        self._observer.refused(candidate, refusal)

    def claimed(self, claim: Claim) -> None:
        self._reached("claimed")
        self._observer.claimed(claim)

    def sent(self, claim: Claim) -> None:
        self._reached("sent")
        self._observer.sent(claim)

    def answered(self, claim: Claim, answer: GatewayAnswer | NoAnswer, seconds: float) -> None:
        self._reached("answered")
        self._observer.answered(claim, answer, seconds)

    def settled(self, claim: Claim, verdict: Verdict, accepted: bool) -> None:
        self._reached("settled")
        if isinstance(verdict, Retry):
            self._parked = True
            self._reached("parked")
        self._observer.settled(claim, verdict, accepted)

    def slot_released(self) -> None:
        self._observer.slot_released()

    def sweeping(self) -> None:
        """The script is on its way to the broker when the loop comes round again: that is in the middle of it."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._reached, "sweep")
        if self._parked:
            loop.call_soon(self._reached, "move")
        self._observer.sweeping()


def watched(point: str, count: int) -> Callable[[DispatchObserver, str], DispatchObserver]:
    return lambda observer, _: KilledAt(observer, point, count)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--point", required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    config = load(given.config)
    async with DispatcherServer(config, wrap_observer=watched(given.point, given.count)) as server:
        await serve_until_signalled(server, ConfigReloader(given.config, config, server))


if __name__ == "__main__":
    asyncio.run(main())

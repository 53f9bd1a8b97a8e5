"""One port whose connections go to several takers, over real sockets."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from adsum.serving.handing import SILENT, HandedPort, HandedSocket
from tests.eventually import eventually


class Taker:
    """Takes connections as a process does, and keeps them."""

    def __init__(self, port: HandedPort, place: int) -> None:
        self.place = place
        self.taken: list[socket.socket] = []
        self.excess = 0
        self._handed = HandedSocket(port.join(place).detach(), port.name)
        self._handed.on_excess = self._leave_one
        self.awake()
        self._handed.report(asyncio.get_running_loop(), lambda: len(self.taken))

    def _take(self) -> None:
        try:
            accepted, address = self._handed.accept()
        except (BlockingIOError, InterruptedError):
            return
        assert address[0] == "127.0.0.1"
        self.taken.append(accepted)

    def _leave_one(self) -> None:
        self.excess += 1
        self.taken.pop().close()

    def awake(self) -> None:
        asyncio.get_running_loop().add_reader(self._handed, self._take)

    def stand_still(self) -> None:
        """As a process that is stopped: it neither reads nor reports."""
        self.close_timer()
        self.take_nothing()

    def take_nothing(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handed)

    def close_timer(self) -> None:
        assert self._handed._timer is not None
        self._handed._timer.cancel()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handed)
        self._handed.close()
        for one in self.taken:
            one.close()


@contextmanager
def opened(*, to_oldest: bool = False, clock: Callable[[], float] = time.monotonic) -> Iterator[HandedPort]:
    port = HandedPort([socket.create_server(("127.0.0.1", 0))], to_oldest=to_oldest, clock=clock)
    port.start()
    try:
        yield port
    finally:
        port.close()


async def connect(stack: ExitStack, port: HandedPort, count: int = 1) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        one = stack.enter_context(socket.socket())
        one.setblocking(False)
        await loop.sock_connect(one, port.name)
        made.append(one)
    return made


def counts(*takers: Taker) -> list[int]:
    return [len(one.taken) for one in takers]


async def until_asked(port: HandedPort, takers: int) -> None:
    await eventually(lambda: sum(one.asking_since is not None for one in port._processes.values()) == takers)


async def opened_takers(stack: ExitStack, port: HandedPort, count: int) -> list[Taker]:
    takers = [Taker(port, place) for place in range(1, count + 1)]
    for one in takers:
        stack.callback(one.close)
    await until_asked(port, count)
    return takers


async def test_each_gets_as_many_as_the_others() -> None:
    with opened() as port, ExitStack() as stack:
        takers = await opened_takers(stack, port, 3)
        await connect(stack, port, 9)
        await eventually(lambda: counts(*takers) == [3, 3, 3])
        takers[1].taken.pop().close()
        await eventually(lambda: port._processes[2].open == 2)
        await connect(stack, port, 1)
        await eventually(lambda: counts(*takers) == [3, 3, 3])


async def test_what_a_process_has_not_taken_yet_counts_as_its_own() -> None:
    """A busy process may report what it has before it takes what it was handed."""
    with opened() as port, ExitStack() as stack:
        takers = await opened_takers(stack, port, 2)
        takers[0].take_nothing()
        await connect(stack, port, 2)
        await eventually(lambda: counts(*takers) == [0, 1])
        heard_at = port._processes[1].heard_at
        await eventually(lambda: port._processes[1].heard_at > heard_at)
        await connect(stack, port, 2)
        takers[0].awake()
        await eventually(lambda: counts(*takers) == [2, 2])


async def test_pages_all_go_to_the_one_that_is_there_for_longest() -> None:
    with opened(to_oldest=True) as port, ExitStack() as stack:
        first = Taker(port, 2)
        await until_asked(port, 1)
        second = Taker(port, 1)
        stack.callback(second.close)
        await until_asked(port, 2)
        await connect(stack, port, 3)
        await eventually(lambda: counts(first, second) == [3, 0])
        first.close()
        await eventually(lambda: 2 not in port._processes)
        await connect(stack, port, 2)
        await eventually(lambda: len(second.taken) == 2)


async def test_one_that_stands_still_gets_none_until_it_goes_on() -> None:
    now = 0.0
    with opened(clock=lambda: now) as port, ExitStack() as stack:
        takers = await opened_takers(stack, port, 2)
        takers[0].stand_still()
        now = 2 * SILENT
        await eventually(lambda: port._processes[2].heard_at == now)
        await connect(stack, port, 4)
        await eventually(lambda: counts(*takers) == [0, 4])


async def test_without_anybody_a_connection_is_closed() -> None:
    with opened() as port, ExitStack() as stack:
        (client,) = await connect(stack, port)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_who_came_later_gets_a_part_of_what_others_have() -> None:
    with opened() as port, ExitStack() as stack:
        first = Taker(port, 1)
        stack.callback(first.close)
        await until_asked(port, 1)
        await connect(stack, port, 4)
        await eventually(lambda: len(first.taken) == 4)
        second = Taker(port, 2)
        stack.callback(second.close)
        while first.excess < 2:  # clients connect again, as Envoy does
            before = first.excess
            await eventually(lambda before=before: first.excess > before)
            await connect(stack, port)
        await eventually(lambda: counts(first, second) == [2, 2])
        before = first.excess
        for _ in range(2):
            look = port._timer
            await eventually(lambda look=look: port._timer is not look)
        assert first.excess == before, "it is even now"

"""A reader of a watch that remembers everything and knows what must never be told (invariants I2 and I7)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from discovery import Instance, InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, SourceDiscovery
from discovery.watch import InstanceEventStream


class Witness:
    """`events` with their times on the loop's clock. Added and Removed must alternate by incarnation; `told` is the
    set that follows from the events alone.
    """

    def __init__(self, stream: InstanceEventStream) -> None:
        self.stream = stream
        self.events: list[tuple[float, InstanceEvent]] = []
        self.start = 0
        """The number of the first event that the test is about: those before it told the first set."""
        self.told: dict[str, Instance] = {}
        self.broken: list[str] = []
        self.error: BaseException | None = None

    async def read(self) -> None:
        try:
            async for event in self.stream:
                self.events.append((asyncio.get_running_loop().time(), event))
                self._tell(event)
        except Exception as error:
            self.error = error
            raise

    @property
    def uids(self) -> set[str]:
        """The incarnations that are there."""
        return {instance.incarnation for instance in self.told.values()}

    @property
    def names(self) -> set[str]:
        return set(self.told)

    def knows(self, name: str) -> bool:
        return name in self.told

    def story(self) -> list[str]:
        """`+name`, `-name:reason`, `~name`: what was told after the first set."""
        return [_word(event) for _, event in self.events[self.start :]]

    def check(self) -> None:
        """I2 and I7 hold, and the events add up to the live set."""
        assert not self.broken, self.broken
        assert self.error is None, self.error
        assert self.told == dict(self.stream.instances)

    def _tell(self, event: InstanceEvent) -> None:
        before = self.told.get(event.instance_id)
        instance = event.instance
        if isinstance(event, InstanceAddedEvent):
            self._expect(before is None, event)
            self.told[instance.id] = instance
            return
        self._expect(before is not None and before.incarnation == instance.incarnation, event)
        if isinstance(event, InstanceRemovedEvent):
            self.told.pop(instance.id, None)
        else:
            self.told[instance.id] = instance

    def _expect(self, sound: bool, event: InstanceEvent) -> None:
        if not sound:
            self.broken.append(f"{_word(event)} after {self.story()}")


@asynccontextmanager
async def witnessing(discovery: SourceDiscovery, *, metadata: bool = False) -> AsyncIterator[Witness]:
    """A witness of dynamo/decode, synced; checked when the block ends well."""
    async with discovery.watch("dynamo", "decode", metadata=metadata) as stream:
        witness = Witness(stream)
        reading = asyncio.create_task(witness.read(), name="witness")
        try:
            yield witness
            for _ in range(5_000):  # turns of the loop, in which it hears what is told and not yet read
                if witness.told == dict(stream.instances):
                    break
                await asyncio.sleep(0)
            witness.check()
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # told by check


def _word(event: InstanceEvent) -> str:
    if isinstance(event, InstanceAddedEvent):
        return f"+{event.instance_id}"
    if isinstance(event, InstanceRemovedEvent):
        return f"-{event.instance_id}:{event.reason}"
    return f"~{event.instance_id}"

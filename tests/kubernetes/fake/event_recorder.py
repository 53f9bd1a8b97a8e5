"""Records the events of a watch and checks their order: invariants I2 and I7 of tests/kubernetes/README.md."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from discovery import Instance, InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, SourceDiscovery
from discovery.watch import InstanceEventStream


class EventRecorder:
    """`events`: each with its time on the loop's clock. `instances`: the set that follows from the events alone.
    `violations`: events out of order, since Added and Removed must alternate for each incarnation.
    """

    def __init__(self, stream: InstanceEventStream) -> None:
        self.stream = stream
        self.events: list[tuple[float, InstanceEvent]] = []
        self.start = 0
        """Index of the first event that the test is about: those before it are the first set."""
        self.instances: dict[str, Instance] = {}
        self.violations: list[str] = []
        self.error: BaseException | None = None

    async def read(self) -> None:
        try:
            async for event in self.stream:
                self.events.append((asyncio.get_running_loop().time(), event))
                self._apply(event)
        except Exception as error:
            self.error = error
            raise

    @property
    def uids(self) -> set[str]:
        """The incarnations in the set."""
        return {instance.incarnation for instance in self.instances.values()}

    @property
    def names(self) -> set[str]:
        return set(self.instances)

    def knows(self, name: str) -> bool:
        return name in self.instances

    def transitions(self) -> list[str]:
        """`+name`, `-name:reason`, `~name` (updated): the events from `start` on."""
        return [_word(event) for _, event in self.events[self.start :]]

    def check(self) -> None:
        """I2 and I7 hold, and the events add up to the stream's own set."""
        assert not self.violations, self.violations
        assert self.error is None, self.error
        assert self.instances == dict(self.stream.instances)

    def _apply(self, event: InstanceEvent) -> None:
        before = self.instances.get(event.instance_id)
        instance = event.instance
        if isinstance(event, InstanceAddedEvent):
            self._expect(before is None, event)
            self.instances[instance.id] = instance
            return
        self._expect(before is not None and before.incarnation == instance.incarnation, event)
        if isinstance(event, InstanceRemovedEvent):
            self.instances.pop(instance.id, None)
        else:
            self.instances[instance.id] = instance

    def _expect(self, sound: bool, event: InstanceEvent) -> None:
        if not sound:
            self.violations.append(f"{_word(event)} after {self.transitions()}")


@asynccontextmanager
async def recording_events(
    discovery: SourceDiscovery, *, metadata: bool = False
) -> AsyncIterator[EventRecorder]:
    """A recorder of dynamo/decode with its first set; checked at the end of the block."""
    async with discovery.watch("dynamo", "decode", metadata=metadata) as stream:
        recorder = EventRecorder(stream)
        reading = asyncio.create_task(recorder.read(), name="recorder")
        try:
            yield recorder
            # iterations of the loop, in which the recorder reads what is left in the stream
            for _ in range(5_000):
                if recorder.instances == dict(stream.instances):
                    break
                await asyncio.sleep(0)
            recorder.check()
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # check has reported it


def _word(event: InstanceEvent) -> str:
    if isinstance(event, InstanceAddedEvent):
        return f"+{event.instance_id}"
    if isinstance(event, InstanceRemovedEvent):
        return f"-{event.instance_id}:{event.reason}"
    return f"~{event.instance_id}"

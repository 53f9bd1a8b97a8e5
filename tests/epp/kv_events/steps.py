"""Does work that is done in steps, at once."""

from typing import TypeVar

from epp.scheduling.kv_events.batches import BlocksRemoved, BlocksStored, KvBatch, Steps, batch_steps

T = TypeVar("T")


def done(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def read_batch(payload: bytes) -> KvBatch:
    """With lists, which can be compared."""
    batch = done(batch_steps(payload))
    for at, event in enumerate(batch.events):
        if isinstance(event, BlocksStored):
            batch.events[at] = event._replace(hashes=list(event.hashes), tokens=list(event.tokens))
        elif isinstance(event, BlocksRemoved):
            batch.events[at] = event._replace(hashes=list(event.hashes))
    return batch

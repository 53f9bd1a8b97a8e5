"""The messages of another picker: a request that it scheduled, and what it learnt of costs."""

from collections.abc import Sequence
from typing import NamedTuple

from epp.endpoints.endpoint import Endpoint, Key
from epp.request.inference_request import AwaitedFirstByte


class Fit(NamedTuple):
    """One picker learnt this of what requests cost: seconds of each kind, none negative, and how many answers it learnt them from.

    A picker that learns by other kinds cannot use it.
    """

    seconds: tuple[float, ...]
    answers: int


class PeerPick:
    """`keys`: of the endpoint that answers, then of its helpers. `endpoints`: the same; empty while one of them is not known here.
    `held`: tokens of the prompt that each was believed to hold. `computed_at`: the helper that computes the prompt, if one does.

    `blocks`: the hashes of the prompt's blocks, `HASH_BYTES` each as this machine has integers; they mean something to data
    producers of the same `layout`; empty: it has no chain. `units`: the length of the prompt, in blocks of the shortest kind.
    `awaited`: the first byte of its answer, if a data producer learns from that.
    `data`: what data producers keep with it until it is served or has failed. `since`: when it was made.
    """

    __slots__ = (
        "awaited", "blocks", "computed_at", "data", "endpoints", "held", "keys", "layout", "model", "prompt_size", "settled", "since", "streaming", "units",
    )  # fmt: skip

    def __init__(
        self, keys: Sequence[Key], held: Sequence[int], model: str, prompt_size: int, since: float
    ) -> None:
        self.keys = keys
        self.held = held
        self.model = model
        self.prompt_size = prompt_size
        self.since = since
        self.streaming = self.settled = False
        self.computed_at: Key | None = None
        self.awaited: AwaitedFirstByte | None = None
        self.endpoints: Sequence[Endpoint] = ()
        self.blocks = b""
        self.units = self.layout = 0
        self.data: dict[object, object] = {}

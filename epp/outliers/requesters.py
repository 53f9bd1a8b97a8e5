"""Tells requests that fail wherever they go from workers that fail, so that no worker is blamed for them. Pure."""

from typing import Final, NamedTuple, TypeAlias

from epp.request.inference_request import InferenceRequest

WINDOW: Final = 300.0
"""Seconds for which failures and successes are remembered."""
_MAX_KNOWN: Final = 2048
_HASHED: Final = 16 * 1024
"""Bytes of a prompt; its length tells longer ones apart."""

WorkerKey: TypeAlias = tuple[str, str]


class Requester(NamedTuple):
    """The identity of the sender of a request: its fairness id, and its prompt, which the sender may send again."""

    fairness_id: str
    prompt: tuple[object, ...]


def requester_of(request: InferenceRequest, prompt_hash: int) -> Requester:
    return Requester(request.fairness_id, (request.model, request.prompt_size, prompt_hash))


def hash_prompt(request: InferenceRequest) -> int:
    """To be called while the request has its prompt."""
    for chain in request.prefixes.values():
        if chain.hashes:
            return chain.hashes[-1]  # covers the whole chain
    return 0 if request.prompt is None else hash(request.prompt.prefix(_HASHED))


class Discredited(NamedTuple):
    """A failure that says nothing about its worker: `key` failed at worker `first` before; `elsewhere`: now at another."""

    key: object
    first: WorkerKey
    elsewhere: bool


class _Known:
    __slots__ = ("failed_at", "first", "succeeded_at")

    def __init__(self) -> None:
        self.succeeded_at = self.failed_at = float("-inf")
        self.first: WorkerKey | None = None
        """The worker at which it failed first, and since then."""


class Requesters:
    """A prompt, or a fairness id, that succeeded nowhere may be itself what fails: it counts against the first worker, once.

    Once it succeeds anywhere, its failures count. A fairness id is judged only while requests of others succeed: where
    everything fails, the workers may be at fault.
    """

    def __init__(self) -> None:
        self._known: dict[object, _Known] = {}
        """The latest come last."""
        self._succeeded_at = float("-inf")

    def succeeded(self, requester: Requester, now: float) -> None:
        self._succeeded_at = now
        self._of(requester.fairness_id).succeeded_at = now
        if (known := self._known.get(requester.prompt)) is not None:
            known.succeeded_at = now

    def failed(self, requester: Requester, worker: WorkerKey, now: float) -> Discredited | None:
        """None: the failure counts against the worker."""
        found: Discredited | None = None
        for key in (requester.fairness_id, requester.prompt):
            known = self._of(key)
            first = known.first
            if now - known.failed_at > WINDOW or known.succeeded_at > known.failed_at:
                known.first, first = worker, None
            known.failed_at = now
            judged = key is requester.prompt or now - self._succeeded_at <= WINDOW
            if judged and first is not None and now - known.succeeded_at > WINDOW:
                found = Discredited(key, first, elsewhere=first != worker)
        return found

    def _of(self, key: object) -> _Known:
        known = self._known.pop(key, None)
        if known is None:
            known = _Known()
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        self._known[key] = known
        return known

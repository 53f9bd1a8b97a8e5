"""Which addresses the sidecar may send a prompt to, and which of their workers are lost while they compute one.

The address comes in a request header. Whoever can reach the decode worker could name any address there (server-side request
forgery, CWE-918), so only workers that discovery or the operator knows are asked.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from adsum.addresses import check_host, split_authority
from adsum.http1.connection import HostPort
from discovery.errors import AdsumError
from discovery.instance import Instance
from discovery.watch import InstanceEventStream

log = logging.getLogger(__name__)

ANY: Final = "any"
_MOST_HEADER: Final = 300
"""Characters of the header: a host name has at most 253."""


def read_target(values: Sequence[str]) -> HostPort:
    """The one address of the header's values. Raises ValueError.

    If there are several, llm-d's sidecar takes the first; Dynamo's contract has exactly one, and so have our pickers. A second one may
    be a client's.
    """
    if len(values) != 1:
        raise ValueError(f"it comes {len(values)} times; expected one address")
    text = values[0].strip()
    if not text or len(text) > _MOST_HEADER:
        raise ValueError(f"it has {len(text)} characters; expected host:port")
    host, port = split_authority(text.removeprefix("http://"))
    return check_host(host), port


class AllowedWorkers:
    """`listed`: hosts (with any port, None) and addresses. `any_address`: there is no list.

    As llm-d's does, a host that discovery knows is allowed with every port: each rank of a worker has its own.
    """

    def __init__(self, listed: Sequence[tuple[str, int | None]] = (), *, any_address: bool = False) -> None:
        self._listed = frozenset(listed)
        self._any = any_address
        self._found: Counter[str] = Counter()  # bounded: the instances of the watched component
        self._silent: Counter[str] = Counter()  # bounded: the instances of the watched component
        # bounded: the running requests
        self._on_loss: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)

    def allows(self, target: HostPort) -> bool:
        host, port = target
        return (
            self._any or host in self._found or (host, None) in self._listed or (host, port) in self._listed
        )

    @contextmanager
    def while_there(self, target: HostPort, lost: Callable[[], object]) -> Iterator[None]:
        """In the block `lost` is called if discovery sees that the host's workers left, died or fell silent."""
        host = target[0]
        callbacks = self._on_loss[host]
        callbacks.add(lost)
        try:
            yield
        finally:
            callbacks.discard(lost)
            if not callbacks and self._on_loss.get(host) is callbacks:
                del self._on_loss[host]

    async def follow(self, stream: InstanceEventStream) -> None:
        """Until cancelled, or the source fails for good; `stream` has been entered."""
        self._take(stream.instances.values())
        try:
            async for _ in stream:
                self._take(stream.instances.values())
        except AdsumError as error:
            log.error(
                "prefill workers are not followed any more: %s; the last known ones stay allowed", error
            )

    def _take(self, instances: Iterable[Instance]) -> None:
        before, silent_before = self._found, self._silent
        self._found, self._silent = Counter(), Counter()
        for one in instances:
            self._found[one.address] += 1
            self._silent[one.address] += not one.reachable
        for host in list(self._on_loss):
            was = before[host] - silent_before[host]
            if was and not self._found[host] - self._silent[host]:
                for lost in list(self._on_loss[host]):
                    lost()


def read_listed(text: str) -> tuple[str, int | None]:
    """An entry of the operator's list: `host` or `host:port`. Raises ValueError."""
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        return check_host(bare[1:-1]), None
    if bare.count(":") != 1 and not bare.startswith("["):
        return check_host(bare), None
    host, port = split_authority(bare)
    return check_host(host), port

"""Opens the gRPC server that a picker was told to use."""

from collections.abc import Callable

from epp.config.settings import TransportKind
from epp.ext_proc.exchange import Exchange
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.transport import Transport


def open_transport(
    kind: TransportKind,
    open_exchange: Callable[[], Exchange],
    health: Health,
    memory: MemoryBudget,
    clock: Callable[[], float],
) -> Transport:
    """`open_exchange` is called once per stream, `memory` is what waits or is unfinished in all streams may hold.

    grpc is imported only where it serves.
    """
    if kind is TransportKind.GRPC:
        from epp.wire.grpc_aio.transport import GrpcTransport

        return GrpcTransport(open_exchange, health, clock)
    from epp.wire.server.transport import Http2Transport

    return Http2Transport(open_exchange, health, memory, clock)

"""Opens the transport that the settings name: our own gRPC server or grpc.aio."""

from collections.abc import Callable

from epp.config.settings import TransportKind
from epp.ext_proc.exchange import Exchange
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.transport import StreamEnded, Transport


def open_transport(
    kind: TransportKind,
    open_exchange: Callable[[], Exchange],
    health: Health,
    memory: MemoryBudget,
    clock: Callable[[], float],
    stream_ended: StreamEnded | None = None,
) -> Transport:
    """`open_exchange` is called once per stream. `memory` bounds unfinished messages and unsent answers of all streams.

    grpc is imported only if it serves. grpc.aio bounds its memory itself.
    """
    if kind is TransportKind.GRPC:
        from epp.wire.grpc_aio.transport import GrpcTransport

        return GrpcTransport(open_exchange, health, clock, stream_ended)
    from epp.wire.server.transport import Http2Transport

    return Http2Transport(open_exchange, health, memory, clock, stream_ended=stream_ended)

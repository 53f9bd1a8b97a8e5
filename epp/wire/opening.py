"""Opens what the settings name: our own gRPC server or grpc.aio, and the address and certificate of the gRPC port."""

import datetime
from collections.abc import Callable

from adsum.tasks import StartTask
from epp.config.settings import Settings, TransportKind
from epp.ext_proc.exchange import Exchange
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateFiles, KeyPair
from epp.wire.transport import ListenAddress, StreamEnded, Transport


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
        from epp.wire.grpc_aio import GrpcTransport

        return GrpcTransport(open_exchange, health, clock, stream_ended)
    from epp.wire.server.transport import Http2Transport

    return Http2Transport(open_exchange, health, memory, clock, stream_ended=stream_ended)


def grpc_address(settings: Settings, start: StartTask) -> ListenAddress:
    """Where ext_proc is served, and with which certificate; `start`: the task that reads the certificate again.

    Raises CertificateError, and ValueError for a key that the cipher suites cannot work with.
    """
    limit = settings.grpc_max_recv_msg_size
    served = _certificate(settings, start)
    return ListenAddress(settings.host, settings.grpc_port, served, limit, settings.tls)


def _certificate(settings: Settings, start: StartTask) -> Certificate | None:
    if not settings.secure_serving:
        return None

    def check(pair: KeyPair) -> None:
        settings.tls.check_key(certificate.has_rsa_key(pair))

    files = CertificateFiles(settings.cert_path, settings.client_ca_file)
    if settings.cert_path is None:
        pair = certificate.self_signed(datetime.datetime.now(datetime.UTC), with_rsa=settings.tls.needs_rsa)
    else:
        pair = certificate.read(settings.cert_path)
    served = Certificate(pair, check, files.read_client_ca())
    if settings.enable_cert_reload:
        start(served.reload_when_changed(files))
    return served

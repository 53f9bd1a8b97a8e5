"""The transport over grpc.aio: ext_proc, endpoint discovery and grpc.health.v1. The tests run over both transports, so each checks the other.

Only this file of the picker imports grpc.
"""

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import anyio
import grpc
from grpc import aio

from adsum.logs import RateLimitedLog
from discovery.eds import CLUSTER
from discovery.eds.server import EndpointService
from discovery.eds.subscription import SERVICE as ENDPOINTS
from discovery.eds.subscription import Publication
from epp.ext_proc.access_log_entry import ACCESS_LOG, BY_ACCESS_LOG, OUTCOMES_HEADER
from epp.ext_proc.answers import Answer, to_bytes
from epp.ext_proc.exchange import Exchange, ExchangeError
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.ext_proc.protocol import EXT_PROC
from epp.health import SERVICE, Health, UnknownServiceError
from epp.request.rejection import UnreadableError
from epp.wire.certificate import Certificate
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest
from epp.wire.messages.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from epp.wire.server.grpc_call import traceback_text
from epp.wire.transport import ListenAddress, StreamEnded

log = logging.getLogger(__name__)

Context = aio.ServicerContext[Any, Any]


class GrpcTransport:
    """A Transport; `open_exchange` is called once per stream, `clock` returns monotonic seconds."""

    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        health: Health,
        clock: Callable[[], float],
        stream_ended: StreamEnded | None = None,
    ) -> None:
        self.assignments = Publication(CLUSTER)
        self._stream_ended = stream_ended
        self._open_exchange = open_exchange
        self._health = health
        self._clock = clock
        self._limited_log = RateLimitedLog(log, clock)
        self._streams: set[_Stream] = set()
        self._draining = False
        self.opened_at = -math.inf
        self._outcomes: OutcomeLedger | None = None
        # bounded: grpc's limits
        self._logs: set[anyio.CancelScope] = set()

    def await_outcomes(self, outcomes: OutcomeLedger) -> None:
        self._outcomes = outcomes

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def listener(self, address: ListenAddress, *, processing: bool) -> "GrpcListener":
        handlers = [health_handler(self._health)]
        if processing:
            process: grpc.RpcMethodHandler[ProcessingRequest, bytes] = grpc.stream_stream_rpc_method_handler(
                self._process, ProcessingRequest.FromString
            )
            handlers.append(grpc.method_handlers_generic_handler(EXT_PROC, {"Process": process}))
            endpoints = EndpointService(self.assignments).handlers()
            handlers.append(grpc.method_handlers_generic_handler(ENDPOINTS, endpoints))
            if self._outcomes is not None:
                receive: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(
                    functools.partial(self._receive_log, self._outcomes)
                )
                handlers.append(
                    grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": receive})
                )
        return GrpcListener(handlers, address)

    def drain(self) -> None:
        self._draining = True
        self.assignments.close()
        for stream in self._streams:
            if stream.exchange.may_end:
                stream.scope.cancel()
        for scope in self._logs:
            scope.cancel()

    async def _receive_log(self, outcomes: OutcomeLedger, _: object, context: Context) -> bytes:
        scope = anyio.CancelScope()
        self._logs.add(scope)
        outcomes.logs = len(self._logs)
        try:
            with scope:
                while not self._draining and isinstance(message := await context.read(), bytes):
                    outcomes.receive(message, self._clock())
                if not self._draining:
                    return b""
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the picker is shutting down")
        except UnreadableError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            self._logs.discard(scope)
            outcomes.logs = len(self._logs)

    async def _process(self, _: object, context: Context) -> None:
        opened_at = self.opened_at = self._clock()
        stream = _Stream(self._open_exchange(), context)
        if (OUTCOMES_HEADER, BY_ACCESS_LOG) in (context.invocation_metadata() or ()):
            stream.exchange.await_outcome(self._outcomes)
        self._streams.add(stream)
        cause = "reset"  # Envoy resets each stream that it is done with; grpc.aio cancels this task then
        try:
            with stream.scope:
                await self._converse(stream)
            cause = "end of stream"
            if stream.fault is not None:
                raise stream.fault
        except Exception as error:  # noqa: BLE001  # the edge: whatever failed, this stream ends and the others go on
            cause = "fault"
            fault = (
                str(error)
                if isinstance(error, ExchangeError | UnreadableError)
                else f"the picker failed: {type(error).__name__}"
            )
            if isinstance(error, ExchangeError) and error.__cause__ is None:
                self._limited_log.warning(fault, "an ext_proc stream ended: %s", fault)
            elif not isinstance(error, UnreadableError):
                trace = {"trace": stream.exchange.trace}
                log.error("an ext_proc stream ended: %s\n%s", fault, traceback_text(error), extra=trace)
            if not stream.exchange.responded:
                await context.abort(grpc.StatusCode.INTERNAL, fault)
        finally:
            self._streams.discard(stream)
            stream.stop_writing()
            if self._stream_ended is not None:
                self._stream_ended(_code(cause, stream.exchange), self._clock() - opened_at)
            stream.exchange.close(cause, self._clock())

    async def _converse(self, stream: "_Stream") -> None:
        exchange, context = stream.exchange, stream.context
        while True:
            message = await context.read()
            if not isinstance(message, ProcessingRequest):  # aio.EOF
                return
            for answer in exchange.feed(message, self._clock()):
                await context.write(to_bytes(answer))
            exchange.sent()
            if (self._draining or exchange.ends_early) and exchange.may_end:
                return


def _code(cause: str, exchange: Exchange) -> str:
    """Envoy resets each stream that it needs no longer: for one that is concluded, that is the usual end."""
    if exchange.concluded or cause == "end of stream":
        return "OK"
    return "Internal" if cause == "fault" else "Canceled"


class _Stream:
    """One open stream: its exchange, the scope that ends it, and the task that sends the answers of a deferred pick."""

    def __init__(self, exchange: Exchange, context: Context) -> None:
        self.exchange = exchange
        self.context = context
        self.scope = anyio.CancelScope()
        self.fault: ExchangeError | None = None
        self._writing: asyncio.Task[None] | None = None
        exchange.on_answer(self._answer_later, self._fail)

    def _answer_later(self, answers: list[Answer]) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write(answers))

    async def _write(self, answers: list[Answer]) -> None:
        with contextlib.suppress(aio.BaseError):  # the stream was reset; `_converse` ends by itself
            for answer in answers:
                await self.context.write(to_bytes(answer))
            self.exchange.sent()

    def stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()

    def _fail(self, error: ExchangeError) -> None:
        self.fault = error
        self.scope.cancel()


def health_handler(health: Health) -> grpc.GenericRpcHandler:
    async def check(request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        try:
            return health.check(request.service)
        except UnknownServiceError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    async def watch(request: HealthCheckRequest, _: Context) -> AsyncIterator[HealthCheckResponse]:
        changed = asyncio.Event()
        health.watchers.add(changed.set)
        try:
            sent = None
            while True:
                changed.clear()
                closed, status = health.closed, health.status(request.service)
                if status != sent:
                    yield HealthCheckResponse(status=status)
                    sent = status
                if closed:
                    return
                await changed.wait()
        finally:
            health.watchers.discard(changed.set)

    async def statuses(_: HealthListRequest, __: Context) -> HealthListResponse:
        return health.list()

    request, response = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, request, response),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, request, response),
            "List": grpc.unary_unary_rpc_method_handler(
                statuses, HealthListRequest.FromString, HealthListResponse.SerializeToString
            ),
        },
    )


class GrpcListener:
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler], address: ListenAddress) -> None:
        self._handlers = handlers
        self._listen_address = address
        self.port = address.port
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        return self._listen_address.authority(self.port)

    async def __aenter__(self) -> Self:
        options = [
            ("grpc.max_receive_message_length", self._listen_address.max_message),
            # on Linux the default lets two processes share a port, without an error
            ("grpc.so_reuseport", 0),
        ]
        server = aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(self._handlers))
        try:
            self.port = self._add_port(server)
        except RuntimeError as error:
            raise self._listen_address.listen_error() from error
        await server.start()
        self._server = server
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(None)

    async def drain(self, timeout: float | None) -> None:
        if self._server is not None:
            await self._server.stop(timeout)

    def _add_port(self, server: aio.Server) -> int:
        address = self._listen_address
        if address.certificate is None:
            return server.add_insecure_port(self.address)
        return server.add_secure_port(self.address, server_credentials(address.certificate))


def server_credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """grpc asks for the certificate at every handshake, so a reloaded one is served to the next client."""
    served = certificate.pair, certificate.client_ca

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair, client_ca = served
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], client_ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = certificate.pair, certificate.client_ca
        if now == served:
            return None
        served = now
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type]  # None means unchanged (grpc.dynamic_ssl_server_credentials); the stubs lack it
        certificate.client_ca is not None,
    )

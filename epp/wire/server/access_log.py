"""Envoy's access log service as a method of our gRPC server: a log tells what became of picks."""

from collections.abc import Callable

from epp.ext_proc.access_log_entry import ACCESS_LOG
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.wire.server.grpc_call import Call, Method
from epp.wire.server.grpc_messages import GrpcStatus


class AccessLogReceiver:
    """The access log service; `outcomes` gets what comes."""

    def __init__(self, outcomes: OutcomeLedger, clock: Callable[[], float]) -> None:
        self.outcomes = outcomes
        self.clock = clock
        # bounded: the streams of all connections
        self._logs: set[_Log] = set()
        self.draining = False

    def methods(self) -> dict[bytes, Method]:
        return {f"/{ACCESS_LOG}/StreamAccessLogs".encode(): lambda call: _Log(self, call)}

    def drain(self) -> None:
        """End all logs: a process that leaves awaits nothing, and its connections shall end."""
        self.draining = True
        for one in list(self._logs):
            one.end()

    def began(self, one: "_Log") -> None:
        self._logs.add(one)
        self.outcomes.logs = len(self._logs)

    def over(self, one: "_Log") -> None:
        self._logs.discard(one)
        self.outcomes.logs = len(self._logs)


class _Log:
    """Handler of StreamAccessLogs: lasts for as long as its Envoy is connected, and is never answered."""

    def __init__(self, receiver: AccessLogReceiver, call: Call) -> None:
        self._receiver = receiver
        self._call = call

    def message(self, payload: bytes) -> None:
        self._call.begin()
        receiver = self._receiver
        if receiver.draining:
            self.end()
            return
        receiver.began(self)
        receiver.outcomes.receive(payload, receiver.clock())

    def half_closed(self) -> None:
        # StreamAccessLogsResponse has no fields
        self._call.send((b"",))
        self._call.finish(GrpcStatus.OK)

    def fault(self, error: Exception) -> None:
        self._call.fail(error, "an access log")

    def closed(self, cause: str) -> None:
        self._receiver.over(self)

    def end(self) -> None:
        self._call.finish(GrpcStatus.UNAVAILABLE, "the picker is shutting down")

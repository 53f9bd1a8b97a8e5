"""The picker's answers as a data plane reads them."""

from collections.abc import Iterable
from typing import Any

from epp.ext_proc import exchange
from epp.ext_proc.answers import Answer, to_bytes
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse


def read(answers: Iterable[Answer]) -> list[ProcessingResponse]:
    """Serialised answers as messages."""
    return [ProcessingResponse.FromString(to_bytes(answer)) for answer in answers]


class ReadExchange:
    """An exchange whose answers are read."""

    def __init__(self, *of: Any, **named: Any) -> None:
        self._exchange = exchange.Exchange(*of, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def ask(self, message: ProcessingRequest, now: float) -> list[ProcessingResponse]:
        """What `feed` answers."""
        return read(self.feed(message, now))

"""An ext_proc exchange whose answers are decoded into messages."""

from collections.abc import Iterable
from typing import Any

from epp.ext_proc import exchange
from epp.ext_proc.answers import Answer, to_bytes
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse


def read(answers: Iterable[Answer]) -> list[ProcessingResponse]:
    return [ProcessingResponse.FromString(to_bytes(answer)) for answer in answers]


class DecodedExchange:
    """An Exchange with `ask`, which decodes the answers."""

    def __init__(self, *of: Any, **named: Any) -> None:
        self._exchange = exchange.Exchange(*of, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def ask(self, message: ProcessingRequest, now: float) -> list[ProcessingResponse]:
        """Feeds the message and decodes the answers."""
        return read(self.feed(message, now))

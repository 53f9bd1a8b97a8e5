"""The picker's answers as a data plane reads them."""

from collections.abc import Iterable

from epp import exchange
from epp.answers import Answer, whole
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse


def read(answers: Iterable[Answer]) -> list[ProcessingResponse]:
    """Serialised answers as messages."""
    return [ProcessingResponse.FromString(whole(answer)) for answer in answers]


class ReadExchange(exchange.Exchange):
    """An exchange whose answers are read."""

    __slots__ = ()

    def ask(self, message: ProcessingRequest, now: float) -> list[ProcessingResponse]:
        """What `feed` answers."""
        return read(self.feed(message, now))

"""A cheap HTTP/1.1 client: sends the same POST again and again, each with another number in its prompt."""

import time

from benchmarks.picking.ext_proc_messages import PATH, chat, numbered
from benchmarks.picking.tally import Tally


class PostingClient:
    """One connection, one request at a time."""

    def __init__(self, size: int, tally: Tally) -> None:
        self.stopping = self.leaving = False
        self._tally = tally
        body = chat(size)
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: gateway.example.com\r\nuser-agent: OpenAI/Python 1.99.0\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._started: float | None = None
        self._read = b""

    @property
    def under_way(self) -> int:
        """1 while there is no answer."""
        return int(self._started is not None)

    def next_bytes(self) -> bytes:
        if self._started is not None or self.stopping:
            return b""
        self._started = time.perf_counter()
        return numbered(self._request, self._tally.number())

    def receive(self, data: bytes) -> None:
        """Raises ValueError for an answer without content-length."""
        self._tally.received += len(data)
        self._read += data
        head, _, body = self._read.partition(b"\r\n\r\n")
        if len(head) == len(self._read):
            return
        fields = head.lower()
        at = fields.index(b"content-length:") + len(b"content-length:")
        if len(body) < int(fields[at:].split(b"\r\n", 1)[0]):
            return
        assert self._started is not None
        if head.split(b" ", 2)[1] == b"200":
            self._tally.latencies.append(time.perf_counter() - self._started)
        else:
            self._tally.fail(self._read[:200].decode(errors="replace"))
        self._started, self._read = None, b""

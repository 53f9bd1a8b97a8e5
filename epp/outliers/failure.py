"""`Failure`: why the data plane answered in place of a worker. Pure."""

from enum import StrEnum


class Failure(StrEnum):
    """No connection; the connection ended before the answer began; no answer in the time that the data plane allows."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"

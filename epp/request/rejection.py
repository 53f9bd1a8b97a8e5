"""The answers that the picker gives itself: a refusal, or one that no worker needs to see. Pure."""

from typing import Final

RETRY_AFTER: Final = 1.0
"""Seconds after which it may be otherwise: where the picker or its workers have too much to do."""


class Rejection(Exception):  # noqa: N818  # an answer to the client rather than a fault
    """Refuses a request; the client gets an OpenAI-style error.

    `status`: of HTTP; `code`: of the OpenAI error; `reason`: the value of `x-llm-d-request-dropped-reason`;
    `retry_after`: seconds.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.reason = reason
        self.retry_after = retry_after


class OwnAnswer:
    """Status 200 with this JSON body."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


class UnreadableError(Exception):
    """A message of the data plane cannot be read. Its fault, not the picker's; gRPC status 13 (INTERNAL)."""

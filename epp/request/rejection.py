"""How a request is refused. Pure."""


class Rejection(Exception):  # noqa: N818  # an answer to the client rather than a fault
    """An answer that is not a pick; the client sees it as an OpenAI-style error.

    `reason` is the value of `x-llm-d-request-dropped-reason`, `retry_after` is in seconds.
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

"""The answer to a request that is refused. Pure."""


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

"""An answer that the picker gives itself, to a request that no worker needs to see. Pure."""


class OwnAnswer:
    """Status 200 with this JSON body."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

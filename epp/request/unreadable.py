"""The fault of a data plane whose message cannot be read. Pure."""


class UnreadableError(Exception):
    """A message of the data plane that cannot be read: its doing, not ours; gRPC status 13 (INTERNAL)."""

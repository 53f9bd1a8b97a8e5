"""The error for a message of the data plane that cannot be read. Pure."""


class UnreadableError(Exception):
    """A message of the data plane cannot be read. Its fault, not the picker's; gRPC status 13 (INTERNAL)."""

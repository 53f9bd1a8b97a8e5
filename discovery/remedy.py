"""Why a worker's metadata cannot be had, for people: what was asked, what came, and what to do. Pure."""

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import METADATA_PATH
from runtime.command_line import program


def in_full(error: MetadataUnavailableError, scheme: str) -> str:
    """One line; `scheme` of the URL that was asked."""
    remedy = _remedy(error, f"{scheme}://{error.authority}")
    return f"GET {scheme}://{error.authority}{METADATA_PATH}: {error.reason}" + (
        f"; {remedy}" if remedy else ""
    )


def _remedy(error: MetadataUnavailableError, url: str) -> str:
    port = error.authority.rpartition(":")[2]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return (
            f"nothing listens on port {port}: start the server there, or name the port that it listens on "
            "(a worker: registry.open(..., port=...); a list: host:port)"
        )
    if isinstance(error, WorkerUnreachableError) and error.silent:
        return "its process may have stopped, or something on the way drops what is sent to it"
    if isinstance(error, WorkerUnreachableError) or not error.connected:
        return ""
    return f"{program('discovery')} check {url} says what it should answer"

"""The TLS context of the front door: serves a certificate that was replaced to the next client."""

import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from adsum.config.file_changes import FileChanges
from adsum.config.problems import ConfigError
from adsum.os_reason import os_reason
from adsum.tasks import background

log = logging.getLogger(__name__)


@asynccontextmanager
async def server_tls(certificate: str, key: str) -> AsyncIterator[ssl.SSLContext]:
    """Raises ConfigError for files that cannot be used; later ones are logged, and the certificate in use stays.

    A server takes one context when it starts. Its `sni_callback` runs in each handshake, also without SNI.
    """
    seen = _stamps(certificate, key)
    current, serving = _context(certificate, key), _context(certificate, key)

    def select(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    async def reload() -> None:
        nonlocal current, seen
        if (found := _stamps(certificate, key)) == seen:
            return
        seen = found
        try:
            current = _context(certificate, key)
        except ConfigError as error:
            log.warning("certificate not reloaded, the old one stays in use: %s", error.one_line)

    serving.sni_callback = select
    async with background(FileChanges(Path(certificate)).run(reload), "certificate of the front door"):
        yield serving


def _stamps(*files: str) -> list[tuple[int, ...]]:
    """What changes with each file, following links; () for a missing one."""
    stamps: list[tuple[int, ...]] = []
    for file in files:
        with suppress(OSError):
            found = os.stat(file)
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
            continue
        stamps.append(())
    return stamps


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks the terminal for one
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else os_reason(error)
        expected = "expected PEM files that this user can read, and a key without a password"
        raise ConfigError(
            "http.tls_cert_file", f"no certificate and key in {certificate} and {key}: {reason}; {expected}"
        ) from error
    return context

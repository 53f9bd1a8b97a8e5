"""Serves TLS with a certificate from files that change while it serves: cert-manager renews it long before it ends."""

import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from adsum.changing_files import FileChanges
from adsum.errors import os_reason
from adsum.tasks import background

log = logging.getLogger(__name__)


@asynccontextmanager
async def reloaded_tls(certificate: Path, key: Path) -> AsyncIterator[ssl.SSLContext]:
    """Raises ValueError for files that cannot be used; later ones are logged, and the certificate in use stays.

    A server takes one context when it starts. Its `sni_callback` runs in each handshake, also without SNI.
    """
    seen = file_stamps(certificate, key)
    current, serving = _context(certificate, key), _context(certificate, key)

    def select(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    async def reload() -> None:
        nonlocal current, seen
        if (found := file_stamps(certificate, key)) == seen:
            return
        seen = found
        try:
            current = _context(certificate, key)
        except ValueError as error:
            log.warning("certificate not reloaded, the old one stays in use: %s", error)
        else:
            log.info("certificate reloaded from %s", certificate)

    serving.sni_callback = select
    async with background(FileChanges(certificate).run(reload), f"certificate {certificate}"):
        yield serving


def file_stamps(*paths: Path) -> list[tuple[int, int, int]]:
    """Inode, modification time and size of each file, following links; zeros for a missing file."""
    stamps = []
    for path in paths:
        try:
            found = os.stat(path)
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            stamps.append((0, 0, 0))
    return stamps


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks the terminal for one
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else os_reason(error)
        expected = "expected PEM files that this user can read, and a key without a password"
        raise ValueError(
            f"no certificate and key in {certificate} and {key}: {reason}; {expected}"
        ) from error
    return context

"""Credentials for the API server: a bearer token that rotates, those of a kubeconfig, or none."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from discovery.kubernetes.timings import Timings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. `authority` None: the system's certificate authorities."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Reads the files; blocks. Raises OSError, of which ssl.SSLError is one."""
        context = ssl.create_default_context(cafile=self.authority)
        # On by default since Python 3.13 (python/cpython#107361): it rejects authorities without a key identifier, which
        # clusters made by old tools have
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Identity:
    """What one request authenticates with. `expires`: seconds since the epoch, None if unknown."""

    authorization: str | None = None
    tls: TlsFiles | None = None
    expires: float | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}


class Credentials(Protocol):
    async def identity(self) -> Identity:
        """The current identity. The last one stays while it cannot be renewed; OSError if there has never been one."""
        ...

    def rejected(self) -> None:
        """The server answered 401: do not use the current identity again if there is another."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """An identity that never changes. Default: anonymous."""

    fixed: Identity = Identity()

    async def identity(self) -> Identity:
        return self.fixed

    def rejected(self) -> None:
        """Does nothing: there is no other identity."""


class TokenFileCredentials:
    """A service account's token, read again every `Timings.token_refresh` and after a 401. The last one stays while the
    file is missing or empty, as it may be for a moment while kubelet rotates it (client-go keeps it as well).
    """

    def __init__(self, path: Path, tls: TlsFiles | None, timings: Timings | None = None) -> None:
        self._path = path
        self._tls = tls
        self._timings = timings or Timings()
        self._identity: Identity | None = None
        self._read_at = float("-inf")

    async def identity(self) -> Identity:
        now = self._timings.clock()
        if self._identity is None or now - self._read_at >= self._timings.token_refresh:
            try:
                self._identity = Identity(f"Bearer {await self._read()}", self._tls)
                self._read_at = now
            except OSError:
                if self._identity is None:
                    raise
        return self._identity

    def rejected(self) -> None:
        self._read_at = float("-inf")

    async def _read(self) -> str:
        token = (await anyio.to_thread.run_sync(self._path.read_text)).strip()
        if not token:
            raise OSError(f"the token file {self._path} is empty")
        return token


class RenewedCredentials:
    """Calls `renew` (a kubeconfig's exec plugin or identity provider) when the identity expires or is rejected."""

    def __init__(
        self, first: Identity, renew: Callable[[], Awaitable[Identity]], clock: Callable[[], float]
    ) -> None:
        self._identity = first
        self._renew = renew
        self._clock = clock
        self._stale = False
        self._lock = asyncio.Lock()

    async def identity(self) -> Identity:
        async with self._lock:  # one exec plugin at a time, however many requests wait for it
            expires = self._identity.expires
            if self._stale or (expires is not None and self._clock() >= expires):
                try:
                    self._identity = await self._renew()
                    self._stale = False
                except OSError as error:
                    self._stale = (
                        False  # or the plugin would run for each request; the next 401 calls it again
                    )
                    _log.warning(
                        "cannot renew the credentials for the API server, the old ones stay: %s", error
                    )
        return self._identity

    def rejected(self) -> None:
        self._stale = True


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and our credentials for it. `server`: its URL, which may have a path. `namespace`: the pod's own, or
    that of the kubeconfig's context. `trust_env`: use the proxies of the environment variables. A kubeconfig's user may
    need them. A pod must not: $HTTPS_PROXY is meant for hosts outside of the cluster, and Python ignores the networks in
    $NO_PROXY that would except the API server (dask/dask-kubernetes#420).
    """

    server: str
    namespace: str = "default"
    credentials: Credentials = field(default_factory=FixedCredentials)
    proxy: str | None = None
    trust_env: bool = False

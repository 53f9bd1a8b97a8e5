"""Who we are to the API server: a bearer token that rotates, what a kubeconfig brings, or nobody."""

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
    """What TLS is made of: paths of PEM files. `authority` None: the system's certificate authorities."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Reads the files. OSError (ssl.SSLError is one) when that cannot be done."""
        context = ssl.create_default_context(cafile=self.authority)
        # Python >= 3.13 rejects authorities without a key identifier, which clusters made by old tools have
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Identity:
    """What one request shows. `expires`: on the wall clock, seconds since 1970; None when nobody said."""

    authorization: str | None = None
    tls: TlsFiles | None = None
    expires: float | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}


class Credentials(Protocol):
    """Where identities come from."""

    async def identity(self) -> Identity:
        """Who we are now. What was known before goes on when it cannot be renewed; OSError when nothing ever was."""
        ...

    def rejected(self) -> None:
        """The server answered 401: what is remembered is worth nothing."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """An identity that never changes; the default is nobody's."""

    fixed: Identity = Identity()

    async def identity(self) -> Identity:
        return self.fixed

    def rejected(self) -> None:
        """There is no other."""


class TokenFileCredentials:
    """A service account's token: read again every minute and after a 401, the last one stays while the file is
    missing or empty, as kubelet leaves it for a moment when it rotates.
    """

    def __init__(self, path: Path, tls: TlsFiles | None, timings: Timings | None = None) -> None:
        self._path = path
        self._tls = tls
        self._timings = timings or Timings()
        self._identity: Identity | None = None
        self._read_at = float("-inf")

    async def identity(self) -> Identity:
        now = self._timings.clock()
        if self._identity is None or now - self._read_at >= self._timings.token_reread:
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
    """What `renew` brings (a kubeconfig's exec plugin, an identity provider): until it expires or is rejected."""

    def __init__(
        self, first: Identity, renew: Callable[[], Awaitable[Identity]], clock: Callable[[], float]
    ) -> None:
        self._identity = first
        self._renew = renew
        self._clock = clock
        self._stale = False
        self._lock = asyncio.Lock()

    async def identity(self) -> Identity:
        async with self._lock:
            expires = self._identity.expires
            if self._stale or (expires is not None and self._clock() >= expires):
                try:
                    self._identity = await self._renew()
                    self._stale = False
                except OSError as error:
                    self._stale = False  # the next 401 asks again; until then the old one is all there is
                    _log.warning("the API server's credentials are not renewed, the old ones stay: %s", error)
        return self._identity

    def rejected(self) -> None:
        self._stale = True


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where an API server is and who we are to it. `server` may have a path. `namespace`: the pod's own or the
    kubeconfig context's. `trust_env`: proxies of the environment apply (a kubeconfig's user sits behind them, a pod
    must not go through them).
    """

    server: str
    namespace: str = "default"
    credentials: Credentials = field(default_factory=FixedCredentials)
    proxy: str | None = None
    trust_env: bool = False

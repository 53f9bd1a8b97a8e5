"""Credentials for the API server: the own pod's service account, else those of a kubeconfig, and how they are renewed.

A kubeconfig is loaded by kubernetes_asyncio, which nothing else imports, and only when one is opened: the import takes
0.3 to 3 s. Its models and its Watch are not used: the Watch raises at 410 Gone and loses what was deleted meanwhile.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.to_thread

from adsum.addresses import url_host
from adsum.command_line import install_hint
from adsum.config.problems import yaml_problem
from discovery.errors import DiscoveryError, InputFileError
from discovery.kubernetes.api.timings import Timings

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_log = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_LEEWAY: Final = 10.0
"""Seconds before a token expires at which it is renewed."""


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
    """Authenticates one request. `expires`: on the clock of its credentials, None if unknown."""

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


class RenewedCredentials:
    """Calls `renew` for the first identity, unless it is given, and when the last one expires or is rejected."""

    def __init__(
        self,
        renew: Callable[[], Awaitable[Identity]],
        clock: Callable[[], float],
        first: Identity | None = None,
    ) -> None:
        self._identity = first
        self._renew = renew
        self._clock = clock
        self._rejected = False
        self._lock = asyncio.Lock()

    async def identity(self) -> Identity:
        async with self._lock:  # one exec plugin at a time, however many requests wait for it
            known, rejected, self._rejected = self._identity, self._rejected, False
            is_expired = known is not None and known.expires is not None and self._clock() >= known.expires
            if known is not None and not rejected and not is_expired:
                return known
            try:
                known = self._identity = await self._renew()
            except OSError as error:
                # after a rejection it is called again by the next 401, not for each request
                if known is None:
                    raise
                _log.warning("cannot renew the credentials for the API server, the old ones stay: %s", error)
            return known

    def rejected(self) -> None:
        self._rejected = True


def token_file(path: Path, tls: TlsFiles | None, timings: Timings | None = None) -> RenewedCredentials:
    """A service account's token, read again every `Timings.token_refresh` and after a 401. The last one stays while the
    file is missing or empty, as it may be for a moment while kubelet rotates it (client-go keeps it as well).
    """
    clock, refresh = (timings or Timings()).clock, (timings or Timings()).token_refresh

    async def read() -> Identity:
        token = (await anyio.to_thread.run_sync(path.read_text)).strip()
        if not token:
            raise OSError(f"the token file {path} is empty")
        return Identity(f"Bearer {token}", tls, clock() + refresh)

    return RenewedCredentials(read, clock)


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


async def load_cluster(
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    timings: Timings | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Cluster:
    """The cluster of the pod that we run in; outside of pods, or with `context` or `kubeconfig`, that of a kubeconfig:
    `kubeconfig`, `$KUBECONFIG` or `~/.kube/config`. `context` None: its current context.

    Raises DiscoveryError with what is missing and what to do.
    """
    timings = timings or Timings()
    if context is None and kubeconfig is None and environ.get("KUBERNETES_SERVICE_HOST"):
        return await asyncio.to_thread(_in_cluster, environ, service_account, timings)
    paths = kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return await _load_kubeconfig(paths, context, timings)


def _in_cluster(environ: Mapping[str, str], service_account: Path, timings: Timings) -> Cluster:
    token, authority = service_account / "token", service_account / "ca.crt"
    for path in (token, authority):
        if not path.is_file():
            raise DiscoveryError(
                f"this looks like a pod ($KUBERNETES_SERVICE_HOST is set) but {path} is missing: "
                "set automountServiceAccountToken: true and a serviceAccountName in the pod's spec"
            )
    try:
        namespace = (service_account / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://{url_host(host)}:{port}"
    credentials = token_file(token, TlsFiles(str(authority)), timings)
    return Cluster(server, namespace or "default", credentials)


async def _load_kubeconfig(paths: str, context: str | None, timings: Timings) -> Cluster:
    """`context` None: the current one. InputFileError: a file is missing or wrong. DiscoveryError: the files are right,
    but provide no credentials, or kubernetes_asyncio is not installed.
    """
    if not _exists(paths):
        raise InputFileError(
            f"no Kubernetes cluster: this is no pod ($KUBERNETES_SERVICE_HOST is not set), and there is no kubeconfig "
            f"at {paths}; name one with ?kubeconfig=PATH or $KUBECONFIG, or a server with ?server=URL"
        )

    async def renew() -> Identity:
        try:
            return (await _load(paths, context, timings))[1]
        except DiscoveryError as error:
            raise OSError(str(error)) from error

    cluster, identity = await _load(paths, context, timings)
    return replace(cluster, credentials=RenewedCredentials(renew, time.time, identity))


def _exists(paths: str) -> bool:
    # bounded: the operator's $KUBECONFIG
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


async def _load(paths: str, context: str | None, timings: Timings) -> tuple[Cluster, Identity]:
    try:
        config, configuration = await asyncio.to_thread(_import)
    except ImportError as error:
        raise DiscoveryError(
            f"a kubeconfig needs kubernetes_asyncio ({error}): {install_hint('kubernetes')}"
        ) from error
    try:
        async with asyncio.timeout(timings.credentials_deadline):
            loader = await config.load_kube_config(
                config_file=paths, context=context, client_configuration=configuration
            )
    except TimeoutError as error:
        raise DiscoveryError(
            f"the kubeconfig {paths} provided no credentials within {timings.credentials_deadline:g} s: "
            "its exec plugin hangs, or its identity provider does not answer"
        ) from error
    except Exception as error:
        # the loader does not check the file's structure: it raises KeyError and the like
        which = f"the context {context!r}" if context else "its current context"
        raise InputFileError(
            f"the kubeconfig {paths} cannot be used with {which}: {yaml_problem(error)}; "
            "`kubectl config get-contexts` lists what there is, ?context=NAME chooses"
        ) from error
    return _cluster_of(loader, configuration)


def _cluster_of(loader: Any, configuration: "Configuration") -> tuple[Cluster, Identity]:
    expiry = getattr(loader, "exec_plugin_expiry", None)
    tls = TlsFiles(
        configuration.ssl_ca_cert,
        configuration.cert_file,
        configuration.key_file,
        bool(configuration.verify_ssl),
        configuration.tls_server_name,
    )
    token = configuration.api_key.get("BearerToken")
    chosen = loader.current_context or {}
    cluster = Cluster(
        configuration.host or "",
        chosen.get("context", {}).get("namespace") or "default",
        proxy=configuration.proxy,
        trust_env=configuration.proxy is None,
    )
    return cluster, Identity(token, tls, expiry.timestamp() - _LEEWAY if expiry else None)


def _import() -> "tuple[Any, Configuration]":
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    return config, Configuration()

"""Loads a kubeconfig's cluster and credentials by kubernetes_asyncio.

Nothing else imports that library, and this module only when a kubeconfig is opened: the import takes 0.3 to 3 s. Its
models and its Watch are not used: the Watch raises at 410 Gone and loses what was deleted meanwhile.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adsum.command_line import install_hint
from adsum.config.yaml_problem import yaml_problem
from discovery.errors import DiscoveryError, InputFileError
from discovery.kubernetes.credentials import Cluster, Identity, RenewedCredentials, TlsFiles
from discovery.kubernetes.timings import Timings

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_LEEWAY: Final = 10.0
"""Seconds before a token expires at which it is renewed."""


async def load_kubeconfig(
    kubeconfig: str | None, context: str | None, environ: Mapping[str, str], timings: Timings
) -> Cluster:
    """`context` None: the current one. InputFileError: a file is missing or wrong. DiscoveryError: the files are right,
    but provide no credentials, or kubernetes_asyncio is not installed.
    """
    paths = kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not _exists(paths):
        raise InputFileError(
            f"no Kubernetes cluster: this is no pod ($KUBERNETES_SERVICE_HOST is not set), and there is no kubeconfig "
            f"at {paths}; name one with ?kubeconfig=PATH or $KUBECONFIG, or a server with ?server=URL"
        )
    loaded = await _load(paths, context, timings)
    renew = partial(_renew, paths, context, timings)
    return Cluster(
        loaded.server,
        loaded.namespace,
        RenewedCredentials(loaded.identity, renew, time.time),
        loaded.proxy,
        trust_env=loaded.proxy is None,
    )


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


class _LoadedConfig:
    """What we use of a loaded kubeconfig. `loader`: kubernetes_asyncio's, which is untyped."""

    def __init__(self, configuration: "Configuration", loader: Any) -> None:
        self.server: str = configuration.host or ""
        self.proxy: str | None = configuration.proxy
        chosen = loader.current_context or {}
        self.namespace: str = chosen.get("context", {}).get("namespace") or "default"
        expiry = getattr(loader, "exec_plugin_expiry", None)
        tls = TlsFiles(
            configuration.ssl_ca_cert,
            configuration.cert_file,
            configuration.key_file,
            bool(configuration.verify_ssl),
            configuration.tls_server_name,
        )
        self.identity = Identity(
            configuration.api_key.get("BearerToken"), tls, expiry.timestamp() - _LEEWAY if expiry else None
        )


async def _load(paths: str, context: str | None, timings: Timings) -> _LoadedConfig:
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
        raise InputFileError(_load_error(paths, context, error)) from error
    return _LoadedConfig(configuration, loader)


def _import() -> "tuple[Any, Configuration]":
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    return config, Configuration()


def _load_error(paths: str, context: str | None, error: Exception) -> str:
    which = f"the context {context!r}" if context else "its current context"
    return (
        f"the kubeconfig {paths} cannot be used with {which}: {yaml_problem(error)}; "
        "`kubectl config get-contexts` lists what there is, ?context=NAME chooses"
    )


async def _renew(paths: str, context: str | None, timings: Timings) -> Identity:
    """OSError, as RenewedCredentials expects, if the kubeconfig provides no identity now."""
    try:
        return (await _load(paths, context, timings)).identity
    except DiscoveryError as error:
        raise OSError(str(error)) from error

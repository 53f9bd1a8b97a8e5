"""A kubeconfig's cluster and credentials, by way of kubernetes_asyncio: its one import, made when it is asked for (it
costs 0.3 to 3 s), and never its models or its Watch.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from discovery.errors import DiscoveryError, InputFileError
from discovery.kubernetes.credentials import Cluster, Identity, RenewedCredentials, TlsFiles
from discovery.kubernetes.timings import Timings
from runtime.command_line import how_to_install
from runtime.config.yaml_problem import yaml_problem

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_LEEWAY: Final = 10.0
"""Seconds before its expiry that a plugin's token is asked for anew."""


async def load_kubeconfig(
    kubeconfig: str | None, context: str | None, environ: Mapping[str, str], timings: Timings
) -> Cluster:
    """The cluster of `context` (None: the current one). InputFileError says what is wrong with which file; DiscoveryError:
    it is sound, but brings nothing.
    """
    paths = kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not _exists(paths):
        raise InputFileError(
            f"no Kubernetes cluster: this is no pod ($KUBERNETES_SERVICE_HOST is not set) and there is no kubeconfig "
            f"at {paths}; name one with ?kubeconfig=PATH or $KUBECONFIG, or a server with ?server=URL"
        )
    loaded = await _load(paths, context, timings)
    renew = partial(_renewed, paths, context, timings)
    return Cluster(
        loaded.server,
        loaded.namespace,
        RenewedCredentials(loaded.identity, renew, time.time),
        loaded.proxy,
        trust_env=loaded.proxy is None,
    )


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


class _Loaded:
    """One reading of a kubeconfig. `source` is kubernetes_asyncio's untyped loader."""

    def __init__(self, configuration: "Configuration", source: Any) -> None:
        self.server: str = configuration.host or ""
        self.proxy: str | None = configuration.proxy
        chosen = source.current_context or {}
        self.namespace: str = chosen.get("context", {}).get("namespace") or "default"
        expiry = getattr(source, "exec_plugin_expiry", None)
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


async def _load(paths: str, context: str | None, timings: Timings) -> _Loaded:
    try:
        config, configuration = await asyncio.to_thread(_import)
    except ImportError as error:
        raise DiscoveryError(
            f"a kubeconfig needs kubernetes_asyncio ({error}): {how_to_install('kubernetes')}"
        ) from error
    try:
        async with asyncio.timeout(timings.credentials_deadline):
            source = await config.load_kube_config(
                config_file=paths, context=context, client_configuration=configuration
            )
    except TimeoutError as error:
        raise DiscoveryError(
            f"the kubeconfig {paths} brought no credentials within {timings.credentials_deadline:g} s: "
            "its exec plugin hangs, or its identity provider does not answer"
        ) from error
    except Exception as error:  # the loader raises whatever a broken file makes it raise
        raise InputFileError(_broken(paths, context, error)) from error
    return _Loaded(configuration, source)


def _import() -> "tuple[Any, Configuration]":
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    return config, Configuration()


def _broken(paths: str, context: str | None, error: Exception) -> str:
    which = f"the context {context!r}" if context else "its current context"
    return (
        f"the kubeconfig {paths} cannot be used with {which}: {yaml_problem(error)}; "
        "`kubectl config get-contexts` lists what there is, ?context=NAME chooses"
    )


async def _renewed(paths: str, context: str | None, timings: Timings) -> Identity:
    """OSError when there is no other identity to be had now."""
    try:
        return (await _load(paths, context, timings)).identity
    except DiscoveryError as error:
        raise OSError(str(error)) from error

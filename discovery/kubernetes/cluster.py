"""Finds the API server and our credentials: the own pod's service account, else a kubeconfig."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from adsum.addresses import url_host
from discovery.errors import DiscoveryError
from discovery.kubernetes.credentials import Cluster, TlsFiles, TokenFileCredentials
from discovery.kubernetes.timings import Timings

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
    from discovery.kubernetes.kubeconfig import load_kubeconfig  # slow imports that a pod does not need

    return await load_kubeconfig(kubeconfig, context, environ, timings)


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
    credentials = TokenFileCredentials(token, TlsFiles(str(authority)), timings)
    return Cluster(server, namespace or "default", credentials)

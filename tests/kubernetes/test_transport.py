"""GETs over real sockets, and where clusters and credentials come from: the own pod, a kubeconfig, an exec plugin."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from aiohttp import web

from discovery import DiscoveryError
from discovery.kubernetes import Cluster, ClusterTransport, Timings, TransportError, load_cluster
from discovery.kubernetes.api.credentials import (
    Credentials,
    FixedCredentials,
    Identity,
    RenewedCredentials,
    TlsFiles,
    token_file,
)
from discovery.kubernetes.api.transport import keepalive_socket
from tests.eventually import eventually
from tests.free_port import free_port
from tests.kubernetes.fake.authority import Authority
from tests.kubernetes.fake.over_http import SHORT, Serve, TokenServer, get
from tests.open_connections import connected

Connect: TypeAlias = Callable[..., ClusterTransport]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes transports that are closed when the test ends."""
    async with AsyncExitStack() as stack:

        def start(
            server: str, credentials: Credentials | None = None, timings: Timings | None = None
        ) -> ClusterTransport:
            made = ClusterTransport(Cluster(server, credentials=credentials or FixedCredentials()), timings)
            stack.push_async_callback(made.aclose)
            return made

        yield start


async def echo(request: web.Request) -> web.Response:
    seen = {"path": request.path, "query": dict(request.query), "headers": dict(request.headers)}
    return web.json_response(seen)


async def test_what_is_sent(serve: Serve, connect: Connect) -> None:
    transport = connect(await serve(echo) + "/k8s/clusters/c-1")
    status, body = await get(transport, "/apis", labelSelector="kubernetes.io/service-name=a", watch="true")
    seen = json.loads(body)
    assert status == 200
    assert seen["path"] == "/k8s/clusters/c-1/apis"
    assert seen["query"] == {"labelSelector": "kubernetes.io/service-name=a", "watch": "true"}
    assert seen["headers"]["Accept-Encoding"] == "identity"
    assert "Authorization" not in seen["headers"]


async def test_can_connect(serve: Serve, connect: Connect) -> None:
    """Nothing is sent; a proxy that accepts connections shows nothing of the server."""
    served = await serve(echo)
    nobody = f"http://127.0.0.1:{free_port()}"
    there, absent = connect(served), connect(nobody)
    assert await there.can_connect()
    assert not await absent.can_connect()
    assert not await ClusterTransport(Cluster(served, proxy=nobody)).can_connect()
    with pytest.raises(TransportError) as refused:
        await get(absent)
    assert refused.value.connect_failed


async def test_a_closed_connection_is_no_failed_connect(serve: Serve, connect: Connect) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    transport = connect(await serve(hang_up))
    with pytest.raises(TransportError) as broken:
        await get(transport)
    assert not broken.value.connect_failed


async def test_a_watch_that_is_left_leaves_no_socket(tmp_path: Path) -> None:
    """Not even over TLS to a silent peer, for whose close_notify asyncio would wait."""
    authority = Authority("cluster", "kubernetes")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    identity = Identity(tls=TlsFiles(str(tmp_path / "ca.crt"), server_name="kubernetes"))
    context, over = authority.server_context(tmp_path), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def say_the_head_and_nothing_more() -> None:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                over.wait(90)

        peer = threading.Thread(target=say_the_head_and_nothing_more)
        peer.start()
        port = listener.getsockname()[1]
        transport = ClusterTransport(
            Cluster(f"https://127.0.0.1:{port}", credentials=FixedCredentials(identity))
        )
        async with transport.open("/x", {"watch": "true"}) as response:
            assert response.status == 200
            assert connected(port) == 1
        await transport.aclose()
        left = connected(port)
        over.set()
        peer.join()
    assert left == 0


async def test_more_watches_than_a_pool_would_hold(serve: Serve, connect: Connect) -> None:
    release = asyncio.Event()

    async def hold(request: web.Request) -> web.Response:
        if "watch" in request.query:
            await release.wait()
        return web.Response()

    transport = connect(await serve(hold), timings=Timings(connect_timeout=30.0, header_deadline=60.0))
    watches = [asyncio.create_task(get(transport, watch="true")) for _ in range(120)]
    async with asyncio.timeout(90):
        assert (await get(transport))[0] == 200
    release.set()
    assert {status for status, _ in await asyncio.gather(*watches)} == {200}


def test_sockets_notice_a_peer_that_vanished() -> None:
    """Row 9: 10 s of silence, three probes 5 s apart, and 20 s for what was sent and not acknowledged."""
    wanted = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
    with keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as opened:
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen = {name: opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in wanted}
    assert seen == wanted


async def test_a_body_that_breaks_off(serve: Serve, connect: Connect) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half a line")
        assert request.transport is not None
        request.transport.abort()
        return response

    transport = connect(await serve(half))
    with pytest.raises(TransportError, match="broke off"):
        await get(transport)


async def test_a_token_is_read_again_every_minute(serve: Serve, tmp_path: Path) -> None:
    now, token = [0.0], tmp_path / "token"
    token.write_text("one")
    credentials = token_file(token, None, Timings(clock=lambda: now[0]))
    assert (await credentials.identity()).authorization == "Bearer one"
    token.write_text("two")
    now[0] = 59.0
    assert (await credentials.identity()).authorization == "Bearer one"
    now[0] = 60.0
    assert (await credentials.identity()).authorization == "Bearer two"


async def test_without_any_token_the_reason_is_told(tmp_path: Path, connect: Connect) -> None:
    credentials = token_file(tmp_path / "token", None)
    transport = connect("http://127.0.0.1:1", credentials)
    with pytest.raises(TransportError, match="no credentials .* No such file"):
        await get(transport)


async def test_credentials_are_renewed_when_they_expire_or_are_rejected() -> None:
    made, now, broken = [0], [100.0], [False]

    async def renew() -> Identity:
        if broken[0]:
            raise OSError("the plugin failed")
        made[0] += 1
        return Identity(f"Bearer {made[0]}", expires=now[0] + 10)

    credentials = RenewedCredentials(renew, lambda: now[0], Identity("Bearer 0", expires=110.0))
    assert (await credentials.identity()).authorization == "Bearer 0"
    now[0] = 111.0
    assert (await credentials.identity()).authorization == "Bearer 1"
    credentials.rejected()
    assert (await credentials.identity()).authorization == "Bearer 2"
    broken[0] = True
    credentials.rejected()
    assert (await credentials.identity()).authorization == "Bearer 2", "the old one is better than none"


async def test_a_server_with_another_name_is_not_believed(
    serve: Serve, tmp_path: Path, connect: Connect
) -> None:
    authority, file, token = Authority("ca", "kubernetes"), tmp_path / "ca.crt", tmp_path / "token"
    file.write_bytes(authority.pem)
    token.write_text("t")
    server = await serve(TokenServer("t").answer, authority.server_context(tmp_path))
    transport = connect(server, token_file(token, TlsFiles(str(file))))
    with pytest.raises(TransportError, match=r"127\.0\.0\.1"):
        await get(transport)


async def test_the_pods_own_cluster(tmp_path: Path) -> None:
    for name, text in (("token", "t\n"), ("ca.crt", "a certificate"), ("namespace", "prod\n")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    cluster = await load_cluster(environ=environ, service_account=tmp_path)
    assert (cluster.server, cluster.namespace) == ("https://[fd00::1]:6443", "prod")
    assert not cluster.trust_env
    assert (await cluster.credentials.identity()).authorization == "Bearer t"


async def test_a_pod_without_its_token(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="automountServiceAccountToken"):
        await load_cluster(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=tmp_path)


def kubeconfig(folder: Path, **changes: object) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "prod"}},
            {"name": "bare", "context": {"cluster": "c", "user": "u"}},
        ],
    } | changes
    path = folder / "config"
    path.write_text(json.dumps(document))
    return str(path)


async def test_a_kubeconfigs_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    cluster = await load_cluster(kubeconfig=path)
    assert (cluster.server, cluster.namespace) == ("https://api.example:6443", "prod")
    assert (await cluster.credentials.identity()).authorization == "Bearer secret"
    assert (await load_cluster(kubeconfig=path, context="bare")).namespace == "default"
    assert (await load_cluster(environ={"KUBECONFIG": path})).namespace == "prod"


@pytest.mark.parametrize(
    ("changes", "context"),
    [({"current-context": ""}, None), ({}, "nowhere"), ({"contexts": []}, None), ({"clusters": []}, None)],
    ids=["no current context", "unknown context", "no contexts", "no cluster"],
)
async def test_a_kubeconfig_without_what_it_needs(
    tmp_path: Path, changes: dict[str, object], context: str | None
) -> None:
    path = kubeconfig(tmp_path, **changes)
    with pytest.raises(DiscoveryError, match=rf"{path} cannot be used with .*context=NAME"):
        await load_cluster(kubeconfig=path, context=context)


async def test_no_cluster_at_all(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"no Kubernetes cluster.*no kubeconfig"):
        await load_cluster(environ={"KUBECONFIG": str(tmp_path / "none")})


def plugin(folder: Path, script: str) -> dict[str, object]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    run = {"command": str(path), "apiVersion": "client.authentication.k8s.io/v1"}
    return {"users": [{"name": "u", "user": {"exec": run}}]}


async def test_an_exec_plugins_token_is_renewed_when_it_is_rejected(serve: Serve, tmp_path: Path) -> None:
    answer = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    )
    script = (
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n; printf '{answer}' $n"
    )
    path = kubeconfig(tmp_path, **plugin(tmp_path, script))
    cluster = await load_cluster(kubeconfig=path)
    guard = TokenServer("0")
    transport = ClusterTransport(replace(cluster, server=await serve(guard.answer)))
    assert (await get(transport))[0] == 200
    guard.wanted = "1"
    assert (await get(transport))[0] == 200
    await transport.aclose()


async def test_an_exec_plugin_that_fails(tmp_path: Path) -> None:
    """Row 29."""
    path = kubeconfig(tmp_path, **plugin(tmp_path, "echo no login >&2; exit 3"))
    with pytest.raises(DiscoveryError, match="no login"):
        await load_cluster(kubeconfig=path)


async def test_an_exec_plugin_that_hangs(tmp_path: Path) -> None:
    """Row 29."""
    path = kubeconfig(tmp_path, **plugin(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1"))
    with pytest.raises(DiscoveryError, match=r"no credentials within 0\.3 s.*exec plugin hangs"):
        await load_cluster(kubeconfig=path, timings=replace(SHORT, credentials_deadline=0.3))
    written = tmp_path / "pid"
    await eventually(lambda: written.exists() and written.read_text().endswith("\n"))
    pid = int(written.read_text())  # it is not ours to kill: the loader keeps it to itself
    await eventually(lambda: not Path(f"/proc/{pid}").exists())

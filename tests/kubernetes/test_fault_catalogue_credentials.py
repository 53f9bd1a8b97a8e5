"""Fault catalogue, rows 27-30: tokens, authorities, plugins, proxies. Real sockets, shortened durations."""

import asyncio
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from discovery import DiscoveryError
from discovery.kubernetes import Cluster, ClusterTransport, Timings, load_cluster
from discovery.kubernetes.api.credentials import token_file
from discovery.watch import WatchState
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.authority import Authority
from tests.kubernetes.fake.over_http import (
    FAST,
    LONG_WATCHES,
    PATIENT,
    assert_changes_arrive,
    assert_refused,
    fields_of,
    watching,
)
from tests.kubernetes.fake.world import World, within


def _replace(path: Path, text: str) -> None:
    """As kubelet does it: by a rename."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("one\n")
    return path


def with_token(server: FakeApiServer, token: Path, timings: Timings = PATIENT) -> Cluster:
    return Cluster(server.url, credentials=token_file(token, None, timings))


@pytest.mark.parametrize("reread", [0.05, 60.0], ids=["read again in time", "after a 401"])
async def test_row_27_the_token_rotates(
    server: FakeApiServer, cluster: World, token: Path, reread: float
) -> None:
    server.api.tokens = {"one"}
    who = with_token(server, token, replace(PATIENT, token_refresh=reread))
    async with watching(cluster, who) as recorder:
        _replace(token, "two\n")
        await asyncio.sleep(0.1)
        server.api.tokens = {"two"}
        server.api.end_watches()
        since = len(server.api.calls)
        asked = 1 if reread < 1 else 2
        await within(5, lambda: len(server.api.calls) - since >= asked)
        await asyncio.sleep(0.1)
        assert recorder.stream.health.state is WatchState.SYNCED, "no gap"
        assert len(server.api.calls) - since == asked
        await assert_changes_arrive(cluster, recorder, 0.5)


@pytest.mark.parametrize("missing", [False, True], ids=["empty", "missing"])
async def test_row_27_the_token_file_is_away_for_a_moment(
    server: FakeApiServer, cluster: World, token: Path, missing: bool
) -> None:
    server.api.tokens = {"one"}
    async with watching(cluster, with_token(server, token)) as recorder:
        if missing:
            token.unlink()
        else:
            token.write_text("")
        await asyncio.sleep(0.1)  # longer than it is remembered
        server.api.end_watches()
        await asyncio.sleep(0.2)
        assert recorder.stream.health.state is WatchState.SYNCED, "the old token is still good"
        _replace(token, "two\n")
        server.api.tokens = {"two"}
        server.api.end_watches()
        await assert_changes_arrive(cluster, recorder, 1)


async def test_row_28_401_until_a_new_token(server: FakeApiServer, cluster: World, token: Path) -> None:
    server.api.tokens = {"one"}
    async with watching(cluster, with_token(server, token)) as recorder:
        server.api.tokens = {"two"}
        server.api.end_watches()
        since = len(server.api.calls)
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        asked, took = server.api.calls[since:], asyncio.get_running_loop().time() - begun
        await within(1, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert "401" in (recorder.stream.health.reason or "")
        assert len(asked) <= 2 * (4 + took / 0.1), "at most one more try for each request, and a backoff"
        _replace(token, "two")
        await assert_changes_arrive(cluster, recorder, 1.5)
        assert all("Bearer" in call.headers["Authorization"] for call in asked)


async def test_row_29_the_authority_rotates(tmp_path: Path, server: FakeApiServer) -> None:
    account = _service_account(tmp_path, old := Authority("old"))
    async with FakeApiServer(server.api, old.server_context(tmp_path)) as tls:
        world = World(server.api)
        world.pods("a", "b")
        async with watching(world, await _in_cluster(tls, account)) as recorder:
            new = Authority("new")
            (account / "ca.crt").write_bytes(new.pem)
            await tls.stop()
            tls.ssl_context = new.server_context(tmp_path)
            await tls.start()
            await assert_changes_arrive(world, recorder, 2)


async def test_row_29_a_server_that_cannot_be_trusted(tmp_path: Path, server: FakeApiServer) -> None:
    account = _service_account(tmp_path, Authority("expected"))
    async with FakeApiServer(server.api, Authority("another").server_context(tmp_path)) as tls:
        transport = ClusterTransport(await _in_cluster(tls, account), FAST)
        async with World(server.api).discovering(transport, **fields_of(FAST)) as service:
            await assert_refused(service, 0.5, "certificate verify failed")


async def test_row_29_an_exec_plugin_that_hangs(
    tmp_path: Path, server: FakeApiServer, cluster: World
) -> None:
    """The first credential expires at once; what was known goes on, and the set with it."""
    server.api.tokens = {"one"}
    config = _kubeconfig(tmp_path, server, plugin := tmp_path / "plugin")
    _write_plugin(plugin, "one")
    loaded = None
    while loaded is None:
        with suppress(DiscoveryError):  # on a busy machine a shell takes longer than we wait
            loaded = await load_cluster(kubeconfig=str(config), timings=LONG_WATCHES)
    async with watching(cluster, loaded) as recorder:
        plugin.write_text("#!/bin/sh\nexec sleep 0.8\n")  # longer than we wait for it
        server.api.end_watches()
        await asyncio.sleep(0.2)
        assert recorder.names == {"a", "b"}
        await assert_changes_arrive(cluster, recorder, 3)
        await asyncio.sleep(0.8)  # nothing of it may be left running


async def test_row_30_a_proxy_in_the_pods_environment(
    tmp_path: Path, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    account = _service_account(tmp_path, authority := Authority("cluster"))
    async with FakeApiServer(server.api, authority.server_context(tmp_path)) as tls:
        world = World(server.api)
        world.pods("a", "b")
        async with watching(world, await _in_cluster(tls, account)) as recorder:
            await assert_changes_arrive(world, recorder, 1)


def _service_account(folder: Path, authority: Authority) -> Path:
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("one")
    (account / "namespace").write_text("default")
    (account / "ca.crt").write_bytes(authority.pem)
    return account


async def _in_cluster(server: FakeApiServer, account: Path) -> Cluster:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    return await load_cluster(environ=environ, service_account=account, timings=PATIENT)


def _kubeconfig(folder: Path, server: FakeApiServer, plugin: Path) -> Path:
    path = folder / "config"
    path.write_text(f"""
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "{server.url}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test, namespace: default}}}}]
users:
- name: test
  user:
    exec: {{apiVersion: client.authentication.k8s.io/v1, command: "{plugin}", interactiveMode: Never}}
""")
    return path


def _write_plugin(plugin: Path, token: str) -> None:
    plugin.write_text(f"""#!/bin/sh
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
 "status": {{"token": "{token}", "expirationTimestamp": "2020-01-01T00:00:00Z"}}}}'
""")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)

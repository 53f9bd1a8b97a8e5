"""Fault catalogue, rows 5, 7-10, 12-15, 22 and 27-30: real sockets between us and the API server.

Durations are shortened; rows 9 and 12 also belong to `make test-system`, where a network namespace drops the packets.
"""

import asyncio
import dataclasses
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import discovery
from discovery import DiscoveryError
from discovery.kubernetes import Cluster, ClusterTransport, Timings, load_cluster
from discovery.kubernetes.credentials import TokenFileCredentials
from discovery.watch import WatchState
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.authority import Authority
from tests.kubernetes.fake.chaos_proxy import ChaosProxy, SynBlackHole
from tests.kubernetes.fake.faults import (
    Fault,
    answers,
    broken_before_headers,
    cut,
    drip,
    gzipped,
    html,
    mapped,
    no_answer,
    says,
)
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.witness import Witness
from tests.kubernetes.fake.world import World, within

FAST: Final = Timings(
    backoff=(0.01, 0.2),
    watch=(1.0, 1.0),
    watch_slack=0.3,
    list_deadline=5.0,
    short_watch=0.05,
    rewatch=0.01,
    connect=0.3,
    header_deadline=0.4,
    token_reread=0.05,
    credentials_deadline=0.5,
)
LONG_WATCHES: Final = replace(FAST, watch=(300.0, 300.0))


@pytest.fixture
def cluster(server: FakeApiServer) -> World:
    """Pods a and b, behind HTTP."""
    world = World(server.api)
    world.pods("a", "b")
    return world


@asynccontextmanager
async def watching(world: World, cluster: Cluster, timings: Timings = LONG_WATCHES) -> AsyncIterator[Witness]:
    transport = ClusterTransport(cluster, timings)
    async with world.witness(transport, settle=0.0, grace=0.05, **fields_of(timings)) as witness:
        await within(2, lambda: witness.uids == world.uids)
        await within(2, lambda: world.api.watches == 1)
        await asyncio.sleep(2 * timings.short_watch)
        witness.start = len(witness.events)
        yield witness


def fields_of(timings: Timings) -> dict[str, Any]:
    return {field.name: getattr(timings, field.name) for field in dataclasses.fields(timings)}


async def changes_arrive(world: World, witness: Witness, seconds: float) -> None:
    """I4: the set is right again, and goes on being right."""
    world.delete("a")
    await within(seconds, lambda: witness.uids == world.uids)
    world.pod("late")
    await within(1, lambda: witness.uids == world.uids)
    assert witness.story() == ["-a:deleted", "+late"]


async def test_the_whole_way_by_url(server: FakeApiServer, cluster: World) -> None:
    async with discovery.open(f"kubernetes://default?server={server.url}") as service:
        found = await service.list_instances("dynamo", "decode")
        assert [(i.id, i.port, i.node) for i in found] == [("a", 8080, "node-a"), ("b", 8080, "node-a")]
        assert {i.incarnation for i in found} == cluster.uids
        async with asyncio.timeout(5), service.watch("dynamo", "decode") as stream:
            assert {(await anext(stream)).instance_id, (await anext(stream)).instance_id} == {"a", "b"}
            cluster.pod("a", ready=False)
            gone = await anext(stream)
            assert (gone.instance_id, getattr(gone, "reason", None)) == ("a", "not_ready")


async def test_row_05_watches_that_time_out(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url), FAST) as witness:
        await within(4, lambda: len(server.api.asked("watch")) >= 2)
        assert not witness.story()
        assert len(server.api.asked("list")) == 1
        await changes_arrive(cluster, witness, 1)


@pytest.mark.parametrize("inside", [0.1, 0.5, 0.99])
async def test_row_07_reset_in_the_middle_of_an_event(
    server: FakeApiServer, cluster: World, inside: float
) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        server.api.faults.add(cut(inside=inside, how="reset"), on="watch", times=3)
        server.api.end_watches()
        await asyncio.sleep(0.1)
        await changes_arrive(cluster, witness, 1)


async def test_row_07_reset_by_something_in_between(server: FakeApiServer, cluster: World) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url)) as witness,
    ):
        for _ in range(5):
            proxy.reset()
            await asyncio.sleep(0.05)
        assert witness.names == {"a", "b"}
        await changes_arrive(cluster, witness, 1)


async def test_row_07_a_proxy_that_cuts_every_connection_after_some_bytes(
    server: FakeApiServer, cluster: World
) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url)) as witness,
    ):
        proxy.cut_after = 700
        proxy.reset()
        for i in range(10):
            cluster.pod(f"p{i}")
            await asyncio.sleep(0.03)
        assert {"a", "b"} <= witness.names, "I8, whatever came through"
        proxy.cut_after = None
        await within(2, lambda: witness.uids == cluster.uids)


@pytest.mark.parametrize("how", ["end", "fin"], ids=["clean end", "bare FIN"])
async def test_row_08_half_a_line_and_the_end(server: FakeApiServer, cluster: World, how: Any) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        server.api.faults.add(cut(inside=0.6, how=how), on="watch", times=3)
        server.api.end_watches()
        await asyncio.sleep(0.1)
        await changes_arrive(cluster, witness, 1)


async def test_row_09_half_open_after_the_headers(server: FakeApiServer, cluster: World) -> None:
    """The deadline of the watch finds it even where the kernel of the other side still answers."""
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url), FAST) as witness,
    ):
        proxy.mode = "pause"
        cluster.delete("a")
        took = await within(2.5, lambda: witness.stream.health.state is WatchState.DEGRADED)
        assert took < 1.0 + 0.3 + 0.5, "the watch's time, its slack, and a little"
        assert witness.names == {"a", "b"}
        proxy.mode = "pass"
        await within(2, lambda: witness.names == {"b"})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's table of sockets is Linux's")
async def test_row_09_the_kernel_probes_an_idle_watch(server: FakeApiServer, cluster: World) -> None:
    """Dropped packets are found by keepalive: its timer is armed on the watch's socket, and due within 10 s."""
    async with watching(cluster, Cluster(server.url)):
        timers = [timer for port, timer in _sockets_to_loopback() if port == server.port]
        kinds = {kind for kind, _ in timers}
        assert kinds == {2}, f"tr:tm->when of /proc/net/tcp, 2 is the keepalive timer: {timers}"
        assert all(jiffies <= 10 * os.sysconf("SC_CLK_TCK") for _, jiffies in timers)


def _sockets_to_loopback() -> list[tuple[int, tuple[int, int]]]:
    """(remote port, (timer, jiffies until it is due)) of each established TCP socket over IPv4."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        (int(row[2].partition(":")[2], 16), (int(row[5][:2], 16), int(row[5][3:], 16)))
        for row in rows
        if row[3] == "01"
    ]


async def test_row_10_accepts_and_never_answers(server: FakeApiServer, cluster: World) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url), FAST) as witness,
    ):
        proxy.mode = "blackhole"
        cluster.delete("a")
        proxy.reset()
        before = proxy.accepted
        await asyncio.sleep(1.2)
        assert 2 <= proxy.accepted - before <= 4, "each try lasts a header deadline, then a pause"
        assert witness.names == {"a", "b"}
        assert "no answer" in (witness.stream.health.reason or "")
        proxy.mode = "pass"
        await within(1.5, lambda: witness.names == {"b"})


async def test_row_11_refused_and_back(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        await server.stop()
        cluster.delete("a")
        server.api.log.forget()
        await within(1, lambda: witness.stream.health.state is WatchState.DEGRADED)
        await asyncio.sleep(0.5)
        assert witness.names == {"a", "b"}
        await server.start()
        await within(1, lambda: witness.names == {"b"})
        await within(1, lambda: witness.stream.health.state is WatchState.SYNCED)


async def test_row_12_syn_black_hole(cluster: World) -> None:
    with SynBlackHole() as hole:
        transport = ClusterTransport(Cluster(f"http://127.0.0.1:{hole.port}"), FAST)
        async with cluster.discovering(transport, **fields_of(FAST)) as service:
            started = time.monotonic()
            with pytest.raises(DiscoveryError) as caught:
                await service.list_instances("dynamo", "decode", timeout=1.0)
            assert time.monotonic() - started < 1.5
            assert "did not sync within 1 s" in str(caught.value)
            assert str(hole.port) in str(caught.value), "the reason names what cannot be reached"


async def test_row_12_a_name_that_does_not_resolve(cluster: World) -> None:
    transport = ClusterTransport(Cluster("http://no-such-host.invalid:6443"), FAST)
    async with cluster.discovering(transport, **fields_of(FAST)) as service:
        with pytest.raises(DiscoveryError, match=r"no-such-host\.invalid"):
            await service.list_instances("dynamo", "decode", timeout=1.0)


def _crlf(chunk: bytes) -> bytes:
    return chunk.removesuffix(b"\n") + b"\r\n"


@pytest.mark.parametrize("fault", [drip(1), drip(7), drip(100), mapped(_crlf)], ids=["1", "7", "100", "CRLF"])
async def test_row_13_bytes_as_they_please(server: FakeApiServer, cluster: World, fault: Fault) -> None:
    """Multi-byte characters are split, and U+0085 and U+2028 are no ends of lines."""
    cluster.pod(
        "c", labels={"nvidia.com/dynamo-namespace": "dynamo", "nvidia.com/dynamo-component": "decode"}
    )
    server.api.faults.add(fault, times=None)
    async with watching(cluster, Cluster(server.url)) as witness:
        for found in cluster.slices():
            notes = {"note": "one\u0085two\u2028three \U0001f9ed é"}
            server.api.put("endpointslices", found | {"metadata": found["metadata"] | {"annotations": notes}})
        await changes_arrive(cluster, witness, 2)
        assert len(server.api.asked("list")) == 1


async def test_row_14_a_line_of_five_mebibytes(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        big = endpoint_slice("big", endpoint("10.1.0.1", "c"), annotations={"note": "x" * (5 * 2**20)})
        server.api.put("endpointslices", big)
        await within(3, lambda: "c" in witness.names)
        assert len(server.api.asked("list")) == 1


async def test_row_14_a_slice_of_a_thousand(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        many = [endpoint(f"10.1.{i >> 8}.{i & 255}", f"p{i}") for i in range(1, 1001)]
        server.api.put("endpointslices", endpoint_slice("big", *many))
        await within(3, lambda: len(witness.names) == 1002)
        assert len(server.api.asked("list")) == 1


async def test_row_14_a_line_without_end(server: FakeApiServer, cluster: World) -> None:
    """17 MiB and no newline: given up, asked anew, the set stays."""
    chunk = b"x" * 2**20
    async with watching(cluster, Cluster(server.url)) as witness:
        server.api.faults.add(says(*[chunk] * 17, stay=True), on="watch")
        server.api.end_watches()
        await within(3, lambda: len(server.api.asked("list")) == 2)
        await changes_arrive(cluster, witness, 1)


async def test_row_15_gzip_is_declined(server: FakeApiServer, cluster: World) -> None:
    """From 1.37 on WatchList streams are compressed for all who accept it."""
    async with watching(cluster, Cluster(server.url)) as witness:
        await changes_arrive(cluster, witness, 1)
        assert {call.headers.get("Accept-Encoding") for call in server.api.calls} == {"identity"}


async def test_row_15_gzip_members_that_nobody_asked_for(server: FakeApiServer, cluster: World) -> None:
    server.api.faults.add(gzipped(), times=None)
    async with watching(cluster, Cluster(server.url)) as witness:
        for i in range(5):
            cluster.pod(f"p{i}")
            await within(1, partial(witness.knows, f"p{i}"))


@pytest.mark.parametrize(
    "fault",
    [
        html(200),
        html(502),
        answers(302, b"", Location="http://127.0.0.1:9/"),
        answers(204, b""),
        broken_before_headers,
        no_answer,
    ],
    ids=["200 html", "502 html", "redirect", "204", "reset", "silence"],
)
async def test_row_22_not_an_api_server(server: FakeApiServer, cluster: World, fault: Fault) -> None:
    async with watching(cluster, Cluster(server.url)) as witness:
        server.api.faults.add(fault, times=None)
        server.api.end_watches()
        since = len(server.api.calls)
        await asyncio.sleep(0.6)
        assert len(server.api.calls) - since <= 12, "0.01 s, doubling up to 0.2 s"
        assert witness.names == {"a", "b"}
        assert witness.stream.health.state is WatchState.DEGRADED
        server.api.faults.clear()
        await changes_arrive(cluster, witness, 1.5)


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


def with_token(server: FakeApiServer, token: Path) -> Cluster:
    return Cluster(server.url, credentials=TokenFileCredentials(token, None, LONG_WATCHES))


async def test_row_27_the_token_rotates(server: FakeApiServer, cluster: World, token: Path) -> None:
    server.api.tokens = {"one"}
    async with watching(cluster, with_token(server, token)) as witness:
        _replace(token, "two\n")
        server.api.tokens = {"two"}
        server.api.end_watches()
        await asyncio.sleep(0.1)
        assert witness.stream.health.state is WatchState.SYNCED, "no gap"
        await changes_arrive(cluster, witness, 0.5)


@pytest.mark.parametrize("missing", [False, True], ids=["empty", "missing"])
async def test_row_27_the_token_file_is_away_for_a_moment(
    server: FakeApiServer, cluster: World, token: Path, missing: bool
) -> None:
    server.api.tokens = {"one"}
    async with watching(cluster, with_token(server, token)) as witness:
        if missing:
            token.unlink()
        else:
            token.write_text("")
        await asyncio.sleep(0.1)  # longer than it is remembered
        server.api.end_watches()
        await asyncio.sleep(0.2)
        assert witness.stream.health.state is WatchState.SYNCED, "the old token is still good"
        _replace(token, "two\n")
        server.api.tokens = {"two"}
        server.api.end_watches()
        await changes_arrive(cluster, witness, 1)


async def test_row_28_401_until_a_new_token(server: FakeApiServer, cluster: World, token: Path) -> None:
    server.api.tokens = {"one"}
    async with watching(cluster, with_token(server, token)) as witness:
        server.api.tokens = {"two"}
        server.api.end_watches()
        since = len(server.api.calls)
        await asyncio.sleep(1.0)
        assert witness.stream.health.state is WatchState.DEGRADED
        assert "401" in (witness.stream.health.reason or "")
        asked = server.api.calls[since:]
        assert len(asked) <= 2 * 14, "at most one more try for each request, and a backoff"
        _replace(token, "two")
        await changes_arrive(cluster, witness, 1.5)
        assert all("Bearer" in call.headers["Authorization"] for call in asked)


async def test_row_29_the_authority_rotates(tmp_path: Path, server: FakeApiServer) -> None:
    account = _service_account(tmp_path, old := Authority("old"))
    async with FakeApiServer(server.api, old.server_context(tmp_path)) as tls:
        world = World(server.api)
        world.pods("a", "b")
        async with watching(world, await _in_cluster(tls, account)) as witness:
            new = Authority("new")
            (account / "ca.crt").write_bytes(new.pem)
            await tls.stop()
            tls.ssl_context = new.server_context(tmp_path)
            await tls.start()
            await changes_arrive(world, witness, 2)


async def test_row_29_a_server_that_cannot_be_trusted(tmp_path: Path, server: FakeApiServer) -> None:
    account = _service_account(tmp_path, Authority("expected"))
    async with FakeApiServer(server.api, Authority("another").server_context(tmp_path)) as tls:
        transport = ClusterTransport(await _in_cluster(tls, account), FAST)
        async with World(server.api).discovering(transport, **fields_of(FAST)) as service:
            with pytest.raises(DiscoveryError, match=r"certificate verify failed"):
                await service.list_instances("dynamo", "decode", timeout=1.0)


async def test_row_29_an_exec_plugin_that_hangs(
    tmp_path: Path, server: FakeApiServer, cluster: World
) -> None:
    """The first credential expires at once; what was known goes on, and the set with it."""
    server.api.tokens = {"one"}
    config = _kubeconfig(tmp_path, server, plugin := tmp_path / "plugin")
    _write_plugin(plugin, "one")
    loaded = await load_cluster(kubeconfig=str(config), timings=LONG_WATCHES)
    async with watching(cluster, loaded) as witness:
        plugin.write_text("#!/bin/sh\nexec sleep 0.8\n")  # longer than we wait for it
        server.api.end_watches()
        await asyncio.sleep(0.2)
        assert witness.names == {"a", "b"}
        await changes_arrive(cluster, witness, 3)
        await asyncio.sleep(0.8)  # nothing of it may be left running


async def test_row_29_an_exec_plugin_that_fails_at_first(tmp_path: Path, server: FakeApiServer) -> None:
    config = _kubeconfig(tmp_path, server, plugin := tmp_path / "plugin")
    plugin.write_text("#!/bin/sh\nexit 3\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(DiscoveryError, match="kubeconfig"):
        await load_cluster(kubeconfig=str(config), timings=FAST)


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
        async with watching(world, await _in_cluster(tls, account)) as witness:
            await changes_arrive(world, witness, 1)


def _service_account(folder: Path, authority: Authority) -> Path:
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("one")
    (account / "namespace").write_text("default")
    (account / "ca.crt").write_bytes(authority.pem)
    return account


async def _in_cluster(server: FakeApiServer, account: Path) -> Cluster:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    return await load_cluster(environ=environ, service_account=account, timings=FAST)


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

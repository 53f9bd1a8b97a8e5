"""Rows 9 and 12 of the fault catalogue with packets that are really swallowed: no reset, no refusal, no answer."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from discovery import DiscoveryTimeoutError, SourceDiscovery, WatchState
from discovery.kubernetes import ClusterTransport, KubernetesSource, ServiceSelection
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import recording_events
from tests.system.api_client import Administrator
from tests.system.api_process import ApiProcess
from tests.system.cluster import a_cluster
from tests.system.recording_transport import RecordingTransport
from tests.system.second_network import SecondNetwork


async def test_a_server_behind_a_black_hole_is_noticed_and_found_again(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with SecondNetwork() as network:
        server = ApiProcess(listen="0.0.0.0", advertise=network.dark, inside=network.inside)
        with server:
            async with Administrator(server, network.lit) as admin, a_cluster(admin, tmp_path) as cluster:
                await cluster.service()
                await cluster.pods(["a", "b"])
                transport = RecordingTransport(ClusterTransport(await cluster.connect()))
                source = KubernetesSource(transport, cluster.namespace, ServiceSelection())
                async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
                    await eventually(lambda: recorder.names == {"a", "b"})
                    recorder.start, asked = len(recorder.events), len(transport.asked)
                    await asyncio.sleep(1.0)  # the stream is quiet: nothing of ours is unacknowledged

                    network.drop()
                    dropped = time.monotonic()
                    await admin.delete("pods", cluster.namespace, "a")
                    await cluster.pod("c")
                    await eventually(lambda: recorder.stream.health.state is WatchState.DEGRADED)
                    noticed = time.monotonic() - dropped
                    async with cluster.discovering() as newcomer:
                        with pytest.raises(
                            DiscoveryTimeoutError, match=f"{network.dark}.*(?i:time|no answer)"
                        ):
                            await newcomer.list_instances("dynamo", "decode", timeout=8.0)
                    while time.monotonic() < dropped + 50:
                        await asyncio.sleep(0.5)
                    assert recorder.transitions() == [], "the last known set stays"
                    assert recorder.names == {"a", "b"}
                    assert len(transport.asked) - asked <= 6, "rarer and rarer"

                    network.restore()
                    restored = time.monotonic()
                    await eventually(lambda: recorder.names == {"b", "c"})
                    figure(
                        f"black-holed connection: noticed after {noticed:.1f} s, "
                        f"set right {time.monotonic() - restored:.1f} s after packets pass again"
                    )
                    assert sorted(word.partition(":")[0] for word in recorder.transitions()) == ["+c", "-a"]
                    await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED)

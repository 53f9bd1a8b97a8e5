"""Real worker processes at pod addresses: they register by being pods, and are killed."""

import asyncio
import os
import signal
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from discovery import InstanceEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.objects import LABELS
from tests.started import next_line, started
from tests.system.cluster import Cluster, Pod
from tests.system.patient_client import patient_client
from tests.system.pod_registry import PORT, environment_of


@asynccontextmanager
async def a_worker(cluster: Cluster, name: str) -> AsyncIterator[tuple[Pod, asyncio.subprocess.Process]]:
    """A pod, and the process in it, registered; its probe has not been asked yet."""
    pod = await cluster.pod(name, ready=False, labels=LABELS, ports={"http": PORT})
    url = f"kubernetes://{cluster.namespace}?kubeconfig={cluster.admin.server.kubeconfig}"
    own = os.environ | environment_of(pod, cluster)
    command = (sys.executable, "-m", "tests.system.worker_process", url)
    async with started(*command, stdin=asyncio.subprocess.PIPE, env=own) as process:
        assert await next_line(process) == "ready\n"
        yield pod, process


def told_at(recorder: EventRecorder, kind: type[InstanceEvent], name: str) -> float:
    """When the recorder got the last such event, on the loop's clock."""
    events = reversed(recorder.events)
    return next(at for at, event in events if isinstance(event, kind) and event.instance_id == name)


async def test_a_killed_worker_is_unreachable_at_once_and_removed_by_its_probe(
    cluster: Cluster, figure: Callable[[str], None]
) -> None:
    await cluster.service(ports={"http": "http"}, labels=LABELS)
    hints, removals = [], []
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as workers:
        names = [f"w-{i}" for i in range(4)]
        started = [await workers.enter_async_context(a_worker(cluster, name)) for name in names]
        following = cluster.recorder(metadata=True, client=patient_client(wait=10.0))
        recorder = await workers.enter_async_context(following)
        for pod, _ in started:
            await cluster.probed(pod, ready=True)
            await eventually(partial(recorder.knows, pod.name))
        for pod, process in started:
            assert recorder.instances[pod.name].reachable
            killed = loop.time()
            process.send_signal(signal.SIGKILL)
            await eventually(lambda name=pod.name: not recorder.instances[name].reachable)
            hints.append(told_at(recorder, InstanceUpdatedEvent, pod.name) - killed)
            assert recorder.instances[pod.name].incarnation == pod.uid
            patched = loop.time()
            await cluster.probed(pod, ready=False)
            await eventually(lambda name=pod.name: not recorder.knows(name))
            removals.append(told_at(recorder, InstanceRemovedEvent, pod.name) - patched)
        assert recorder.instances == {}
        assert [word for word in recorder.transitions() if ":" in word] == [
            f"-{name}:not_ready" for name in names
        ]
    figure(
        f"SIGKILL of a worker → unreachable: median {statistics.median(hints) * 1000:.1f} ms, "
        f"max {max(hints) * 1000:.1f} ms (n={len(hints)}); then status patch → Removed: "
        f"median {statistics.median(removals) * 1000:.1f} ms"
    )

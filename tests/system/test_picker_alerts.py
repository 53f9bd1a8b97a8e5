"""Each alert of the picker and of discovery is quiet in a sound pool, and fires by the fault that it is for."""

import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from examples.dashboards.prometheus import Prometheus
from examples.demo.cluster import MODEL, DemoCluster, MoreFlags
from examples.demo.load import LoadGenerator
from tests.eventually import eventually
from tests.installed_package import install
from tests.system.alert_rules import SCRAPE_SECONDS, Alarm, alerts_of, shortened

SOUND: dict[str, Any] = {
    "apiVersion": "llm-d.ai/v1",
    "kind": "EndpointPickerConfig",
    "featureGates": ["flowControl"],
    "plugins": [
        {
            "type": "least-cost-scorer",
            "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"},
        },
        {"type": "max-score-picker"},
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": 64}},
    ],
    "flowControl": {"saturationDetector": {"pluginRef": "concurrency-detector"}},
    "outlierDetection": {"baseEjectionTime": "60s", "consecutive5xx": 3},
}
SOUND["plugins"].append({"type": "precise-prefix-cache-producer", "parameters": {"tokenWaitMs": 1000}})
SMALL = SOUND | {
    "plugins": [*SOUND["plugins"][:2], {"type": "concurrency-detector", "parameters": {"maxConcurrency": 1}}],
    "flowControl": SOUND["flowControl"] | {"maxRequests": 4, "defaultRequestTTL": "1s"},
}
SLOW = SOUND | {"plugins": [*SOUND["plugins"], {"type": "slow-filter"}]}
_PLUGINS = ("prefill-filter", "decode-filter", "always-disagg-pd-decider")
_HANDLER = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": _PLUGINS[2]}}}
STAGES = SOUND | {
    "plugins": [*SOUND["plugins"], *[{"type": one} for one in _PLUGINS], _HANDLER],
    "schedulingProfiles": [
        {"name": one, "plugins": [{"pluginRef": f"{one}-filter"}]} for one in ("prefill", "decode")
    ],
}
"""No worker has the role of prefill."""
SLOW_FILTER = """
import time
import numpy as np
from epp.extension import Filter, NoParameters, PluginDeclaration, Role

class SlowFilter(Filter):
    def filter(self, request, pool):
        time.sleep(0.09)
        return np.ones(len(pool), dtype=np.bool_)

FILTER = PluginDeclaration(role=Role.FILTER, parameters=NoParameters, build=lambda given, context: SlowFilter())
"""


class Pool:
    """The demo's cluster, whose workers and configuration a test may break."""

    def __init__(self, root: Path) -> None:
        self.config = root / "picker.yaml"
        self.configure(SOUND)
        picker = ("--config-file", str(self.config))
        self.root = root
        self.cluster = DemoCluster(
            root, flags=MoreFlags(("--faults", "--kv-events", "vllm"), picker, ("--response-trailer", "SEND"))
        )

    def configure(self, document: dict[str, Any] | str) -> None:
        self.config.write_text(document if isinstance(document, str) else yaml.safe_dump(document))

    async def reconfigure(self, document: dict[str, Any] | str) -> None:
        """Has the picker read it now."""
        self.configure(document)
        self.cluster.picker.send(signal.SIGHUP)

    async def send(self, number: signal.Signals, *workers: str) -> None:
        for worker in workers:
            self.cluster.workers[worker].send(number)

    async def fail(self, *workers: str, kind: str = "error") -> None:
        """From now on they answer 500; `kind` none: as they should."""
        places = {view.id: view.destination for view in await self.cluster.views()}
        async with aiohttp.ClientSession() as session:
            for worker in workers:
                async with session.post(f"http://{places[worker]}/fault", data=kind) as answer:
                    answer.raise_for_status()

    async def flap(self, worker: str) -> None:
        """Not ready and ready again, more often than the alert allows."""

        def seen(there: bool) -> Any:
            async def is_seen() -> bool:
                return (worker in {view.id for view in await self.cluster.views()}) is there

            return is_seen

        for _ in range(8):
            await self.send(signal.SIGUSR1, worker)
            await eventually(seen(there=False))
            await self.send(signal.SIGUSR1, worker)
            await eventually(seen(there=True))

    async def kill_the_picker(self) -> None:
        self.cluster.picker.send(signal.SIGKILL)

    async def take_the_records_away(self) -> None:
        (self.root / "workers").rename(self.root / "elsewhere")

    async def bring_them_back(self) -> None:
        (self.root / "elsewhere").rename(self.root / "workers")


async def test_each_alert_fires_by_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"adsum.plugins": {"slow-filter": "slow_filter:FILTER"}}
    place = install(tmp_path / "installed", "slow_filter", plugins, module=SLOW_FILTER)
    paths = (str(place), os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    pool = Pool(tmp_path)
    async with pool.cluster as cluster:
        pages = {"picker": cluster.metrics.removeprefix("http://")}
        rules = shortened(tmp_path, "picker", "discovery")
        async with (
            Prometheus(tmp_path, pages, rules, every=SCRAPE_SECONDS) as prometheus,
            LoadGenerator(cluster.url, MODEL, 4, max_exchanges=100),
        ):
            alarm = Alarm(prometheus)
            await alarm.quiet(apart=frozenset({"AdsumPicksSlow"}))
            await break_the_configuration(pool, alarm)
            await break_workers(pool, alarm)
            await overload(pool, alarm)
            await lose_everything(pool, alarm)
    assert alarm.fired == alerts_of("picker", "discovery")


async def break_the_configuration(pool: Pool, alarm: Alarm) -> None:
    await alarm.fires("AdsumPickerConfigRefused", by=lambda: pool.reconfigure("plugins: 1"))
    await alarm.fires("AdsumPicksSlow", by=lambda: pool.reconfigure(SLOW))
    await alarm.fires("AdsumStagesFallBack", by=lambda: pool.reconfigure(STAGES))
    await pool.reconfigure(SOUND)


async def break_workers(pool: Pool, alarm: Alarm) -> None:
    await alarm.fires("AdsumWorkersFlapping", by=lambda: pool.flap("worker-2"))
    await alarm.fires("AdsumWorkersNotReady", by=lambda: pool.send(signal.SIGUSR1, "worker-2"))
    await pool.send(signal.SIGUSR1, "worker-2")
    names = ("AdsumWorkersUnreachable", "AdsumWorkerNumbersOld")
    await alarm.fires(*names, by=lambda: pool.send(signal.SIGSTOP, "worker-3"))
    await pool.send(signal.SIGCONT, "worker-3")
    await alarm.fires("AdsumCacheEventsWrong", by=lambda: pool.fail("worker-1", kind="forgets"))
    await pool.fail("worker-1", kind="none")
    await alarm.fires("AdsumWorkerEjected", by=lambda: pool.fail("worker-1"))
    await alarm.fires("AdsumEjectionsForbidden", "AdsumRequestsFail", by=lambda: pool.fail("worker-2"))


async def overload(pool: Pool, alarm: Alarm) -> None:
    names = ("PoolSaturated", "QueueNearlyFull", "RequestsWaitInVain", "RequestsShed")
    await pool.fail("worker-1", "worker-2", kind="none")  # who fails at once empties the queue as fast
    async with LoadGenerator(pool.cluster.url, MODEL, 24, max_exchanges=100):
        await alarm.fires(*(f"Adsum{name}" for name in names), by=lambda: pool.reconfigure(SMALL))
    await pool.reconfigure(SOUND)


async def lose_everything(pool: Pool, alarm: Alarm) -> None:
    await alarm.fires("AdsumDiscoveryDegraded", by=pool.take_the_records_away)
    await pool.bring_them_back()
    await alarm.fires("AdsumPoolEmpty", by=lambda: pool.send(signal.SIGKILL, *pool.cluster.workers))

    await alarm.fires("AdsumPickerDown", "AdsumNoPicker", by=pool.kill_the_picker)

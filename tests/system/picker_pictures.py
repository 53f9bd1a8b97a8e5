"""`python -m tests.system.picker_pictures`: draws docs/picker-page-*.png from a picker under load. Needs Chromium.

Six simulated workers behind a real Envoy, three scorers and flow control; one worker left, and one is stopped.
"""

import asyncio
import itertools
import random
import signal
import tempfile
from pathlib import Path
from typing import Final

import aiohttp

from adsum.tasks import BackgroundTasks
from examples.demo.cluster import MODEL, DemoCluster, MoreFlags
from tests.system.browser import DESK, chromium, page_of, take_pictures

DOCS: Final = Path(__file__).parents[2] / "docs"
_CONFIG: Final = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: concurrency-detector, parameters: {maxConcurrency: 6}}
- {type: round-robin-fairness-policy}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: max-score-picker}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 100}
  priorityBands:
  - {priority: 10, fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 100}
  - {priority: -10, fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 100}
"""
_CLIENTS: Final = (
    ("interactive", "chat", 14),
    ("", "search", 8),
    ("batch", "nightly-evaluation", 18),
    ("batch", "embeddings-backfill", 10),
)
"""Objective, flow, and how many at a time."""


async def _client(session: aiohttp.ClientSession, url: str, objective: str, flow: str, seed: int) -> None:
    rng = random.Random(seed)
    headers = {"x-llm-d-inference-fairness-id": flow}
    if objective:
        headers["x-llm-d-inference-objective"] = objective
    for _ in itertools.count():
        shared = f"You are assistant {rng.randrange(12)}. " + "Answer with care. " * rng.choice(
            (60, 120, 240)
        )
        messages = [{"role": "system", "content": shared}, {"role": "user", "content": f"{rng.random()}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": rng.randrange(60, 240), "stream": True}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="adsum-pictures-") as folder:
        config = Path(folder) / "picker.yaml"
        config.write_text(_CONFIG)
        picker = (
            *("--config-file", str(config), "--objective", "interactive=10", "--objective", "batch=-10"),
        )
        flags = MoreFlags(
            simulator=("--num-gpu-blocks", "420"), picker=picker, envoy=("--response-trailer", "SEND")
        )
        async with DemoCluster(Path(folder), flags=flags) as cluster, aiohttp.ClientSession() as session:
            await cluster.add_worker("worker-4", "worker-5", "worker-6", "worker-7")
            clients = BackgroundTasks()
            try:
                seeds = itertools.count()
                for objective, flow, count in _CLIENTS:
                    for _ in range(count):
                        clients.start(_client(session, cluster.url, objective, flow, next(seeds)))
                await asyncio.sleep(8)
                cluster.workers["worker-2"].send(signal.SIGTERM)
                await asyncio.sleep(8)
                cluster.workers["worker-5"].send(signal.SIGSTOP)
                await asyncio.sleep(6)
                await _draw(cluster.metrics)
                cluster.workers["worker-5"].send(signal.SIGCONT)
            finally:
                await clients.aclose()


async def _draw(url: str) -> None:
    async with chromium() as browser:
        await take_pictures(browser, url, "picker-page", DOCS)
        async with page_of(browser, url, size=(DESK[0], 1100)) as page:
            await page.wait_for_selector("#decisions .bars .stack")
            await page.locator("#decisions button").nth(2).click()
            detail = page.locator("#decisions .detail:visible")
            await detail.locator("tbody tr").first.wait_for()
            await page.locator("section:has(#decisions-title)").screenshot(
                path=DOCS / "picker-page-decision.png"
            )


if __name__ == "__main__":
    asyncio.run(main())

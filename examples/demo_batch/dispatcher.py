"""Starts Redis and the dispatcher in front of the demo's cluster, and submits a batch file."""

import json
import os
from pathlib import Path
from typing import Any

from adsum.tasks import ResourceOwner
from examples.demo.cluster import MODEL, DemoCluster
from examples.demo.processes import DemoError, DemoProcess, python
from examples.demo_batch.protection import BASELINE, Protection
from examples.redis_process import redis_process

INTERVAL = 0.2
"""Seconds between two readings of the gate."""
CONCURRENCY = 512


class BatchDispatcher(ResourceOwner):
    """Entering starts Redis and the dispatcher; leaving terminates them. Raises DemoError if one does not start."""

    def __init__(self, cluster: DemoCluster, root: Path, protection: Protection) -> None:
        self.process: DemoProcess | None = None
        self.url = ""
        """The base URL of the dispatcher's pages."""
        self._cluster = cluster
        self._root = root
        self._protection = protection
        self._redis = 0
        self._config = root / "dispatcher.yaml"

    async def _open(self) -> None:
        try:
            broker, self._redis = await self._stack.enter_async_context(redis_process())
        except (FileNotFoundError, TimeoutError) as error:
            raise DemoError(str(error) or "Redis does not answer") from error
        self._config.write_text(json.dumps(self._document(broker), indent=1))
        command = python("dispatcher", "--config", str(self._config))
        self.process = await DemoProcess.start("dispatcher", command, self._root)
        self._stack.push_async_callback(self.process.terminate)
        self.url = f"http://{(await self.process.wait_ready())['http']}"

    async def submit(self, requests: int) -> list[dict[str, Any]]:
        """Run `python -m dispatcher submit` with a batch of `requests`; the lines of its results file."""
        batch, answers = self._root / "batch.jsonl", self._root / "answers.jsonl"
        batch.write_text("".join(f"{json.dumps(line)}\n" for line in map(_line, range(requests))))
        command = python(
            "dispatcher", "submit", str(batch), "--config", str(self._config), "--results", str(answers)
        )
        submitting = await DemoProcess.start("submit", command, self._root)
        try:
            code = await submitting.wait()
        finally:
            await submitting.terminate()
        if code not in (0, 3):  # 3: some responses are errors, which the summary counts
            raise submitting.exit_error()
        return [json.loads(line) for line in answers.read_text().splitlines()]

    def check_alive(self) -> None:
        """Raises DemoError if the dispatcher or Redis exited by itself."""
        try:
            os.kill(self._redis, 0)
        except ProcessLookupError as error:
            raise DemoError("Redis ended by itself") from error
        if self.process is not None and not self.process.alive:
            raise self.process.exit_error()

    def _document(self, broker: str) -> dict[str, Any]:
        """The dispatcher's configuration. Its gate reads the picker's page."""
        gate = {
            "url": f"{self._cluster.metrics}/metrics",
            "pods_metric": "llm_d_epp_ready_endpoints",
            "baseline": BASELINE,
            "interval": f"{INTERVAL}s",
            **self._protection.gate,
        }
        queue = {"name": "batch", "target": "pool", "gate": {"type": "endpoint-scrape", "params": gate}}
        return {
            "broker": broker,
            "http": {"port": 0},
            "drain_timeout": "1s",
            "targets": [{"name": "pool", "url": self._cluster.url, "concurrency": CONCURRENCY}],
            "queues": [queue | dict(self._protection.queue)],
        }


def custom_id(number: int) -> str:
    """The `custom_id` of one request of the batch."""
    return f"page-{number:05}"


def _line(number: int) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Summarize page {number} of the archive."}],
        "max_tokens": 40 + number % 17,
    }
    return {"custom_id": custom_id(number), "url": "/v1/chat/completions", "body": body}

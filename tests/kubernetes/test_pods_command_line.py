"""`python -m discovery` with URLs of Pods and pools, over HTTP."""

import asyncio
import json

from discovery.__main__ import main
from tests.in_process import run_here
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.objects import inference_pool, pod

APP = {"app": "vllm"}


async def run(*arguments: str) -> tuple[int, str, str]:
    ended = await asyncio.to_thread(run_here, main, *arguments)
    return ended.returncode, ended.stdout, ended.stderr


async def test_list_and_explain(server: FakeApiServer) -> None:
    server.api.put("pods", pod("a", "127.0.0.1", labels=APP))
    server.api.put("pods", pod("b", "127.0.0.2", labels=APP, ready=False))
    server.api.put("inferencepools", inference_pool("vllm", 1, 2, labels=APP))
    for selection in ("selector=app%3Dvllm&ports=1,2", "pool=vllm"):
        url = f"kubernetes://default?{selection}&server={server.url}"
        code, out, _ = await run("list", "any", "name", "--discovery", url, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert [(i["id"], i["port"], i["labels"]) for i in found] == [
            ("a-rank-0", 1, APP),
            ("a-rank-1", 2, APP),
        ]
        assert code == 0
        code, out, _ = await run("explain", "any", "name", "--discovery", url)
        assert code == 1
        assert "b-rank-1 is not an instance: its pod's condition Ready is False" in out


async def test_what_is_missing_is_said_without_a_traceback(server: FakeApiServer) -> None:
    url = f"kubernetes://default?pool=vllm&server={server.url}"
    code, out, err = await run("list", "any", "name", "--discovery", url)
    assert (code, out.split()) == (0, ["ID", "URL", "STATUS"])
    assert "there is no InferencePool vllm" in (await run("explain", "any", "name", "--discovery", url))[1]
    server.api.allowed = set()
    code, out, err = await run("list", "any", "name", "--discovery", url)
    assert code == 1
    assert err.startswith("error: inferencepools.inference.networking.k8s.io: HTTP 403 Forbidden")
    assert 'resources: ["inferencepools"]\n  verbs: [get, list, watch]' in err
    assert "Traceback" not in err
    code, out, err = await run("list", "any", "name", "--discovery", "kubernetes://?pool=UPPER")
    assert (code, out) == (2, "")
    assert err.startswith(
        "error: 'kubernetes://?pool=UPPER': InferencePool name 'UPPER'; expected a DNS-1123 subdomain"
    )

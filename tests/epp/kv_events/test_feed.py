"""Workers publish over real sockets what they hold, and requests go there."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
import zmq

from adsum.config.problems import ConfigError
from benchmarks.ports import free_ports
from discovery import Instance, InstanceAddedEvent, InstanceUpdatedEvent
from epp.config.picker_config import DEFAULT_CONFIG, PickerConfig, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.flow_control.controller import FlowControlSwitch
from epp.kv_events.feed import KvEventFeed, _Pauses
from epp.scheduling.kv_events.event_stream import Knowledge
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.kv_events.prompt_tokens import pack_tokens
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.scheduling.waiting import WaitingRequest
from examples.simulator.kv_messages import full, stored, vllm
from tests.epp.kv_events.model_files import write_model
from tests.epp.kv_events.publishing_worker import SIZE, PublishingWorker
from tests.epp.scheduling.endpoint_pools import director_of, text_of
from tests.eventually import eventually

pytestmark = pytest.mark.anyio

PROMPT = "".join(f"{word:4d}" for word in range(64))
"""16 blocks."""
OTHER = PROMPT[::-1]


def config(**parameters: Any) -> str:
    return text_of(
        {"type": "precise-prefix-cache-producer", "parameters": {"tokenWaitMs": 5000} | parameters},
        {
            "type": "prefix-cache-scorer",
            "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"},
        },
    )


def with_flow_control(text: str) -> str:
    """It lets requests wait while three are in flight at each worker."""
    document = yaml.safe_load(text)
    document["featureGates"] = ["flowControl"]
    document["plugins"].append({"type": "concurrency-detector", "parameters": {"maxConcurrency": 3}})
    document["flowControl"] = {"saturationDetector": {"pluginRef": "concurrency-detector"}}
    return yaml.safe_dump(document)


class Pool:
    """A picker's parts over some workers."""

    def __init__(self, workers: Sequence[Any], text: str) -> None:
        self.store = Datastore()
        loaded = load_config(text, rng=random.Random(1))
        self.director = director_of(loaded, self.store)
        (self.producer,) = [
            one for one in self.director.producers if isinstance(one, PrecisePrefixCacheProducer)
        ]
        self.switch = FlowControlSwitch(self.director, self.store, 1 << 24)
        self.text, self.plugins = text, loaded.plugins
        self.use_flow_control(loaded)
        loop = asyncio.get_running_loop()
        self.director.waiting.wake = lambda: loop.call_soon(self.dispatch)
        for number, worker in enumerate(workers):
            instance = Instance(f"w{number}", "ns", "c", "127.0.0.1", worker.port, "a")
            self.store.apply(InstanceAddedEvent(instance), {})
        self.feed = KvEventFeed(loaded, self.store, lambda: self.director.waiting.wake(), lambda: None)

    def use_flow_control(self, loaded: PickerConfig) -> None:
        if loaded.flow_control is not None:
            self.switch.use(loaded.flow_control, loaded.detector, 0.0)

    def reconfigure(self, text: str | None = None) -> None:
        loaded = load_config(text or self.text, rng=random.Random(1), before=self.plugins)
        self.plugins = loaded.plugins
        change = self.feed.prepare(loaded)
        self.director.reconfigure(loaded.scheduler, loaded.detector, Policy())
        self.use_flow_control(loaded)
        change()

    def dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        due = self.director.dispatch(loop.time())
        if due is not None:
            loop.call_at(due, self.dispatch)

    async def pick(self, prompt: Any, **more: Any) -> Pick:
        loop = asyncio.get_running_loop()
        body = msgspec.json.encode({"model": "m", "prompt": prompt} | more)
        outcome = self.director.direct({":path": "/v1/completions"}, body, None, loop.time())
        if isinstance(outcome, WaitingRequest):
            settled: asyncio.Future[Pick | Exception] = loop.create_future()
            outcome.subscribe(lambda pick, now: settled.set_result(pick))
            outcome = await settled
        assert isinstance(outcome, Pick)
        return outcome

    async def goes_to(self, prompt: Any, **more: Any) -> set[str]:
        """The workers of some requests, which fail: nothing is learnt of where they went."""
        found = set()
        for _ in range(12):
            pick = await self.pick(prompt, **more)
            found.add(pick.endpoints[0].id)
            self.director.picks.responded(pick, 500, 0.0)
            self.director.picks.release(pick, 0.0)
        return found

    def knowledge(self) -> list[Knowledge]:
        return [one.knowledge for _, streams in sorted(self.producer.streams().items()) for one in streams]

    def is_exact(self) -> bool:
        return self.knowledge() == [Knowledge.EXACT] * len(self.store.endpoints)

    def match(self, tokens: list[int], salt: str = "") -> int:
        """Leading blocks that the only worker says it holds."""
        ((stream,),) = self.producer.streams().values()
        index, holdings = self.producer.index, stream.holdings
        root = index.root(None, salt)
        return index.match(pack_tokens(tokens), root, holdings.bit, 16).get(holdings.bit, 0)

    def blocks(self, worker: int) -> int:
        (stream,) = self.producer.streams()[f"w{worker}", "a"]
        return stream.holdings.count


@asynccontextmanager
async def pool(*workers: PublishingWorker, **parameters: Any) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        made = Pool(list(workers), config(**parameters))
        await stack.enter_async_context(made.feed)
        yield made


@asynccontextmanager
async def knowing(one: PublishingWorker, other: PublishingWorker, **parameters: Any) -> AsyncIterator[Pool]:
    """Over two workers, of which the second one holds PROMPT."""
    async with pool(one, other, **parameters) as picker:
        await until(picker.is_exact)
        await other.hold(PROMPT)
        await until(lambda: picker.blocks(1) == 16)
        yield picker


def two(**form: Any) -> tuple[PublishingWorker, PublishingWorker]:
    return PublishingWorker(**form), PublishingWorker(**form)


async def until(condition: Callable[[], bool]) -> None:
    await eventually(condition)


@pytest.mark.parametrize(
    "form",
    [
        {"form": "vllm"},
        {"form": "vllm", "topic_in_replay": False},
        {"form": "sglang", "encode": full},
    ],
)
async def test_a_prompt_goes_where_its_blocks_are(form: dict[str, Any]) -> None:
    one, other = two(**form)
    async with knowing(one, other) as picker:
        assert await picker.goes_to(PROMPT) == {"w1"}
        assert await picker.goes_to(OTHER) == {"w0", "w1"}
        await one.hold(OTHER)
        await other.drop(PROMPT)
        await until(lambda: (picker.blocks(0), picker.blocks(1)) == (16, 0))
        assert await picker.goes_to(OTHER) == {"w0"}
        assert await picker.goes_to(PROMPT) == {"w0", "w1"}
        await one.clear()
        await until(lambda: picker.blocks(0) == 0)
        assert picker.feed.describe()["kv_events"]["workers"]["w1"][0]["knowledge"] == "exact"


async def test_what_was_published_before_the_picker_came_is_known() -> None:
    one, other = two()
    async with one, other:
        await one.hold(PROMPT)
        await one.hold(OTHER)
        await one.drop(OTHER)
        text = config()
        made = Pool([one, other], text)
        async with made.feed:
            await until(made.is_exact)
            assert made.blocks(0) == 16
            assert await made.goes_to(PROMPT) == {"w0"}
            assert await made.goes_to(OTHER) == {"w0", "w1"}


async def test_without_a_replay_what_is_known_is_told_as_partial() -> None:
    one, other = two(replays=False)
    async with one, other:
        await one.hold(OTHER)
        made = Pool([one, other], config())
        async with made.feed:
            await until(lambda: len(made.knowledge()) == 2)
            for _ in range(100):  # until the subscription has taken effect
                await one.hold(PROMPT)
                if made.blocks(0):
                    break
                await asyncio.sleep(0.05)
            assert made.knowledge() == [Knowledge.PARTIAL, Knowledge.UNKNOWN]
            assert await made.goes_to(PROMPT) == {"w0"}


async def test_a_lost_batch_is_asked_for_again() -> None:
    one, other = two()
    async with pool(one, other) as picker:
        await until(picker.is_exact)
        await one.hold(PROMPT)
        await until(lambda: picker.blocks(0) == 16)
        await one.drop(PROMPT, lost=True)
        await one.hold(OTHER[:32])
        await until(lambda: picker.is_exact() and picker.blocks(0) == 2)
        assert await picker.goes_to(PROMPT) == {"w0", "w1"}


@pytest.mark.parametrize("holds_again", [0, 3])
async def test_a_worker_that_begins_anew_holds_nothing_of_before(holds_again: int) -> None:
    one, other = two()
    async with pool(one, other) as picker:
        await until(picker.is_exact)
        await one.hold(PROMPT)
        await until(lambda: picker.blocks(0) == 16)
        await one.restart()
        for number in range(holds_again):
            await one.hold(f"{number:<32d}")
        await until(lambda: picker.is_exact() and picker.blocks(0) == 2 * holds_again)
        assert await picker.goes_to(PROMPT) == {"w0", "w1"}
        await one.hold(PROMPT)
        await until(lambda: picker.blocks(0) == 2 * holds_again + 16)
        assert await picker.goes_to(PROMPT) == {"w0"}


async def test_loads_that_are_pushed_count_at_once_and_before_the_page() -> None:
    one, other = two(form="sglang", encode=full)
    async with pool(one, other) as picker:
        await until(picker.is_exact)
        (endpoint, _), now = picker.store.endpoints, asyncio.get_running_loop().time

        def numbers() -> list[float]:
            pool = picker.store.pool(now())
            return [float(column[0]) for column in (pool.waiting, pool.running, pool.kv_usage)]

        for _ in range(100):  # until the subscription has taken effect
            await one.push_load(3, 5, 250, 1000, None, 7, 8, 9)
            await asyncio.sleep(0.05)
            if numbers() == [5.0, 3.0, 0.25]:
                break
        assert numbers() == [5.0, 3.0, 0.25]
        picker.store.observe(endpoint, Load(waiting=0.0, running=0.0, kv_usage=0.0), now(), 0.05)
        assert numbers() == [5.0, 3.0, 0.25]
        await one.push_load("nonsense")
        await one.push_load(-1, 0, 0, 0)
        await one.push_load(1, 0, 500, 0, None)
        await until(lambda: numbers() == [0.0, 1.0, 0.25])


@pytest.mark.parametrize("replays", [True, False])
async def test_a_worker_that_sleeps_holds_nothing_and_is_exact_again_when_it_says_so(replays: bool) -> None:
    one, other = two(replays=replays)
    async with pool(one, other) as picker:
        await until(lambda: len(picker.knowledge()) == 2)
        for _ in range(100):  # until the subscription has taken effect
            await one.clear()
            await other.clear()
            if picker.is_exact():
                break
            await asyncio.sleep(0.05)
        await one.hold(PROMPT)
        await until(lambda: picker.blocks(0) == 16)
        one.sleeps = True
        await until(lambda: picker.blocks(0) == 0)
        assert await picker.goes_to(PROMPT) == {"w0", "w1"}
        await one.hold(OTHER)
        await until(lambda: picker.knowledge()[0] is Knowledge.PARTIAL and picker.blocks(0) == 16)
        one.sleeps = False
        await one.clear()
        await one.hold(PROMPT)
        await until(lambda: picker.is_exact() and picker.blocks(0) == 16)
        assert await picker.goes_to(PROMPT) == {"w0"}


async def test_a_worker_without_events_is_estimated() -> None:
    one, other = PublishingWorker(), PublishingWorker(form="none")
    async with pool(one, other) as picker:
        await until(lambda: picker.knowledge() == [Knowledge.EXACT])
        pick = await picker.pick(PROMPT)
        while pick.endpoints[0].id != "w1":
            picker.director.picks.responded(pick, 500, 0.0)
            picker.director.picks.release(pick, 0.0)
            pick = await picker.pick(PROMPT)
        picker.director.picks.responded(pick, 200, 0.0)
        picker.director.picks.release(pick, 0.0)
        assert await picker.goes_to(PROMPT) == {"w1"}


async def test_a_prompt_counts_where_it_was_sent_until_it_is_answered() -> None:
    one, other = two()
    async with pool(one, other) as picker:
        await until(picker.is_exact)
        await one.hold("x" * 16)
        await until(lambda: picker.blocks(0) == 1)
        first = await picker.pick(PROMPT)
        others = [await picker.pick(PROMPT) for _ in range(6)]
        assert {one.endpoints[0].id for one in others} == {first.endpoints[0].id}
        for pick in (first, *others):  # answered, and yet its worker says of no block of it
            picker.director.picks.responded(pick, 200, 0.0)
            picker.director.picks.release(pick, 0.0)
        assert await picker.goes_to(PROMPT) == {"w0", "w1"}


async def test_tokens_that_a_client_sends_are_asked_of_nobody() -> None:
    one, other = two()
    async with knowing(one, other) as picker:
        assert await picker.goes_to(list(PROMPT.encode())) == {"w1"}
        assert not one.rendered + other.rendered


async def test_tokens_come_from_tokenize_where_nothing_renders_and_are_asked_for_once() -> None:
    one, other = two()
    one.token_paths = other.token_paths = {"/tokenize"}
    async with knowing(one, other) as picker:
        assert await picker.goes_to(PROMPT) == {"w1"}
        assert one.rendered + other.rendered == ["/tokenize"]


@pytest.mark.parametrize(
    ("status", "said"),
    [(422, '{"detail": []}'), (404, '{"error": {"message": "The model does not exist."}}')],
)
async def test_a_request_that_is_wrong_says_nothing_of_the_worker(status: int, said: str) -> None:
    one, other = two()
    async with knowing(one, other) as picker:
        for worker in (one, other):
            worker.refuses = status, said
        await picker.goes_to("another prompt, that is wrong" * 20)
        for worker in (one, other):
            worker.refuses = None
        assert await picker.goes_to(PROMPT) == {"w1"}


async def test_a_pick_waits_no_longer_for_tokens_than_it_may() -> None:
    one, other = two()
    one.token_delay = other.token_delay = 3600.0
    async with knowing(one, other, tokenWaitMs=20) as picker:
        assert await picker.goes_to(PROMPT) <= {"w0", "w1"}
        assert picker.producer.prompts_estimated == 12
        assert picker.producer.prompts_known == 0


async def test_where_no_worker_gives_tokens_the_model_s_files_do(tmp_path: Path) -> None:
    tokenizer = write_model(tmp_path)
    one, other = two()
    one.token_paths = other.token_paths = set()
    local = {"local": {"modelTokenizerMap": {"m": str(tmp_path)}}}
    async with pool(one, other, indexerConfig={"tokenizersPoolConfig": local}) as picker:
        await until(picker.is_exact)
        ids = tokenizer.encode(PROMPT).ids
        await other.publish(stored(list(range(len(ids) // SIZE)), ids[: len(ids) // SIZE * SIZE]))
        await until(lambda: picker.blocks(1) == len(ids) // SIZE)
        assert await picker.goes_to(PROMPT) == {"w1"}
        assert picker.feed.describe()["kv_events"]["tokens"]["files"] >= 1


async def test_a_slow_worker_leaves_the_files_time(tmp_path: Path) -> None:
    write_model(tmp_path)
    one, other = two()
    one.token_delay = other.token_delay = 3600.0
    local = {"local": {"modelTokenizerMap": {"m": str(tmp_path)}}}
    parameters: dict[str, Any] = {"indexerConfig": {"tokenizersPoolConfig": local}, "tokenWaitMs": 4000}
    async with knowing(one, other, **parameters) as picker:
        await picker.pick(PROMPT)
        assert (picker.producer.prompts_known, picker.producer.prompts_estimated) == (1, 0)


async def test_a_file_that_is_not_there_is_said_at_the_start() -> None:
    local = {"local": {"modelTokenizerMap": {"m": "/nowhere/tokenizer.json"}}}
    with pytest.raises(ConfigError, match="is not there"):
        Pool([], config(indexerConfig={"tokenizersPoolConfig": local}))


async def test_with_flow_control_tokens_are_asked_for_too() -> None:
    one, other = two()
    async with one, other:
        picker = Pool([one, other], with_flow_control(config()))
        async with picker.feed:
            await until(picker.is_exact)
            await other.hold(PROMPT)
            await until(lambda: picker.blocks(1) == 16)
            assert await picker.goes_to(PROMPT) == {"w1"}
            picks = [await picker.pick("x" * 64) for _ in range(6)]
            waiting = asyncio.create_task(picker.pick(PROMPT))
            controller = picker.switch.controller
            assert controller is not None
            await until(lambda: sum(len(band.waiting) for band in controller.bands) == 1)
            picker.reconfigure()
            await asyncio.sleep(0.05)
            assert not waiting.done(), "an equal configuration lets it go"
            picker.director.picks.release(picks.pop(), 0.0)
            assert (await waiting).endpoints


async def test_what_waits_stays_when_the_plugin_comes_or_goes() -> None:
    one, other = two()
    estimated = yaml.safe_load(with_flow_control(config()))
    estimated["plugins"] = [{"type": "prefix-cache-scorer"}, *estimated["plugins"][2:]]
    without = yaml.safe_dump(estimated)
    async with one, other:
        picker = Pool([one, other], with_flow_control(config()))
        async with picker.feed:
            await until(picker.is_exact)
            picks = [await picker.pick("x" * 64) for _ in range(6)]
            controller = picker.switch.controller
            assert controller is not None

            def queued() -> int:
                return sum(len(band.waiting) for band in controller.bands)

            waiting = [asyncio.create_task(picker.pick(PROMPT)) for _ in range(3)]
            await until(lambda: queued() == 3)
            one.token_delay = other.token_delay = 3600.0
            waiting.append(asyncio.create_task(picker.pick(OTHER)))  # for its tokens
            await until(lambda: len(picker.director.waiting) == 4)
            for text, wait in ((without, 4), (picker.text, 4), (without, 4)):
                picker.reconfigure(text)
                await asyncio.sleep(0.05)
                assert queued() == wait
            assert not any(one.done() for one in waiting)
            for pick in picks:
                picker.director.picks.release(pick, 0.0)
            assert len(await asyncio.gather(*waiting)) == 4


async def test_salts_are_other_prompts() -> None:
    one, other = two()
    async with knowing(one, other) as picker:
        assert await picker.goes_to(PROMPT) == {"w1"}
        assert await picker.goes_to(PROMPT, cache_salt="mine") == {"w0", "w1"}


async def test_a_port_that_is_configured_is_read() -> None:
    one = PublishingWorker(form="none")
    async with one:
        events = {"podDiscoveryConfig": {"socketPort": one.ports[0]}}
        made = Pool([one], config(kvEventsConfig=events))
        async with made.feed:
            await until(lambda: made.knowledge() == [Knowledge.UNKNOWN])
            for _ in range(100):
                await one.hold(PROMPT)
                if made.blocks(0):
                    break
                await asyncio.sleep(0.05)
            assert made.blocks(0) == 16


async def test_a_worker_s_metadata_say_where_it_publishes() -> None:
    one = PublishingWorker(form="none")
    async with pool(one) as picker:
        await until(lambda: one.asked == 2)
        assert not picker.knowledge()
        events, replay, _ = one.ports
        said = {"transport": {"kv_events": {"port": events, "replay_port": replay}}}
        instance = Instance("w0", "ns", "c", "127.0.0.1", one.port, "a")
        picker.store.apply(InstanceUpdatedEvent(instance, instance), said)
        await until(picker.is_exact)
        await one.hold(PROMPT)
        await until(lambda: picker.blocks(0) == 16)


async def test_workers_may_connect_to_the_picker_and_name_themselves_in_topics() -> None:
    one, other = two(form="none")
    (port,) = free_ports(1)
    async with pool(
        one, other, kvEventsConfig={"zmqEndpoint": f"tcp://0.0.0.0:{port}", "topicFilter": "kv@"}
    ) as picker:
        sender = one._context.socket(zmq.PUB)
        sender.setsockopt(zmq.LINGER, 0)
        sender.connect(f"tcp://127.0.0.1:{port}")
        names = one.names(PROMPT)
        for number in range(1000):
            topics = (
                f"kv@127.0.0.1:{other.port}@m",
                "kv@127.0.0.1@m",
                "kv@nobody@m",
                f"127.0.0.1:{one.port}",
            )
            for topic in topics:
                payload = vllm(stored(names, list(PROMPT.encode())), ts=number + 1.0)
                await sender.send_multipart([topic.encode(), number.to_bytes(8, "big"), payload])
            if picker.producer.streams():
                break
            await asyncio.sleep(0.05)
        assert list(picker.producer.streams()) == [("w1", "a")]
        await until(lambda: picker.blocks(1) == 16)
        assert await picker.goes_to(PROMPT) == {"w1"}


def test_it_is_said_when_no_scorer_reads_it() -> None:
    read = config()
    assert not load_config(read, rng=random.Random(1)).warnings
    text = read.replace(
        '"prefixMatchInfoProducerName": "precise-prefix-cache-producer"', '"matchLengthWeight": 0'
    )
    [warning] = load_config(text, rng=random.Random(1)).warnings
    assert warning.startswith("precise-prefix-cache-producer has no effect")


async def test_the_default_policy_knows_what_workers_say() -> None:
    one, other = two()
    async with one, other:
        picker = Pool(
            [one, other], DEFAULT_CONFIG.replace("optional: true", "optional: true, tokenWaitMs: 5000")
        )
        for _ in range(3):
            pick = await picker.pick(PROMPT)
            picker.director.picks.responded(pick, 200, 0.0)
            picker.director.picks.release(pick, 0.0)
        before = sum(credit.total for credit in picker.producer.credits.values())
        assert before
        async with picker.feed:
            await until(picker.is_exact)
            for worker, number, prompt in ((other, 1, PROMPT * 40), (one, 0, OTHER * 40)):
                await worker.hold(prompt)
                await until(lambda: picker.blocks(number) == 640)  # noqa: B023  # awaited here
                assert (await picker.pick(prompt)).endpoints[0].id == f"w{number}"
            assert picker.producer.prompts_known == 2
            assert sum(credit.total for credit in picker.producer.credits.values()) > before


async def test_a_worker_that_wants_a_key_is_asked_again() -> None:
    one = PublishingWorker()
    one.locked = True
    async with pool(one) as picker:
        await until(lambda: one.asked == 2)
        one.locked = False
        await until(picker.is_exact)


def test_workers_are_asked_ever_more_rarely() -> None:
    pauses = _Pauses()
    assert [pauses.after("status 401") for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [pauses.after(()) for _ in range(8)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert pauses.after("status 401") == 1


SILENT = """
import asyncio, sys
from collections import Counter
from aiohttp import web
from epp.config.settings import Settings
from epp.server import PickerServer
times, *lacks = sys.argv[1:]
sys.modules.update(dict.fromkeys(lacks))  # as if they were not installed
async def main():
    asked = Counter()
    async def answer(request):
        asked[request.path] += 1
        return web.Response(status=404)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    worker = f"static://127.0.0.1:{runner.addresses[0][1]}"
    settings = Settings(discovery=worker, grpc_port=0, grpc_health_port=0, metrics_port=0, host="127.0.0.1", secure_serving=False)
    async with PickerServer(settings):
        while asked["/metrics"] < 3 or asked["/server_info"] < int(times):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)
    print({path: asked[path] for path in ("/kv_event_sources", "/server_info", "/is_sleeping")})
    print(sorted(one for one in sys.modules if sys.modules[one] and (one.split(".")[0] in ("zmq", "tokenizers") or one in ("epp.kv_events.subscriber", "epp.kv_events.tokens"))))
    await runner.cleanup()
asyncio.run(main())
"""


@pytest.mark.parametrize(("lacks", "times"), [([], 1), (["zmq"], 0)])
def test_where_no_worker_publishes_each_is_asked_once_and_nothing_is_loaded(
    lacks: list[str], times: int
) -> None:
    command = [sys.executable, "-c", SILENT, str(times), *lacks]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    asked = {"/kv_event_sources": times, "/server_info": times, "/is_sleeping": 0}
    assert done.stdout.splitlines() == [str(asked), "[]"]

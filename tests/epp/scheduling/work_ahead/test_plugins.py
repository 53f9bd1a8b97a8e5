"""Where a request costs least: one case by hand for each term of the cost."""

import json
import random

import numpy as np
import pytest

from adsum.config.problems import ConfigError
from benchmarks.routing.arms import LEAST_COST
from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import NO_ADAPTERS, Adapters
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.scheduling.work_ahead.columns import requests_at
from epp.scheduling.work_ahead.least_cost import LeastCostScorer
from epp.scheduling.work_ahead.ledger import TRANSIT
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from tests.epp.scheduling.endpoint_pools import add_worker, picked

HEADERS = {":path": "/v1/completions"}


class Pool:
    """Two workers behind a picker; `now` moves on by hand."""

    def __init__(
        self, count: int = 2, config: str = LEAST_COST, *, pages: bool = True, seed: int = 1
    ) -> None:
        self.now = 100.0
        self.store = Datastore()
        for _ in range(count):
            add_worker(self.store, is_seen=False)
        self.scheduler = load_config(config, rng=random.Random(seed)).scheduler
        built = load_config(config, rng=random.Random(seed))
        self.director = Director(self.store, self.scheduler, built.detector, Policy(), random.Random(seed))
        for row in range(count if pages else 0):
            self.page(row)

    def page(
        self,
        row: int,
        waiting: float = 0,
        running: float = 0,
        computed: float | None = 0,
        adapters: Adapters | None = None,
    ) -> None:
        others = {} if computed is None else {PROMPT_TOKENS: float(computed)}
        load = Load(
            waiting=waiting, running=running, kv_usage=0.0, others=others, adapters=adapters, max_lora=4.0
        )
        self.store.observe(self.store.endpoints[row], load, self.now)

    def send(self, prompt: str, *, stream: bool = True, model: str = "m") -> Pick:
        body = json.dumps({"model": model, "prompt": prompt, "stream": stream}).encode()
        return picked(self.director.direct(HEADERS, body, None, self.now))

    @property
    def scorer(self) -> LeastCostScorer:
        scorer = self.scheduler.profiles["default"].scorers[0].scorer
        assert isinstance(scorer, LeastCostScorer)
        return scorer

    def slowness(self) -> list[float]:
        return list(self.scorer.producer.slowness(self.store.pool(self.now)).tolist())

    def ahead(self) -> list[float]:
        return list(self.scorer.producer.ahead(self.store.pool(self.now)).tolist())


def went(pick: Pick) -> str:
    return pick.endpoints[0].id


def tokens(count: int, letter: str = "x") -> str:
    return letter * (4 * count - 2)  # with its quotes, as JSON


def test_the_work_ahead_decides_between_workers_with_equal_pages() -> None:
    pool = Pool()
    first = pool.send(tokens(8000, "a"))
    for row in range(2):  # the next pages show one request each, of very different lengths
        pool.page(row, running=1)
    short = [pool.send(tokens(1000, letter)) for letter in "bcde"]
    assert {went(pick) for pick in short}.isdisjoint({went(first)})


def test_what_is_left_out_of_a_cost_where_it_is_nothing_changes_no_bit_of_it() -> None:
    pool, rng = Pool(8), np.random.default_rng(1)
    for row in range(8):
        pool.page(row, running=row % 4)
    request = pool.send(tokens(3000)).request
    endpoints, scorer = pool.store.pool(pool.now), pool.scorer
    scorer.producer.prefixes.prepare(request, endpoints)
    scorer.producer.prepare(request, endpoints)
    columns, model = scorer.producer.ledgers.columns(endpoints)[0], scorer.producer.model
    requests, missing = requests_at(endpoints), scorer._missing(request, endpoints)
    for step in range(300):
        columns.ahead = rng.integers(0, 9000, 8) * (rng.random(8) < step % 3 / 2)
        columns.since, columns.slowness = pool.now - rng.random(8), 0.5 + rng.random(8)
        model.ahead, model.rate, model.under_way = 2.0 * rng.random(), 5000.0 * (step % 2), rng.random()
        columns.ahead_cost, columns.balance = columns.ahead * model.ahead, 1.0 + rng.random(8)
        scorer.producer.ledgers.totals.cold = cold = step % 5 == 0
        busy = np.count_nonzero(columns.ahead) / 8
        crowding = 0.5 * min(model.ahead, 1.0) * busy * busy
        cost = requests * 0.3 + crowding + (columns.balance if cold else 1.0)
        cost = cost * missing - crowding * missing.min()
        under_way = np.maximum((columns.since - pool.now) * model.rate, -columns.ahead)
        cost = cost + (under_way * model.under_way + columns.ahead_cost) + requests * 150.0
        assert scorer.cost(request, endpoints).tolist() == (cost * columns.slowness).tolist()


def test_what_is_computed_is_no_longer_ahead() -> None:
    pool = Pool()
    row = int(went(pool.send(tokens(8000, "a")))[1:])
    assert pool.ahead()[row] == pytest.approx(8000)
    pool.now += 0.1
    pool.page(row, running=1, computed=9000)
    pool.send(tokens(10, "b"))
    assert pool.ahead()[row] <= 10


def test_a_prompt_goes_where_its_beginning_is_unless_that_costs_more() -> None:
    pool = Pool()
    first = pool.send(tokens(4000, "a"))
    row = int(went(first)[1:])
    pool.now += 0.5
    pool.page(row, running=1, computed=4100)
    assert went(pool.send(tokens(4000, "a"))) == went(first)
    pool.page(row, waiting=40, running=10, computed=4100)
    assert went(pool.send(tokens(4000, "a"))) != went(first)


def test_a_prompt_is_not_computed_again_while_all_have_something_ahead() -> None:
    """Whoever comes later would wait for it as well: its 4,000 tokens count half again, so 7,000 ahead of its holder are cheaper."""
    for there, goes_to_the_holder in ((0, False), (1, True)):
        pool = Pool()
        first = pool.send(tokens(4000, "a"))
        row = int(went(first)[1:])
        pool.now += 0.5
        pool.page(row, running=there, computed=4000)
        pool.page(1 - row, running=there)
        producer = pool.scorer.producer
        producer.prepare(first.request, pool.store.pool(pool.now))
        for at, size in ((row, 7000.0), (1 - row, 1000.0 * there)):
            if size:
                endpoint = pool.store.endpoints[at]
                producer.ledgers.of(endpoint).send(size, size, pool.now)
                producer.ledgers.update_ahead(endpoint.key, producer.ledgers.of(endpoint))
        assert (went(pool.send(tokens(4000, "a"))) == went(first)) is goes_to_the_holder
    producer.model.ahead = 0.0  # as where prompts are computed side by side: nobody waits for it
    producer.ledgers.update_costs()
    again = pool.send(tokens(4000, "a"))
    pool.page(1 - row, running=1)
    cost = pool.scorer.cost(again.request, pool.store.pool(pool.now)).item(1 - row)
    assert cost == pytest.approx(4000 * 1.3 + 150, rel=0.01)


def test_requests_that_answer_make_a_worker_dearer() -> None:
    pool = Pool()
    pool.page(0, running=10)
    assert {went(pool.send(tokens(10, letter))) for letter in "abc"} == {"w1"}


def test_a_long_prompt_avoids_those_that_answer_more_than_a_short_one() -> None:
    """cost: at w0 3000 ahead, at w1 12 requests: 12 x 150 of its own, and each suffers .3 of the missing prompt."""
    pool = Pool()
    pool.scorer.producer.ledgers.by_key.clear()
    pool.page(1, running=12)
    pool.send(tokens(3000, "a"))
    pool.page(0, running=1)
    pool.page(1, running=12)
    assert went(pool.send(tokens(20, "s"))) == "w1"
    for row, running in enumerate((1, 12)):
        pool.page(row, running=running)
    assert went(pool.send(tokens(3000, "l"))) == "w0"


def test_new_prompts_go_where_the_fewest_tokens_were_sent_while_caches_are_cold() -> None:
    pool = Pool()

    def answered(prompt: str) -> str:
        pick = pool.send(prompt, stream=False)
        pool.director.picks.responded(pick, 200, pool.now)
        pool.director.picks.release(pick, pool.now)
        pool.now += 1.0
        for row in range(2):
            pool.page(row)
        return went(pick)

    producer = pool.scorer.producer
    first = answered(tokens(9000, "l"))
    assert first not in {answered(tokens(2000, letter)) for letter in "abc"}
    for number in range(16):
        assert producer.cold, number
        answered(tokens(100, f"{number}"))
    assert not producer.cold
    assert {answered(tokens(2000, f"{number:02}")) for number in range(20)} == {"w0", "w1"}


def test_a_response_that_is_not_streamed_ends_the_work() -> None:
    pool = Pool()
    pick = pool.send(tokens(500), stream=False)
    pool.director.picks.responded(pick, 200, pool.now)
    assert pool.ahead() == [0, 0]


def without_counters() -> Pool:
    pool = Pool()
    for row in range(2):
        pool.page(row, computed=None)
        pool.store.pool(0).metric(PROMPT_TOKENS)[row] = PROMPT_TOKENS.unknown
    return pool


def test_without_a_counter_the_worker_s_queue_says_what_is_ahead() -> None:
    pool = without_counters()
    pick = pool.send(tokens(500))
    row = int(went(pick)[1:])
    # headers of a streamed response say nothing of its prompt
    pool.director.picks.responded(pick, 200, pool.now)
    assert pool.ahead()[row] == pytest.approx(500)
    pool.now += 2 * TRANSIT
    pool.page(row, running=1, computed=None)
    pool.send(tokens(8, "b"))
    assert pool.ahead()[row] <= 8


def test_a_page_that_comes_no_more_keeps_nothing_for_ever() -> None:
    pool = Pool(1)
    for step in range(1000):
        pool.now += 0.1
        pool.director.picks.responded(pool.send(f"{step} " + tokens(100)), 200, pool.now)
    (ledger,) = pool.scorer.producer.ledgers.by_key.values()
    assert len(ledger._sent) < 200


def test_without_a_page_a_response_ends_it() -> None:
    pool = Pool(pages=False)
    pick = pool.send(tokens(500))
    assert max(pool.ahead()) == pytest.approx(500)
    pool.director.picks.responded(pick, 200, pool.now)
    assert pool.ahead() == [0, 0]


def test_a_worker_that_takes_requests_and_shows_none_of_them_gets_few() -> None:
    """Its process is stuck behind its page: what it does not answer stays in flight."""
    pool = Pool()
    stuck = 0
    for step in range(100):
        pool.now += 0.1
        pool.page(0)
        pool.page(1, running=2)
        pick = pool.send(f"{step} " + tokens(10))
        if went(pick) == "w0":
            stuck += 1
        else:
            pool.director.picks.responded(pick, 200, pool.now)
            pool.director.picks.release(pick, pool.now)
    assert stuck < 5


def test_a_worker_at_half_speed_costs_twice_as_much() -> None:
    pool = Pool()
    sent, computed = [0.0, 0.0], [0.0, 0.0]
    for step in range(200):
        for row, speed in enumerate((2100, 1050)):  # tokens in each tenth of a second, one prompt at least
            computed[row] = min(sent[row], computed[row] + speed)
        pool.now += 0.1
        for row in range(2):
            pool.page(row, running=100, computed=computed[row])
        for letter in "abc":
            pick = pool.send(f"{letter}{step} " + tokens(1000))
            sent[int(went(pick)[1:])] += pick.request.prompt_size / 4
            pool.director.picks.responded(pick, 200, pool.now)
            pool.director.picks.release(pick, pool.now)
    slow = pool.slowness()
    assert slow[1] / slow[0] == pytest.approx(2.0, rel=0.2)


def test_a_cold_adapter_costs_what_loading_it_costs() -> None:
    pool = Pool()
    for step in range(1, 100):  # a speed is learnt
        pool.now += 0.1
        pool.send(f"{step} " + tokens(1000))
        pool.send(f"other {step} " + tokens(1000))
        for row in range(2):
            pool.page(row, running=100, computed=1000 * step)
    adapter = Adapters(active=frozenset({"french"}))
    pool.page(0, running=1, adapters=NO_ADAPTERS, computed=200_000)
    pool.page(1, running=2, adapters=adapter, computed=200_000)
    pool.now += 1.0
    pool.send(tokens(8, "z"))
    assert went(pool.send(tokens(100, "q"), model="french")) == "w1"
    assert went(pool.send(tokens(100, "r"))) == "w0"


def test_two_pickers_send_a_new_prompt_to_the_same_worker() -> None:
    ours, theirs = Pool(8, seed=3), Pool(8, seed=4)
    computed = 0
    for step in range(60):
        computed += 40_000
        for pool in (ours, theirs):
            pool.now += 0.1
            pool.send(f"{step} of {id(pool)} " + tokens(4000))
            for row in range(8):
                pool.page(row, computed=computed)
    prompts = [letter + tokens(3000, letter) for letter in "abcdefghijklmnopqrst"]
    went_to = [[went(pool.send(prompt)) for prompt in prompts] for pool in (ours, theirs)]
    same = sum(one == other for one, other in zip(*went_to, strict=True))
    assert same >= 8, went_to  # of 20; by chance 2 or 3


@pytest.mark.parametrize("status", [404, 503])
def test_a_request_that_failed_is_no_work(status: int) -> None:
    pool = Pool()
    pick = pool.send(tokens(500))
    pool.director.picks.responded(pick, status, pool.now)
    assert pool.ahead() == [0, 0]
    pool.director.picks.release(pool.send(tokens(500)), pool.now)
    assert pool.ahead() == [0, 0]


def test_a_request_that_another_worker_served_is_no_work_for_the_picked() -> None:
    pool = Pool()
    pick = pool.send(tokens(500))
    other = next(one for one in pool.store.endpoints if one.id != went(pick))
    pool.director.picks.served(pick, other.destination)
    pool.director.picks.responded(pick, 200, pool.now)
    assert pool.ahead() == [0, 0]


def test_a_worker_that_goes_takes_its_work_along() -> None:
    pool = Pool()
    pick = pool.send(tokens(500))
    instance = Instance(went(pick), "ns", "c", pick.endpoints[0].address, 8000, "a")
    pool.store.apply(InstanceRemovedEvent(instance, "deleted"))
    pool.store.apply(InstanceAddedEvent(instance), {})
    assert sum(pool.ahead()) == 0
    pool.director.picks.release(pick, pool.now)
    assert sum(pool.ahead()) == 0


def test_unknown_numbers_are_never_the_cheapest() -> None:
    pool = Pool()
    pool.page(0, running=float("nan"))
    pool.page(1, running=30)
    assert {went(pool.send(tokens(10, letter))) for letter in "abc"} == {"w1"}


def test_a_pool_in_another_order_has_the_same_costs() -> None:
    pool = Pool(4)
    for letter in "abcdefg":
        pool.send(tokens(900, letter))
    every = pool.store.pool(pool.now)
    mask = np.array([False, True, True, False])
    expected = [value for value, kept in zip(pool.ahead(), mask, strict=True) if kept]
    assert pool.scorer.producer.ahead(every.select(mask)).tolist() == expected


def test_two_scorers_of_one_producer_share_its_work() -> None:
    same = "parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}"
    text = LEAST_COST.replace(
        "- type: max-score-picker\n",
        f"- {{name: other, type: least-cost-scorer, {same}}}\n- type: max-score-picker\n",
    ).replace(
        "  - {pluginRef: least-cost-scorer}", "  - {pluginRef: least-cost-scorer}\n  - {pluginRef: other}"
    )
    pool = Pool(config=text)
    one, other = (weighted.scorer for weighted in pool.scheduler.profiles["default"].scorers)
    assert isinstance(one, LeastCostScorer)
    assert isinstance(other, LeastCostScorer)
    assert one.producer is other.producer
    assert sum(isinstance(each, WorkAheadProducer) for each in pool.scheduler.producers) == 1


def test_parameters_that_make_no_sense_are_refused() -> None:
    text = LEAST_COST.replace(
        "{prefixMatchInfoProducerName", "{interference: -1, prefixMatchInfoProducerName"
    )
    with pytest.raises(ConfigError, match="interference"):
        load_config(text, rng=random.Random(1))


def test_the_choice_that_the_page_works_through() -> None:
    """docs/routing.md has these numbers."""
    pool = Pool(3)
    beginning = "b" * (4 * 6016)
    first = pool.send(beginning)
    holder = int(went(first)[1:])
    pool.director.picks.responded(first, 200, pool.now)
    other, slow = (row for row in range(3) if row != holder)
    producer = pool.scorer.producer
    producer.ledgers.totals.cold = False

    def pages() -> None:
        for row, requests in ((holder, 12), (other, 3), (slow, 0)):
            pool.page(row, running=requests, computed=6016 if row == holder else 0)

    pool.now += 1.0
    pages()
    producer.prepare(first.request, pool.store.pool(pool.now))
    producer.ledgers.of(pool.store.endpoints[holder]).send(4800, 4800, pool.now)
    producer.ledgers.update_ahead(
        pool.store.endpoints[holder].key, producer.ledgers.of(pool.store.endpoints[holder])
    )
    producer.ledgers.columns(pool.store.pool(pool.now))[0].slowness[slow] = 2.0
    question = beginning[: 4 * 6000] + "q" * (4 * 600 - 2)
    pick = pool.send(question)
    assert went(pick) == f"w{holder}"
    chains = dict(pick.request.prefixes)
    pool.director.picks.release(pick, pool.now)  # as if it had failed: nothing of it stays
    pick.request.prefixes.update(chains)
    pages()
    producer.ledgers.columns(pool.store.pool(pool.now))[0].slowness[slow] = 2.0
    cost = pool.scorer.cost(pick.request, pool.store.pool(pool.now))
    # blocks: 112 tokens less are held
    assert cost[[holder, other, slow]] == pytest.approx([9_360, 13_323, 13_867], rel=0.06)

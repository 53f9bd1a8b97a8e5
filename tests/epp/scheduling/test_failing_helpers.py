"""A prefill worker that fails is ejected as one, and no decode worker in its place."""

import random
from pathlib import Path
from typing import Any

import pytest

from discovery import Instance, InstanceRemovedEvent
from epp.config.picker_config import load_config
from epp.endpoints.load import Load
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.outliers.detection import OutlierDetection
from epp.outliers.settings import OutlierSettings
from epp.peers.messages.peers_pb2 import News
from epp.peers.publisher import PickPublisher
from epp.request.control_headers import PREFILL_FALLBACK
from epp.scheduling.pick import Pick
from epp.scheduling.picks_in_flight import _FAULTS
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from registry.disaggregation.disaggregated_request import FALLBACK
from tests.decoded_exchange import DecodedExchange
from tests.epp.scheduling.endpoint_pools import director_of, picked
from tests.epp.scheduling.test_roles import NOW, body_of, store_of


class Pool:
    """Decode workers that are busy, prefill workers, and what the picker makes of their answers; `settings`: of ejections."""

    def __init__(self, *roles: str, **settings: Any) -> None:
        self.store = store_of(*roles)
        made = load_config(None, rng=random.Random(1))
        self.director = director_of(made, self.store)
        self.outliers = OutlierDetection(self.store, OutlierSettings.model_construct(**settings))
        self.director.picks.outliers = self.outliers
        self._asked = 0

    def ask(self, now: float = NOW) -> Pick:
        """A prompt that nobody holds."""
        self._asked += 1
        prompt = body_of(6000, chr(0x4E00 + self._asked))
        return picked(self.director.direct({":path": "/v1/completions"}, prompt, None, now))

    def answer(self, pick: Pick, status: int = 200, reason: str = "", now: float = NOW) -> None:
        if reason:
            self.director.picks.fell_back(pick, reason, now)
        self.director.picks.responded(pick, status, now)
        self.director.picks.release(pick, now)

    @property
    def ejected(self) -> list[str]:
        return [one.endpoint.id for one in self.outliers.ejected]


def helper(pick: Pick) -> str:
    return pick.helpers["prefill"][0].id if pick.helpers else ""


@pytest.mark.parametrize("reason", ["unreachable", "lost", "timeout", "status", "answer"])
def test_who_fails_as_the_sidecars_say_is_ejected_and_gets_one_on_trial(reason: str) -> None:
    pool = Pool("decode", "decode", "prefill", "prefill", probe_path="")
    looked_at: list[str] = []
    for _ in range(20):
        for one in pool.store.endpoints:
            pool.store.set_lost(one, lost=False)  # it lives
            pool.store.on_suspect[one.key] = lambda name=one.id: looked_at.append(name)  # type: ignore[misc]
        pick = pool.ask()
        pool.answer(pick, 200, reason if helper(pick) == "prefill-3" else "")
    assert pool.ejected == ["prefill-3"]
    assert set(looked_at) == ({"prefill-3"} if reason in ("unreachable", "lost") else set())
    assert {helper(pool.ask()) for _ in range(3)} == {"prefill-4"}
    later = NOW + 40.0
    pool.outliers.tick(later)
    for one in pool.store.endpoints:
        pool.store.observe(one, one_load(one.id), later, period=1e9)
    while helper(pick := pool.ask(later)) != "prefill-3":
        pool.answer(pick, now=later)
    assert "prefill-3" in pool.ejected, "one at a time"
    pool.answer(pick, now=later)
    assert pool.ejected == []


def one_load(name: str) -> Load:
    return Load(waiting=0, running=20 if name.startswith("decode") else 0, kv_usage=0)


def test_the_sidecar_says_it_in_these_words() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pd-sidecar.md").read_text()
    reasons = page.partition("`adsum_pd_sidecar_prefill_failures_total`")[2].partition("\n")[0]
    assert all(f"`{reason}`" in reasons for reason in _FAULTS)
    assert PREFILL_FALLBACK == FALLBACK


@pytest.mark.parametrize("reason", ["refused", "header", "body", "finished", "anything"])
def test_what_is_not_the_workers_fault_ejects_nobody(reason: str) -> None:
    pool = Pool("decode", "prefill")
    for _ in range(20):
        pool.answer(pool.ask(), 200, reason)
    assert pool.ejected == []


def test_an_error_that_the_sidecar_explains_is_not_the_decode_workers() -> None:
    """SGLang's decode worker cannot compute the prompt, so the answer is 503."""
    pool = Pool("decode", "decode", "prefill", "prefill")
    for _ in range(40):
        pick = pool.ask()
        failed = helper(pick) == "prefill-3"
        pool.answer(pick, 503 if failed else 200, "status" if failed else "")
        if pool.ejected:
            break
    assert pool.ejected == ["prefill-3"]
    [decode, other, *_] = pool.outliers._records.values()
    assert (decode.failures_in_row, other.failures_in_row, decode.errors_in_row, other.errors_in_row) == (
        0,
    ) * 4


def test_of_errors_that_nobody_explains_the_prefill_worker_has_the_most_in_a_row() -> None:
    """As behind llm-d's sidecar, which answers with the prefill worker's error."""
    pool = Pool("decode", "decode", "decode", "prefill", "prefill", failure_percentage_threshold=0.0)
    for _ in range(40):
        pick = pool.ask()
        pool.answer(pick, 500 if helper(pick) == "prefill-4" else 200)
        if pool.ejected:
            break
    assert pool.ejected == ["prefill-4"]
    pool = Pool("decode", "decode", "decode", "prefill", "prefill", failure_percentage_threshold=0.0)
    for _ in range(40):
        pick = pool.ask()
        pool.answer(pick, 500 if pick.endpoints[0].id == "decode-1" else 200)
        if pool.ejected:
            break
    assert pool.ejected == ["decode-1"]


def test_a_frozen_prefill_worker_is_avoided_and_those_that_wait_for_it_are_not() -> None:
    pool = Pool("decode", "decode", "prefill", "prefill", suspect_timeout=0.5, stall_timeout=10.0)
    for at in (NOW, NOW + 0.2):
        for pick in [pool.ask(at) for _ in range(10)]:
            if helper(pick) != "prefill-3":
                pool.answer(pick, now=at + 0.1)
    pool.outliers.tick(NOW + 1.5)
    assert pool.ejected == ["prefill-3"]


def test_what_a_prefill_worker_did_not_compute_it_neither_has_ahead_nor_holds() -> None:
    pool = Pool("decode", "prefill")
    told: list[str] = []
    publisher = PickPublisher(lambda: told.append("wake"))
    pool.director.picks.peers = publisher
    pick = pool.ask()
    [work] = [one for one in pool.director.producers if isinstance(one, WorkAheadProducer)]
    pool.director.picks.fell_back(pick, "timeout", NOW)
    assert pool.store.pool(NOW).inflight.tolist() == [1, 0]
    assert pick.stages.endswith("without; the decode worker computed the prompt: timeout")
    pool.director.picks.responded(pick, 200, NOW)
    pool.director.picks.first_byte(pick, NOW + 9.0, NOW + 9.0)
    assert work.learnt()["transfer"]["answers"] == 0, "those were the seconds of computing"
    assert work.ahead(pool.store.pool(NOW)).tolist()[1] == 0.0
    matches = {one.id: work.prefixes.held(pick.request, one) for one in pool.store.endpoints}
    assert matches["prefill-2"] == 0
    pool.director.picks.release(pick, NOW)
    pool.director.picks.release(pick, NOW)
    assert pool.store.pool(NOW).inflight.tolist() == [0, 0]
    publisher.flush(NOW)
    kept = publisher.since(0)
    assert kept is not None
    news = News.FromString(kept.data)
    assert ([one.number for one in news.unhelped], list(news.helped), list(news.ended)) == ([1], [], [1])


def test_an_answer_that_the_gateway_shows_says_so_too(messages: Any) -> None:
    pool = Pool("decode", "prefill", consecutive_local_origin_failure=1)
    exchange = DecodedExchange(pool.director, ExchangeSettings())
    exchange.ask(messages.headers({":path": "/v1/completions"}), NOW)
    exchange.ask(messages.body(body_of(6000), end_of_stream=True), NOW)
    exchange.ask(messages.response_headers("200", values={PREFILL_FALLBACK: "timeout"}), NOW)
    assert pool.ejected == ["prefill-2"]


def test_a_prefill_worker_that_leaves_ends_no_decode() -> None:
    pool = Pool("decode", "prefill")
    ended: list[Any] = []
    pick = pool.ask()
    pick.evict = lambda *why: ended.append(why) is None
    [prefill] = pick.helpers["prefill"]
    gone = Instance(prefill.id, "ns", "c", prefill.address, 8000, "a")
    pool.store.apply(InstanceRemovedEvent(gone, "terminating"), {})
    assert helper(pool.ask()) == ""
    pool.answer(pick)
    assert (pick.status, ended) == (200, [])
    assert pool.store.pool(NOW).inflight.tolist() == [1]

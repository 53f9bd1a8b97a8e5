"""`GET /v1/models`: when the director answers it itself, and what."""

import json
import random

import pytest

from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.served_model import ServedModel
from epp.outliers.settings import Failure
from epp.request.rejection import OwnAnswer, Rejection
from epp.request.subset import Subset
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from tests.epp.scheduling.endpoint_pools import add_worker, picked

GET = {":method": "GET", ":path": "/v1/models"}


def director(
    store: Datastore, *, models_endpoint: bool = True, models: frozenset[str] = frozenset()
) -> Director:
    config = load_config(None, rng=random.Random(1))
    policy = Policy(models=models, models_endpoint=models_endpoint)
    return Director(store, config.scheduler, config.detector, policy, random.Random(2))


def store_of(**listed: tuple[str, ...]) -> Datastore:
    """Workers at 10.0.0.1, 10.0.0.2, ... that list these models."""
    store = Datastore()
    for name, models in listed.items():
        add_worker(store, name, is_seen=False)
        store.set_listed_models(store.endpoints[-1], tuple(ServedModel(id=model) for model in models))
    return store


def shown(outcome: object) -> list[str]:
    assert isinstance(outcome, OwnAnswer)
    return [model["id"] for model in json.loads(outcome.body)["data"]]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models?limit=5", "/openai/v1/models"])
def test_the_models_of_all_workers(path: str) -> None:
    store = store_of(a=("m", "x"), b=("m", "y"))
    assert shown(director(store).direct(GET | {":path": path}, b"", None, 0.0)) == ["m", "x", "y"]
    assert store.pool(0.0).inflight.tolist() == [0, 0]


def test_they_follow_the_endpoints() -> None:
    store = store_of(a=("m",))
    it = director(store)
    assert shown(it.direct(GET, b"", None, 0.0)) == ["m"]
    store.set_listed_models(store.endpoints[0], (ServedModel(id="m"), ServedModel(id="lora", parent="m")))
    assert shown(it.direct(GET, b"", None, 0.0)) == ["m", "lora"]


def test_a_subset_has_its_own_models() -> None:
    it = director(store_of(a=("x",), b=("y",)))
    assert shown(it.direct(GET, b"", Subset.of(["10.0.0.2:8000"]), 0.0)) == ["y"]


def test_the_operator_s_models_are_the_only_ones() -> None:
    it = director(store_of(a=("m", "x")), models=frozenset({"m"}))
    assert shown(it.direct(GET, b"", None, 0.0)) == ["m"]


@pytest.mark.parametrize(
    "headers",
    [
        GET | {":method": "POST"},
        GET | {":method": "HEAD"},
        GET | {":path": "/v1/models/m"},
        GET | {":path": "/v1/completions"},
        GET | {":path": "/my-v1/models"},
    ],
)
def test_any_other_request_goes_to_a_worker(headers: dict[str, str]) -> None:
    body = b"" if headers[":method"] != "POST" else b"{}"
    assert isinstance(director(store_of(a=("m",))).direct(headers, body, None, 0.0), Pick)


def test_if_no_model_is_known_or_it_is_off_a_worker_answers() -> None:
    for it in (director(store_of(a=())), director(store_of(a=("m",)), models_endpoint=False)):
        picked(it.direct(GET, b"", None, 0.0))


def test_an_empty_pool_has_no_answer() -> None:
    with pytest.raises(Rejection, match="no endpoint is ready"):
        director(Datastore()).direct(GET, b"", None, 0.0)


def test_a_request_goes_where_its_model_is_listed() -> None:
    it = director(store_of(a=("m", "x"), b=("m", "y"), c=("m",)))
    for model, where in (("x", "10.0.0.1:8000"), ("y", "10.0.0.2:8000")):
        for number in range(5):
            body = json.dumps({"model": model, "prompt": f"{number}"}).encode()
            pick = picked(it.direct({":method": "POST", ":path": "/v1/completions"}, body, None, 0.0))
            assert pick.endpoints[0].destination == where


def test_a_model_that_nobody_declares_is_not_found_though_nobody_lists_it() -> None:
    store = Datastore()
    add_worker(store, document={"model": {"name": "m"}}, is_seen=False)
    body = json.dumps({"model": "other", "prompt": "p"}).encode()
    with pytest.raises(Rejection, match="does not exist here"):
        director(store).direct({":method": "POST", ":path": "/v1/completions"}, body, None, 0.0)


def test_the_data_plane_s_word_reaches_the_endpoint_that_answers() -> None:
    store = store_of(a=("m",), b=("m",))
    it = director(store)
    body = json.dumps({"model": "m", "prompt": "p"}).encode()
    pick = picked(it.direct({":method": "POST", ":path": "/v1/completions"}, body, None, 0.0))
    judged: list[str] = []
    for endpoint in store.endpoints:
        store.on_suspect[endpoint.key] = lambda name=endpoint.id: judged.append(name)  # type: ignore[misc]
    it.picks.responded(pick, 503, 0.0, Failure.CONNECT)
    assert judged == [pick.endpoints[0].id]
    it.picks.release(pick, 0.0)
    it.picks.responded(pick, 503, 0.0, Failure.CONNECT)
    assert judged == [pick.endpoints[0].id]

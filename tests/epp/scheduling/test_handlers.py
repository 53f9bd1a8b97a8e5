"""Profile handlers of the Go picker: by a header, and for a sidecar that knows the ranks."""

from typing import Any

import pytest

from epp.endpoints.datastore import Datastore
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from tests.epp.scheduling.endpoint_pools import add_worker, config_of, director_of

NOW = 100.0
PROFILES = ("decode", "prefill")


def make_director(handler: str, store: Datastore, profiles: tuple[str, ...], **parameters: Any) -> Director:
    plugins: list[Any] = [{"type": handler, "parameters": parameters}]
    plugins += [{"type": f"{name}-filter"} for name in PROFILES]
    listed = [
        {"name": name, "plugins": [{"pluginRef": f"{name}-filter"}] if name in PROFILES else []}
        for name in profiles
    ]
    return director_of(config_of(*plugins, schedulingProfiles=listed), store)


def make_store(*roles: str) -> Datastore:
    store = Datastore()
    for role in roles:
        add_worker(store, role=role, port=8200)
    return store


def direct(director: Director, **headers: str) -> Pick:
    sent = {":path": "/v1/completions"} | {name.replace("_", "-"): text for name, text in headers.items()}
    pick = director.direct(sent, b'{"model": "m", "prompt": "x"}', None, NOW)
    assert isinstance(pick, Pick)
    return pick


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, "decode"), ({"epp_profile": " prefill "}, "prefill"), ({"epp_profile": ""}, "decode")],
)
def test_a_header_names_the_profile(headers: dict[str, str], expected: str) -> None:
    director = make_director("header-profile-handler", make_store("decode", "prefill"), PROFILES)
    pick = direct(director, **headers)
    assert (pick.primary, pick.endpoints[0].labels["llm-d.ai/role"]) == (expected, expected)


def test_its_header_and_its_default_are_parameters() -> None:
    store = make_store("decode", "prefill")
    director = make_director(
        "header-profile-handler", store, PROFILES, headerName=" X-Stage ", defaultProfile="prefill"
    )
    assert direct(director).primary == "prefill"
    assert direct(director, x_stage="decode", epp_profile="prefill").primary == "decode"


def test_an_only_profile_needs_no_header() -> None:
    director = make_director("header-profile-handler", make_store(""), ("only",))
    assert direct(director, epp_profile="other").primary == "only"


def test_a_name_that_is_no_profile_is_the_client_s_mistake() -> None:
    store = make_store("decode", "prefill")
    director = make_director("header-profile-handler", store, PROFILES, defaultProfile="nobody")
    with pytest.raises(
        Rejection, match="the header epp-profile names 'encode'; expected the name of a"
    ) as refused:
        direct(director, epp_profile="encode")
    assert refused.value.status == 400
    with pytest.raises(Rejection, match="there is no header epp-profile; expected"):
        direct(director)


def test_what_a_profile_refuses_is_refused() -> None:
    director = make_director("header-profile-handler", make_store("decode"), PROFILES)
    with pytest.raises(Rejection) as refused:
        direct(director, epp_profile="prefill")
    assert refused.value.status == 503


def test_a_rank_counts_as_in_flight_though_the_request_goes_to_its_sidecar() -> None:
    store = make_store("")
    director = make_director("data-parallel-profile-handler", store, ("default",))
    pick = direct(director)
    assert pick.endpoints[0].destination == "10.0.0.1:8000"
    assert pick.headers == {"x-data-parallel-host-port": "10.0.0.1:8200"}
    director.picks.served(pick, "10.0.0.1:8000")
    assert store.pool(NOW).inflight.tolist() == [1]
    director.picks.release(pick, NOW)
    assert store.pool(NOW).inflight.tolist() == [0]

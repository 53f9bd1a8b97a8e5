"""10^5 requests under flow control; `make test` takes a fifth of them."""

from tests.epp.flow_control.test_against_model import CASES, compare


@CASES
def test_every_decision_is_the_model_s(ordering: str, turns: bool, eviction: bool) -> None:
    compare(ordering, turns=turns, eviction=eviction, requests=20_000)

from collections import Counter

import pytest

from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from epp.scheduling.director import Director
from tests.epp.scheduling.test_director import direct, director, rejection, store_of

CANARY = RewriteRule(
    "canary", "2026-01-05T00:00:00Z", ("gpt",), (RewriteTarget("llama", 3), RewriteTarget("mistral", 1))
)
HEADER = {"x_llm_d_model_name_rewrite": "mistral"}


def rewriting(*rules: RewriteRule, **policy: object) -> Director:
    return director(store_of("llama", "mistral"), rewrites=ModelRewrites(rules), **policy)


def test_the_pick_is_made_for_the_model_that_serves() -> None:
    it, went = rewriting(CANARY), Counter[tuple[str, str]]()
    for _ in range(400):
        pick = direct(it, "gpt")
        assert pick.request.rewritten_from == "gpt"
        went[pick.request.model, pick.endpoints[0].id] += 1
        it.picks.release(pick, 100.0)
    assert went.keys() == {("llama", "w0"), ("mistral", "w1")}
    assert went["mistral", "w1"] / 400 == pytest.approx(0.25, abs=0.1)


def test_the_header_asks_for_a_model_where_no_rule_does() -> None:
    pick = direct(rewriting(CANARY), "llama", **HEADER)
    assert (pick.request.model, pick.request.rewritten_from, pick.endpoints[0].id) == (
        "mistral",
        "llama",
        "w1",
    )


def test_a_target_that_is_the_model_itself_is_no_rewrite() -> None:
    itself = RewriteRule("itself", "2026-01-05T00:00:00Z", (), (RewriteTarget("llama"),))
    pick = direct(rewriting(itself), "llama")
    assert (pick.request.model, pick.request.rewritten_from) == ("llama", None)


@pytest.mark.parametrize("policy", [{}, {"models": frozenset({"llama", "mistral"})}])
def test_a_target_that_nobody_serves_is_refused_in_the_clients_words(policy: dict[str, object]) -> None:
    gone = RewriteRule("gone", "2026-01-05T00:00:00Z", ("gpt",), (RewriteTarget("secret-model"),))
    refused = rejection(rewriting(gone, **policy), "gpt")
    assert (refused.status, refused.code) == (404, "model_not_found")
    assert "'gpt'" in refused.message
    assert "secret" not in refused.message


def test_the_operators_models_are_those_that_serve() -> None:
    it = rewriting(CANARY, models=frozenset({"llama", "mistral"}))
    assert direct(it, "gpt").request.rewritten_from == "gpt"
    assert rejection(it, "other").status == 404


def test_the_body_is_not_read_where_it_may_not_be() -> None:
    pick = direct(rewriting(CANARY, passthrough=True), "gpt", **HEADER)
    assert (pick.request.model, pick.request.rewritten_from) == ("", None)

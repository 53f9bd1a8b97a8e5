import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.request.inference_request import parse_request
from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from epp.request.model_value import replace_model
from tests.epp.json_texts import OBJECTS, Pairs, Writer, joined, rewritten

MONDAY, TUESDAY = "2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z"


def rule(
    *models: str, to: str = "", name: str = "r", created: str = MONDAY, targets: Sequence[RewriteTarget] = ()
) -> RewriteRule:
    return RewriteRule(name, created, models, tuple(targets) or (RewriteTarget(to),))


def target(rewrites: ModelRewrites, model: str, **headers: str) -> str | None:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return rewrites.target(model, sent, random.Random(1))


def test_without_rules_and_header_nothing_is_rewritten() -> None:
    assert target(ModelRewrites(), "gpt-4") is None


def test_a_rule_that_names_the_model_goes_before_an_older_generic_one() -> None:
    generic, exact = rule(to="any"), rule("gpt-4", to="llama", created=TUESDAY)
    for rules in ([generic, exact], [exact, generic]):
        rewrites = ModelRewrites(rules)
        assert target(rewrites, "gpt-4") == "llama"
        assert target(rewrites, "gpt-5") == "any"


@pytest.mark.parametrize("models", [("gpt-4",), ()], ids=["exact", "generic"])
def test_the_oldest_wins_then_the_name_then_the_place(models: tuple[str, ...]) -> None:
    first = rule(*models, to="first", name="b")
    again = rule(*models, to="again", name="b")
    namesake = rule(*models, to="namesake", name="c")
    younger = rule(*models, to="younger", name="a", created=TUESDAY)
    assert target(ModelRewrites([younger, namesake, first, again]), "gpt-4") == "first"
    assert target(ModelRewrites([younger, namesake]), "gpt-4") == "namesake"
    assert target(ModelRewrites([younger]), "gpt-4") == "younger"


def test_each_of_a_rules_models_is_taken() -> None:
    rewrites = ModelRewrites([rule("a", "b", to="c")])
    assert [target(rewrites, model) for model in ("a", "b", "c")] == ["c", "c", None]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((3, 1), (0.75, 0.25)),
        ((0, 0), (0.5, 0.5)),
        ((0, 5), (0.0, 1.0)),
        ((-7, 5), (0.0, 1.0)),
        ((1_000_000, 1_000_000, 0), (0.5, 0.5, 0.0)),
    ],
    ids=["weighted", "no weights", "one weight", "a weight that makes no sense", "the largest"],
)
def test_targets_are_chosen_by_their_weight(weights: tuple[int, ...], shares: tuple[float, ...]) -> None:
    targets = [RewriteTarget(str(number), weight) for number, weight in enumerate(weights)]
    rewrites, rng = ModelRewrites([rule("gpt-4", targets=targets)]), random.Random(3)
    chosen = Counter(rewrites.target("gpt-4", {}, rng) for _ in range(4_000))
    for number, share in enumerate(shares):
        assert chosen[str(number)] / 4_000 == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("header", ["x_llm_d_model_name_rewrite", "x_gateway_model_name_rewrite"])
def test_the_header_names_the_model_unless_a_rule_does(header: str) -> None:
    assert target(ModelRewrites(), "gpt-4", **{header: " llama "}) == "llama"
    assert target(ModelRewrites(), "gpt-4", **{header: "  "}) is None
    assert target(ModelRewrites([rule("gpt-4", to="mistral")]), "gpt-4", **{header: "llama"}) == "mistral"


def test_the_newer_header_goes_before_the_older() -> None:
    both = {"x_llm_d_model_name_rewrite": "new", "x_gateway_model_name_rewrite": "old"}
    assert target(ModelRewrites(), "gpt-4", **both) == "new"


@pytest.mark.parametrize("targets", [(), (RewriteTarget(""),)], ids=["none", "one without a name"])
def test_a_rule_without_targets_keeps_the_model_even_from_a_generic_one(
    targets: tuple[RewriteTarget, ...],
) -> None:
    exempt = RewriteRule("exempt", TUESDAY, ("gpt-4",), targets)
    rewrites = ModelRewrites([exempt, rule(to="any")])
    assert target(rewrites, "gpt-4") is None
    assert target(rewrites, "gpt-5") == "any"


def test_new_rules_take_the_place_of_the_old() -> None:
    rewrites = ModelRewrites([rule("a", to="b"), rule(to="any")])
    rewrites.replace([rule("c", to="d")])
    assert [target(rewrites, model) for model in ("a", "c")] == [None, "d"]


def test_each_choice_of_a_rule_is_told_of() -> None:
    rewrites, told = ModelRewrites([rule("a", to="b", name="canary")]), list[tuple[str, str, str]]()
    rewrites.on_decision = lambda *decision: told.append(decision)
    target(rewrites, "a")
    target(rewrites, "x", x_llm_d_model_name_rewrite="y")
    assert told == [("canary", "a", "b")]


def test_prefix_caches_know_the_prompt_under_the_model_that_serves() -> None:
    def key(model: str, served: str | None = None) -> bytes:
        body = json.dumps({"model": model, "prompt": "hi"}).encode()
        request = parse_request({":path": "/v1/completions"}, body, lambda: "id")
        if served is not None:
            request.rewrite(served)
        assert request.prompt is not None
        return request.prompt.extra_key()

    assert key("gpt", "llama") == key("llama") != key("gpt")


JSON = {"content-type": "application/json"}


def replaced(body: bytes, model: str = "llama", **headers: str) -> bytes:
    sent = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    return b"".join(replace_model(sent, body, model))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a","prompt":"a"}', b'{"model":"llama","prompt":"a"}'),
        (b'\n{ "model"\t:  "a" ,"n":1.0e3}\r\n', b'\n{ "model"\t:  "llama" ,"n":1.0e3}\r\n'),
        (b'{"model":"a","x":{"model":"b"}}', b'{"model":"llama","x":{"model":"b"}}'),
        (b'{"x":[{"model":"b"}],"model":"a"}', b'{"x":[{"model":"b"}],"model":"llama"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"llama"}'),
        (b'{"model":"a","mod\\u0065l":"b"}', b'{"model":"a","mod\\u0065l":"llama"}'),
        (
            b'{"prompt":"\\"model\\": \\"a\\"","model":"a"}',
            b'{"prompt":"\\"model\\": \\"a\\"","model":"llama"}',
        ),
        (b'{"model":"\\ud83d\\ude00 \\"a\\""}', b'{"model":"llama"}'),
        (b'{"model":"a","prompt":"\\ud800"}', b'{"model":"llama","prompt":"\\ud800"}'),
        (b'{"prompt":"a"}', b'{"prompt":"a"}'),
    ],
)
def test_only_the_bytes_of_the_models_value_change(body: bytes, expected: bytes) -> None:
    assert replaced(body) == expected


def test_a_name_that_needs_escapes_is_json() -> None:
    name = 'a"\\\n é\u2028😀'
    assert json.loads(replaced(b'{"model":"a"}', name))["model"] == name


@given(OBJECTS, st.text(max_size=10).filter(str.isprintable), st.randoms(use_true_random=False))
def test_whatever_else_the_body_says_stays(body: Pairs, name: str, rng: random.Random) -> None:
    parts = Writer(rng).parts(Pairs([*body, ("model", "a"), *(pair for pair in body if pair[0] != "model")]))
    assert replaced(joined(parts), name) == rewritten(parts, json.dumps(name, ensure_ascii=False).encode())


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read(buffer: Any) -> None:
    body = buffer(b'{"prompt":"hi","model":"a"}')
    assert b"".join(replace_model(JSON, body, "b")) == b'{"prompt":"hi","model":"b"}'


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nmodel\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n whisper \r\n--x--\r\n'
)


def test_a_form_gets_the_model_too() -> None:
    kind = "multipart/form-data; boundary=x"
    request = parse_request({"content-type": kind, ":path": "/v1/audio/transcriptions"}, FORM, lambda: "id")
    assert request.model == "whisper"
    assert replaced(FORM, "llama", content_type=kind) == FORM.replace(b"whisper", b"llama")

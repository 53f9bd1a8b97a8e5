import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.request.inference_request import parse_request
from epp.request.model_value import replace_model
from tests.epp.json_texts import OBJECTS, Pairs, Writer, joined, rewritten

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

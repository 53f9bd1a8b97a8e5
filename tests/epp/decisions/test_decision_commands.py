"""`adsum epp decisions` and `adsum epp explain`: they ask a real picker behind a real Envoy."""

import asyncio
import io
import json
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import web

from epp.__main__ import main
from epp.decision_commands.commands import decisions
from epp.decision_commands.decision_text import details, line, told_by
from epp.decision_commands.flags import decisions_parser
from epp.decision_commands.request_file import explained_request
from tests.epp.decisions.test_decisions import BY_QUEUE, FILTERED, Picker, store_of
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.epp.epp_program import epp_program
from tests.http_server import http_server
from tests.in_process import run_here

PATH = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


async def answer(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(float(request.headers.get("seconds", "0")))
    return web.json_response({}, status=int(request.headers.get("fail", "200")))


@asynccontextmanager
async def stage(running_envoy: Any) -> AsyncIterator[tuple[Any, str]]:
    """The Envoy, and the URL of its picker's metrics port; two workers."""
    async with AsyncExitStack() as stack:
        ports = [await started_worker(stack, PATH, answer) for _ in range(2)]
        envoy, addresses = await stack.enter_async_context(_behind(running_envoy, ports))
        yield envoy, f"http://{addresses['metrics']}"


def _behind(running_envoy: Any, ports: list[int]) -> Any:
    """With a list of the endpoints, Envoy says which of them served."""
    listed = [f"--endpoint=127.0.0.1:{port}" for port in ports]
    return picker_behind_envoy(running_envoy, ports, "--mode=override-host", *listed)


async def send(envoy: Any, request_id: str, **headers: str) -> None:
    headers = {"x-request-id": request_id, **headers}
    async with (
        aiohttp.ClientSession() as client,
        client.post(envoy.url(PATH), json=BODY, headers=headers) as one,
    ):
        await one.read()


async def run(*arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error."""
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin))):
        ended = await asyncio.to_thread(run_here, main, *arguments)
    return ended.returncode, ended.stdout, ended.stderr


async def test_decisions_and_what_became_of_them_in_the_terminal(running_envoy: Any) -> None:
    async with stage(running_envoy) as (envoy, url):
        await send(envoy, "r-quick")
        await send(envoy, "r-failed", fail="500")
        code, out, _ = await run("decisions", "--picker", url, "--json")
        others = max(json.loads(one)["outcome"]["time_to_headers"] for one in out.splitlines())
        await send(envoy, "r-slow", seconds=str(others + 0.3))
        code, out, err = await run("decisions", "--picker", url)
        assert (code, err) == (0, "")
        quick, failed, slow = out.splitlines()
        assert " #1 r-quick m -> 127-0-0-1-" in quick
        assert "200 in" in quick
        assert "500 in" in failed
        code, out, _ = await run("decisions", "--picker", url, "--slow", f"{others + 0.2:.3f}s", "--json")
        assert [json.loads(one)["request"]["id"] for one in out.splitlines()] == ["r-slow"]
        [only] = [json.loads(one) for one in out.splitlines()]
        assert only["outcome"]["served_by"] == only["choice"]["destination"], "as Envoy says"
        assert (only["outcome"]["state"], only["outcome"]["status"]) == ("done", 200)
        code, out, _ = await run("decisions", "--picker", url, "--request", "r-slow")
        assert code == 0
        assert "request r-slow" in out
        assert "least-cost-scorer x 1" in out
        assert "chosen" in out
        for command in ("decisions", "explain"):
            assert await run(command, "r-slow", "--picker", url) == (0, out, "")
        said = await run("decisions", "--picker", url, "--slow", "1h")
        assert said == (0, "", "no decision of the last 3 took 3600 s\n")
        code, out, err = await run("decisions", "--picker", url, "--request", "r-unknown")
        assert (code, out) == (1, "")
        assert err.startswith("error: no decision about the request 'r-unknown' is kept")
        assert slow


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ({"by": "ext_proc"}, "its ext_proc stream tells, which lasts until the answer begins or ends"),
        ({"by": "access_log", "delay_seconds": None, "without": []}, "Envoy's access log tells"),
        (
            {"by": "access_log", "delay_seconds": 0.05, "without": ["eviction"]},
            "Envoy's access log tells, 0.05 s late; without answers this does not work: eviction",
        ),
    ],
)
def test_explain_says_how_the_picker_will_hear_of_it(outcomes: Mapping[str, Any], text: str) -> None:
    assert told_by(outcomes) == f"  what becomes of it: {text}"


async def test_follow_shows_each_request_once_it_is_answered(running_envoy: Any) -> None:
    async with (
        stage(running_envoy) as (envoy, url),
        epp_program("decisions", "--picker", url, "--follow") as running,
    ):
        assert running.stdout is not None
        await send(envoy, "r-before")
        first = await asyncio.wait_for(running.stdout.readline(), 90)
        assert b"r-before" in first
        await asyncio.gather(send(envoy, "r-slow", seconds="0.3"), send(envoy, "r-quick"))
        more = [await asyncio.wait_for(running.stdout.readline(), 90) for _ in range(2)]
        assert sum(b"r-slow" in one for one in more) == sum(b"r-quick" in one for one in more) == 1
        assert all(b"200 in" in one for one in more)
        running.terminate()
        await running.wait()


async def test_explain_from_a_file_a_whole_request_and_standard_input(
    running_envoy: Any, tmp_path: Path
) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(BODY))
    raw = tmp_path / "request.http"
    raw.write_text(f"POST {PATH}?key=1 HTTP/1.1\r\nX-Request-Id: from-file\r\n\r\n{json.dumps(BODY)}")
    async with stage(running_envoy) as (_, url):
        code, out, err = await run(
            "explain", "--picker", url, "--request", str(body), "-H", "x-request-id: mine"
        )
        assert (code, err) == (0, "")
        assert "request mine" in out
        assert "would be sent" in out
        assert out.endswith("  what becomes of it: not known before the first request\n")
        code, out, _ = await run("explain", "--picker", url, "--request", str(raw), "--json")
        assert (code, json.loads(out)["request"]["id"]) == (0, "from-file")
        code, out, _ = await run(
            "explain", "--picker", url, "--request", "-", "--json", stdin=b'{"model": 5}'
        )
        assert (code, json.loads(out)["refusal"]["status"]) == (0, 400)
        assert await run("decisions", "--picker", url) == (0, "", "no decision yet\n"), "nothing was sent"
        assert await run("decisions", "--picker", url, "--json") == (0, "", "")


MISTAKES = """\
decisions --picker http://127.0.0.1:1 | 1 | http://127.0.0.1:1: cannot be reached: Connection refused; expected the metrics port
decisions --picker 127.0.0.1:9090 | 2 | is not the URL of a picker; expected http://host:port
decisions --picker http://127.0.0.1:9090/debug | 2 | 'http://127.0.0.1:9090/debug' is not the URL of a picker; expected http://host:port
decisions --picker http://127.0.0.1:99999 | 2 | 'http://127.0.0.1:99999' is not the URL of a picker; expected http://host:port
decisions --picker 'http://[::1' | 2 | 'http://[::1' is not the URL of a picker; expected http://host:port
decisions --picker http://me:p@ss@127.0.0.1:9090 | 2 | 'http://127.0.0.1:9090' is not the URL of a picker; expected http://host:port
decisions --slow 500 | 2 | '500' is not a duration
decisions --limit 0 | 2 | '0' is not a whole number from 1 to 1000
explain | 2 | a request is missing; expected --request FILE, or the ID of a past one
explain r-1 --request - | 2 | the ID of a past request, or a request by --request
explain r-1 --path /v1/completions | 2 | the ID of a past request, or a request by --request
decisions r-1 --request r-2 | 2 | two requests are named: 'r-1' and 'r-2'
decisions r-1 --follow | 2 | --follow and a request's ID exclude each other
explain --request /nowhere | 2 | /nowhere cannot be read: No such file or directory
explain --request - -H x | 2 | 'x' is not 'NAME: VALUE'
decisions --ca-file /nowhere --picker https://127.0.0.1:1 | 2 | --ca-file /nowhere cannot be used
decisoins | 2 | there is no command 'decisoins'; there are envoy-config, validate, decisions and explain
"""


@pytest.mark.parametrize("row", MISTAKES.splitlines())
async def test_mistakes_are_one_line(row: str) -> None:
    given, code, problem = row.split(" | ")
    ended, out, err = await run(*shlex.split(given))
    assert (ended, out) == (int(code), "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")


def read(file: Path, text: bytes, **headers: str) -> Mapping[str, Any]:
    file.write_bytes(text)
    document: Mapping[str, Any] = json.loads(explained_request(file, None, headers))
    return document


def test_a_file_is_a_body_or_a_request(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert read(file, b'{"prompt": "a"}')["path"] == "/v1/completions"
    assert read(file, b'{"input": "a"}')["path"] == "/v1/embeddings"
    assert read(file, b"no JSON") == {"path": PATH, "headers": {}, "body": "no JSON"}
    text = b"POST /v1/completions HTTP/1.1\nA:  b\nHost: x\n\n{}\n\n{}"
    assert read(file, text, a="c") == {
        "method": "POST",
        "path": "/v1/completions",
        "headers": {"a": "c", "host": "x"},
        "body": "{}\n\n{}",
    }
    with pytest.raises(ValueError, match="file: 'nonsense' is no header; expected name: value"):
        read(file, b"GET / HTTP/1.1\nnonsense\n\n")
    with pytest.raises(ValueError, match="neither JSON nor text"):
        read(file, b"\xff")


def test_a_tie_is_told_with_how_it_was_broken() -> None:
    picker = Picker(store_of(3), BY_QUEUE)
    for said in (
        "3 endpoints were equally good, all with as many requests in flight; chance chose",
        "3 endpoints were equally good, 2 of them with the fewest requests in flight; chance chose",
        "3 endpoints were equally good; of these the choice had the fewest requests in flight",
    ):
        picker.ask()
        assert list(details(picker.last))[-1] == f"    tie: {said}"


def test_a_request_that_was_not_read_is_shown_without_what_nobody_knows() -> None:
    picker = Picker(store_of(3))
    picker.ask(prompt="", model="")
    picker.ask(model="m", x_request_id="r1")
    unread, read_one = picker.decisions()
    assert unread["endpoints"] is None, "nobody looked"
    assert line(unread).endswith("-> nowhere: refused, 400 invalid_request_error")
    first, second, why = details(unread)
    assert first == "/v1/completions"
    assert second.endswith("-> nowhere: refused, 400 invalid_request_error")
    assert why == "  the request body has no 'model': a string that names the model is required"
    assert next(details(read_one)) == "/v1/completions, request r1"


def test_every_filter_that_ran_tells_its_verdict() -> None:
    store = store_of(3, w0={"labels": {"colour": "blue"}}, w1={"labels": {"colour": "blue"}})
    picker = Picker(store, FILTERED)
    picker.ask()
    assert "    blue-only kept 2 of 3" in details(picker.last)
    assert "    left out by blue-only: w2" in details(picker.last)
    store = store_of(2, w0={"labels": {"colour": "blue"}}, w1={"labels": {"colour": "blue"}})
    picker = Picker(store, FILTERED)
    picker.ask()
    assert "    blue-only kept 2 of 2" in details(picker.last)


def test_a_terminal_gets_no_control_characters() -> None:
    picker = Picker(store_of(1))
    evil = "\x1b]0;owned\x07\n\u202e"
    picker.ask(model=f"m{evil}", x_request_id=f"id{evil}", x_llm_d_inference_fairness_id=evil)
    [decision] = picker.decisions()
    for text in (line(decision), *details(decision)):
        assert text.isprintable(), text


async def test_json_for_a_terminal_has_no_control_characters_either(
    capsys: pytest.CaptureFixture[str],
) -> None:
    picker = Picker(store_of(1))
    picker.ask(x_request_id="id\x9b31m\u202e")
    [decision] = picker.decisions()
    page = {"capacity": 1, "last": 1, "decisions": [decision]}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(page)

    async with http_server({"/debug/decisions": answer}) as port:
        url = f"http://127.0.0.1:{port}"
        assert await decisions(decisions_parser().parse_args(["--picker", url, "--json"])) == 0
    out = capsys.readouterr().out
    assert out.strip().isprintable()
    assert json.loads(out) == decision


@pytest.mark.parametrize(("waited", "said"), [(None, ""), (0.0004, ""), (0.25, ", waited 250 ms")])
def test_a_wait_is_told_if_it_could_be_measured(waited: float | None, said: str) -> None:
    picker = Picker(store_of(1))
    picker.ask()
    assert line(picker.last | {"waited": waited}).partition(": sent")[2].partition(", after")[0] == said


async def test_a_picker_elsewhere_wants_a_token(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.Response:
        right = request.headers.get("Authorization") == "Bearer 0123456789abcdef"
        return (
            web.json_response({"capacity": 1, "last": 0, "decisions": []})
            if right
            else web.Response(status=401)
        )

    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    async with http_server({"/debug/decisions": refuse}) as port:
        url = f"http://127.0.0.1:{port}"
        code, _, err = await run("decisions", "--picker", url)
        assert (code, err) == (1, f"error: {url} asks for a token; give it with --token-file\n")
        code, _, err = await run("decisions", "--picker", url, "--token-file", str(token))
        assert (code, err) == (0, "no decision yet\n")
        token.write_text("another-token-0000\n")
        code, _, err = await run("decisions", "--picker", url, "--token-file", str(token))
        assert (code, err) == (
            1,
            f"error: {url} does not accept the token of --token-file; expected the one of its --debug-token-file\n",
        )


async def test_a_refusal_that_says_what_to_do_is_all_that_is_said() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=403, text="Shown to this machine only.\nForward the port.\n")

    async with http_server({"/debug/decisions": refuse}) as port:
        url = f"http://127.0.0.1:{port}"
        said = await run("decisions", "--picker", url)
    assert said == (1, "", f"error: {url} refuses: Shown to this machine only. Forward the port\n")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"decisions": [{}], "last": 0, "capacity": 1},
        {"decisions": 5, "last": "x", "capacity": 1},
        {"decisions": [{"time": 5, "request": [], "profiles": None}], "last": 1, "capacity": 1},
    ],
)
@pytest.mark.parametrize("what", ["decisions", "explain"])
async def test_the_json_of_something_else_is_one_line(document: Any, what: str, tmp_path: Path) -> None:
    async def other(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(document)

    (tmp_path / "request.json").write_text(json.dumps(BODY))
    request = ["--request", str(tmp_path / "request.json")] if what == "explain" else []
    async with http_server({"/debug/{what}": other}) as port:
        url = f"http://127.0.0.1:{port}"
        code, out, said = await run(what, *request, "--picker", url)
    assert (code, out) == (1, "")
    expected = "expected the metrics port of a picker that runs; name it with --picker"
    assert said == f"error: {url} answered with other JSON than a picker of this version; {expected}\n"


def test_a_decision_in_short_says_that_its_scores_were_not_kept() -> None:
    picker = Picker(store_of(3), whole_a_second=1)
    picker.ask()
    picker.ask()
    whole, short = ["\n".join(details(one)) for one in picker.decisions()]
    assert "kept without its candidates" not in whole
    assert "kept without its candidates and their scores" in short
    assert "x-adsum-record-decision" in short

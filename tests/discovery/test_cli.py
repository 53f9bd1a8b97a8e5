"""`python -m discovery` as a process: text output and JSON, and the verdicts of `check URL`."""

import asyncio
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

import discovery
import registry
from discovery.__main__ import main
from discovery.check import Verdict, check_contract
from tests.fake_worker import FakeWorker
from tests.in_process import run_here
from tests.owner_process import owner
from tests.raw_server import answers, raw_server
from tests.started import next_line, started
from tests.warm_python import WARM_PYTHON

run = partial(run_here, main)
watch = partial(started, WARM_PYTHON, "-m", "discovery", "watch", "prod", "decode", "--discovery")


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [WARM_PYTHON, "-m", "discovery", *arguments]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)


def heard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `run`, and again while a worker of this process was slower than the program waits."""
    while True:
        done = run(*arguments, **environment)
        if "no answer within" not in done.stdout + done.stderr:
            return done


def test_list_shows_a_table_and_json_lines(tmp_path: Path) -> None:
    with owner(tmp_path, "w-0"):
        table = run("list", "prod", "decode", "--discovery", f"file://{tmp_path}")
        lines = run("list", "prod", "decode", "--discovery", f"file://{tmp_path}", "--json")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["ID", "URL", "STATUS"],
        ["w-0", "http://127.0.0.1:80", "ready"],
    ]
    [instance] = [json.loads(line) for line in lines.stdout.splitlines()]
    assert (instance["id"], instance["port"], instance["status"]) == ("w-0", 80, "ready")
    assert table.returncode == lines.returncode == 0


def test_list_without_names_shows_what_is_there(tmp_path: Path) -> None:
    where = ("--discovery", f"file://{tmp_path}", "--timeout=80")
    nothing = run("list", *where)
    assert (nothing.stdout, nothing.returncode) == ("", 0)
    assert nothing.stderr == f"nothing is registered at file://{tmp_path}\n"
    with owner(tmp_path, "w-0"), owner(tmp_path, "w-1"):
        (tmp_path / "prod" / "decode" / "broken.json").write_text("{")
        for number in range(100):
            (tmp_path / "prod" / f"x-{number:03}").mkdir()
            (tmp_path / "prod" / f"x-{number:03}" / "a.json").write_text("{")
        (tmp_path / "prod" / "No\nName").mkdir()
        (tmp_path / "prod" / "No\nName" / "a.json").write_text("{")
        table, lines = run("list", *where), run("list", "--json", *where)
    rows = [line.split() for line in table.stdout.splitlines()]
    assert rows[:2] == [["NAMESPACE", "COMPONENT", "READY", "NOT", "READY"], ["prod", "decode", "2", "1"]]
    assert len(rows) == 101
    assert table.stderr == "and 1 more components; expected at most 100 at a time\n"
    first = {"namespace": "prod", "component": "decode", "ready": 2, "not_ready": 1}
    assert json.loads(lines.stdout.splitlines()[0]) == first


def test_a_list_has_its_workers_under_every_name() -> None:
    table = run("list", "--discovery", "static://127.0.0.1:1,127.0.0.1:2")
    assert table.stdout.splitlines()[1].split() == ["*", "*", "2", "0"]


def test_metadata_without_names_are_refused() -> None:
    done = run("list", "--metadata", "--discovery", "memory://x")
    assert (done.returncode, "--metadata is of one component" in done.stderr) == (2, True)


async def test_watch_prints_changes_until_it_is_ended(tmp_path: Path) -> None:
    async with watch(f"file://{tmp_path}", "--json", stderr=subprocess.PIPE) as watching:
        with owner(tmp_path, "w-0"):
            assert json.loads(await next_line(watching))["event"] == "added"
        removed = json.loads(await next_line(watching))
        assert [removed["event"], removed["reason"], removed["instance"]["id"]] == [
            "removed",
            "deleted",
            "w-0",
        ]
        watching.terminate()
        assert await watching.communicate() == (b"", b"")
        assert watching.returncode == 0


def test_explain_says_why_and_exits_with_one_when_something_is_wrong(tmp_path: Path) -> None:
    nobody = run("explain", "prod", "decode", "--discovery", f"file://{tmp_path}")
    assert (nobody.stdout, nobody.returncode) == ("nothing is registered as prod/decode\n", 1)
    script = run("explain", "prod", "decode", "--discovery", f"file://{tmp_path}", "--json")
    remark = {"id": None, "is_instance": False, "reason": "nothing is registered as prod/decode"}
    assert (json.loads(script.stdout), script.returncode) == (remark, 1)
    with owner(tmp_path, "w-0"):
        deaf = run("explain", "prod", "decode", "--discovery", f"file://{tmp_path}")
    assert deaf.stdout.startswith("w-0 is an instance: its metadata is unavailable: ")
    refused = "GET http://127.0.0.1:80/metadata: cannot be reached: Connection refused; nothing listens on port 80: "
    assert refused in deaf.stdout
    assert "registry.open(..., port=...)" in deaf.stdout
    assert deaf.returncode == 1


async def test_the_token_in_the_environment_is_sent_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADSUM_TOKEN", "s3cret")
    url = f"file://{tmp_path}"
    async with registry.open(url, token="s3cret").register_instance("prod", "decode") as handle:
        handle.set_ready("ready")
        explained = await asyncio.to_thread(heard, "explain", "prod", "decode", "--discovery", url)
        assert explained.stdout == f"{handle.instance_id()} is an instance\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_a_watch_with_metadata_prints_documents_and_reachability(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}"
    async with registry.open(url, token="s3cret").register_instance("prod", "decode") as handle:
        handle.set_metadata({"transport": {"http": {"port": 8000}}})
        handle.set_ready("ready")
        environment = os.environ | {"ADSUM_TOKEN": "s3cret", "ADSUM_SILENT_AFTER": "60"}
        async with watch(url, "--metadata", *flags, env=environment) as watching:
            added = await next_line(watching)
            handle.set_metadata({"model": {"name": "m" * 500}})
            updated = await next_line(watching)
            handle.set_ready("not_ready")
            while "removed" not in (last := await next_line(watching)):
                pass  # its own word that it is not ready may come first
        name = f"{handle.instance_id()} http://127.0.0.1:8000"
        moved = f"{handle.instance_id()} {handle.instance.url}"
    if not flags:
        assert added == f'added   {name} ready {{"transport": {{"http": {{"port": 8000}}}}}}\n'
        assert updated.startswith(f'updated {moved} ready {{"model": {{"name": "mmm')
        assert updated.endswith("mmm... (--json has all of it)\n")
        assert last.startswith(f"removed {moved} ready (not_ready)")
        return
    first, second, third = (json.loads(line) for line in (added, updated, last))
    shown = first["instance"]
    assert shown["metadata"] == {"transport": {"http": {"port": 8000}}}
    assert {name: shown[name] for name in ("ports", "reachable", "incarnation")} == {
        "ports": {},
        "reachable": True,
        "incarnation": handle.instance.incarnation,
    }
    assert (shown["serving_port"], shown["url"]) == (8000, "http://127.0.0.1:8000")
    fields = {field.name for field in dataclasses.fields(discovery.Instance)} - {"reader"}
    assert fields <= shown.keys()
    assert second["instance"]["metadata"] == {"model": {"name": "m" * 500}}
    assert second["instance"]["revision"] != shown["revision"]
    assert (third["reason"], third["instance"]["metadata"]) == ("not_ready", None)


async def test_list_and_watch_show_where_requests_go(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with registry.open(url, token="s3cret").register_instance("prod", "decode") as handle:
        handle.set_metadata({"transport": {"http": {"port": 8000}}})
        handle.set_ready("ready")

        async def said(*flags: str, token: str = "s3cret") -> subprocess.CompletedProcess[str]:
            arguments = ("list", "prod", "decode", "--discovery", url, *flags)
            return await asyncio.to_thread(heard, *arguments, ADSUM_TOKEN=token)

        table, lines = await said("--metadata"), await said("--metadata", "--json")
        denied = await said(token="")
        async with watch(url, env=os.environ | {"ADSUM_TOKEN": "s3cret"}) as watching:
            added = await next_line(watching)
    name, document = handle.instance_id(), {"transport": {"http": {"port": 8000}}}
    assert table.stdout.splitlines()[1].split(None, 3) == [
        *(name, "http://127.0.0.1:8000", "ready"),
        json.dumps(document),
    ]
    listed = json.loads(lines.stdout)
    assert (listed["url"], listed["metadata"]) == ("http://127.0.0.1:8000", document)
    assert added == f"added   {name} http://127.0.0.1:8000 ready\n"
    assert denied.stdout.splitlines()[1].split() == [name, handle.instance.url, "ready"]
    assert denied.stderr.startswith(
        f"{name}: the URL is the registered one, because its metadata is unavailable (HTTP 401"
    )
    assert denied.stderr.count("\n") == 1


MISTAKES = """\
list Prod decode | 2 | namespace 'Prod' is not a DNS-1123 label
list prod | 2 | a component is missing behind 'prod'; expected both names, or none
list prod decode --discovery consul://x | 2 | 'consul://x' is not a discovery URL; expected one of
list prod decode --discovery http://127.0.0.1:8000 | 2 | 'http://127.0.0.1:8000' is not a discovery URL; for servers at fixed addresses: static://host:port
list prod decode --discovery file://tmp/x | 2 | a path needs three slashes
list prod decode --discovery file:///nowhere/at/all | 1 | does not exist
explain prod decode --discovery static:///nowhere.yaml | 2 | /nowhere.yaml cannot be read: No such file or directory; expected a file that this user can read
watch prod decode --discovery static:///proc | 2 | /proc cannot be read: Is a directory
list prod decode --discovery static:///dev/null | 2 | expected a mapping
list prod decode --discovery 'kubernetes://?kubeconfig=/nowhere' | 2 | no kubeconfig at /nowhere
check nonsense | 2 | is not a worker's URL
list prod decode --jsn | 2 | unrecognized arguments: --jsn; see python -m discovery list --help
--discovery file:///x list prod decode | 2 | --discovery stands before the command; expected the command first, its options behind it
--nonsense | 2 | --nonsense stands before the command
"""


@pytest.mark.parametrize("row", MISTAKES.splitlines())
def test_a_users_mistake_is_one_line(row: str) -> None:
    arguments, code, message = row.split(" | ")
    done = run(*shlex.split(arguments))
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.returncode == int(code)


def test_a_users_mistake_ends_the_process_with_2() -> None:
    done = run_program("list", "Prod", "decode")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: namespace 'Prod' is not a DNS-1123 label")


def test_invalid_yaml_is_reported_in_one_line_without_its_content(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("endpoints: [{name: s3cret\n")
    for url in (f"static://{broken}", f"kubernetes://?kubeconfig={broken}"):
        done = run("list", "prod", "decode", "--discovery", url, "--timeout", "60")
        assert done.stderr.startswith("error: ")
        assert f"{broken} " in done.stderr
        assert " in line 2, column 1" in done.stderr
        assert "s3cret" not in done.stderr
        assert (done.stderr.count("\n"), done.returncode) == (1, 2)


@pytest.mark.parametrize("flags", [("--discovery", "file://"), ("--discovery", "file:///")])
def test_an_empty_list_names_the_directory(flags: tuple[str, ...], tmp_path: Path) -> None:
    done = run("list", "prod", "decode", *flags, ADSUM_ROOT=str(tmp_path))
    where = f"file://{tmp_path}"
    nobody = "nothing is registered as prod/decode"
    assert done.stderr == f"no ready instance of prod/decode at {where}: {nobody}\n"


def test_an_empty_list_names_other_components(tmp_path: Path) -> None:
    with owner(tmp_path, "w-0"):
        done = run("list", "prod", "decoder", "--discovery", f"file://{tmp_path}")
    assert done.stderr.endswith(": nothing is registered as prod/decoder; there is prod/decode\n")
    assert done.returncode == 0


async def test_an_empty_list_counts_candidates_that_are_not_ready(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with registry.open(url).register_instance("prod", "decode") as handle:
        handle.set_ready("not_ready")
        done = await asyncio.to_thread(run, "list", "prod", "decode", "--discovery", url)
    assert done.stderr.endswith(": 1 not ready, python -m discovery explain prod decode says why\n")
    assert done.returncode == 0


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    with owner(tmp_path, "w-0"):
        command = f"{sys.executable} -m discovery list prod decode --discovery file://{tmp_path} | true"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90)
    assert done.stderr == ""


async def verdicts(worker: FakeWorker) -> dict[str, Verdict]:
    url = f"http://127.0.0.1:{worker.port}"
    return {finding.requirement.split()[1]: finding.verdict async for finding in check_contract(url)}


async def test_a_plain_server_is_weak_where_it_is_polled_and_unverified(worker: FakeWorker) -> None:
    found = [finding async for finding in check_contract(f"http://127.0.0.1:{worker.port}")]
    assert found[0].verdict is Verdict.OK
    assert {finding.verdict for finding in found[1:]} == {Verdict.WEAK}


async def test_a_server_without_documents_is_weak(worker: FakeWorker) -> None:
    async def missing(request: web.Request) -> web.Response:
        return web.Response(status=404)

    worker.handler = missing
    assert (await verdicts(worker))["/metadata"] is Verdict.WEAK


async def test_a_key_that_readers_ignore_is_weak(worker: FakeWorker) -> None:
    worker.body = b'{"model": {"name": "m"}, "transport": {"http": {"port": "http", "prot": 1}}}'
    [ignored] = [
        finding
        async for finding in check_contract(f"http://127.0.0.1:{worker.port}")
        if finding.requirement.startswith("its known keys")
    ]
    assert ignored.verdict is Verdict.WEAK
    assert ignored.seen == (
        "transport.http.port is not a port from 1 to 65535; ignored; "
        "transport.http.'prot' is not a known key, did you mean transport.http.port?"
    )


DEEP = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"{" + b" " * 2_000_000 + b"}", DEEP])
async def test_what_discovery_cannot_use_is_broken(worker: FakeWorker, body: bytes) -> None:
    worker.body = body
    assert (await verdicts(worker))["/metadata"] is Verdict.BROKEN


async def test_a_document_that_comes_in_pieces_is_read_whole(worker: FakeWorker) -> None:
    async def pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (b'{"model": ', b'{"name": "', b"m" * 300_000, b'"}}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    worker.handler = pieces
    assert (await verdicts(worker))["/metadata"] is Verdict.OK


async def test_an_entity_tag_that_cannot_be_sent_back_is_weak_and_shown_without_harm() -> None:
    answer = (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nETag: "a\x1b.b.1"\r\n'
        b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    async with raw_server(answers(answer, keep=False)) as port:
        found = [finding async for finding in check_contract(f"http://127.0.0.1:{port}")]
    assert all(finding.seen.isprintable() for finding in found)
    assert [f.verdict for f in found if "ETag" in f.requirement] == [Verdict.WEAK]
    assert Verdict.BROKEN not in {finding.verdict for finding in found}


async def test_a_refused_connection_is_broken() -> None:
    found = [finding async for finding in check_contract("http://127.0.0.1:1")]
    assert found[0].verdict is Verdict.BROKEN
    assert found[0].seen


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", ""])
async def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        _ = [finding async for finding in check_contract(url)]

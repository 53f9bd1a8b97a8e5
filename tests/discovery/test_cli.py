"""`python -m discovery`, as a person and as a script would use it: a real process each."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import registry
from tests.owner_process import owner


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "discovery", *arguments]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=env)


def test_list_shows_a_table_and_json_lines(tmp_path: Path) -> None:
    with owner(tmp_path, "w-0"):
        table = run("list", "prod", "decode", "--discovery", f"file://{tmp_path}")
        lines = run("list", "prod", "decode", "--discovery", f"file://{tmp_path}", "--json")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["ID", "ADDRESS", "STATUS"],
        ["w-0", "127.0.0.1:80", "ready"],
    ]
    [instance] = [json.loads(line) for line in lines.stdout.splitlines()]
    assert (instance["id"], instance["port"], instance["status"]) == ("w-0", 80, "ready")
    assert table.returncode == lines.returncode == 0


def test_watch_tells_who_comes_and_goes_until_it_is_ended(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "discovery",
        "watch",
        "prod",
        "decode",
        "--discovery",
        f"file://{tmp_path}",
    ]
    watching = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    try:
        with owner(tmp_path, "w-0"):
            assert json.loads(watching.stdout.readline())["event"] == "added"
        removed = json.loads(watching.stdout.readline())
        assert (removed["event"], removed["reason"], removed["instance"]["id"]) == (
            "removed",
            "deleted",
            "w-0",
        )
        watching.terminate()
        assert watching.wait(10) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == ""
    finally:
        watching.kill()
        watching.communicate()


def test_explain_says_why_and_exits_with_one_when_something_is_wrong(tmp_path: Path) -> None:
    nobody = run("explain", "prod", "decode", "--discovery", f"file://{tmp_path}")
    assert (nobody.stdout, nobody.returncode) == ("nothing is registered as prod/decode\n", 1)
    with owner(tmp_path, "w-0"):
        deaf = run("explain", "prod", "decode", "--discovery", f"file://{tmp_path}")
    assert deaf.stdout.startswith("w-0 is an instance: its metadata is unavailable: ")
    assert deaf.returncode == 1


async def test_the_token_in_the_environment_is_shown_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADSUM_TOKEN", "s3cret")
    url = f"file://{tmp_path}"
    async with registry.open(url, token="s3cret").register_instance("prod", "decode") as handle:
        handle.set_ready("ready")
        explained = await asyncio.to_thread(run, "explain", "prod", "decode", "--discovery", url)
        assert explained.stdout == f"{handle.instance_id()} is an instance\n"
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "discovery", "watch", "prod", "decode"),
            *("--metadata", "--discovery", url, "--json"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert watching.stdout is not None
            async with asyncio.timeout(10):
                assert json.loads(await watching.stdout.readline())["event"] == "added"
        finally:
            watching.terminate()
            await watching.communicate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "Prod", "decode"), "namespace 'Prod' is not a DNS-1123 label"),
        (
            ("list", "prod", "decode", "--discovery", "etcd://x"),
            "'etcd://x' is not a discovery URL; expected one of",
        ),
        (("list", "prod", "decode", "--discovery", "file://tmp/x"), "a path needs three slashes"),
        (("list", "prod", "decode", "--discovery", "file:///nowhere/at/all"), "does not exist"),
        (("check", "nonsense"), "is not a worker's URL"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode in (1, 2)


@pytest.mark.parametrize("flags", [("--discovery", "file://"), ("--discovery", "file:///")])
def test_where_nobody_is_names_the_directory_that_was_looked_in(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("list", "prod", "decode", *flags, ADSUM_ROOT=str(tmp_path))
    assert done.stderr == f"no ready instance of prod/decode at file://{tmp_path}\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    with owner(tmp_path, "w-0"):
        command = f"{sys.executable} -m discovery list prod decode --discovery file://{tmp_path} | true"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""


def test_importing_the_words_is_quick_and_brings_no_source() -> None:
    started = time.monotonic()
    script = (
        "import discovery, sys; print([m for m in sys.modules if 'filesystem' in m or 'kubernetes' in m])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n"
    assert time.monotonic() - started < 10

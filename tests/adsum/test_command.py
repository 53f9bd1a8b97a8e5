"""The command `adsum`, and how every program of ours refuses: in words, with a code that says who can put it right."""

import asyncio
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adsum import command_line
from adsum.command_line import FAILED, WRONG_INPUT, Parser, argument, print_error
from adsum.errors import os_reason
from adsum.units import parse_duration
from discovery.errors import ForbiddenError
from tests.free_port import free_port
from tests.started import ready, started

ADSUM = Path(sys.executable).with_name("adsum")
ROOT = Path(__file__).parents[2]
PROGRAMS = ("discovery", "registry", "epp", "dispatcher")  # and `serve`: tests/epp/serve

_MODULES = """
import runpy, sys
sys.argv = {argv!r}
try:
    runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""


def run(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, **options)


def modules_after(module: str, *argv: str) -> set[str]:
    code = _MODULES.format(module=module, argv=["x", *argv])
    return set(run(sys.executable, "-c", code).stderr.split())


def test_its_help_tells_each_program_in_a_line() -> None:
    said = run(ADSUM, "--help")
    assert (said.returncode, said.stderr) == (0, "")
    listed = [line.split()[0] for line in said.stdout.splitlines() if line.startswith("  ")]
    assert [name for name in listed if name in PROGRAMS] == list(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_under_both_names(program: str) -> None:
    ours, module = run(ADSUM, program, "--help"), run(sys.executable, "-m", program, "--help")
    assert (ours.returncode, ours.stderr) == (module.returncode, module.stderr) == (0, "")
    assert f"usage: adsum {program} " in ours.stdout
    assert ours.stdout.split() == module.stdout.replace(f"python -m {program}", f"adsum {program}").split()


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_error_names_the_form_that_was_used(program: str) -> None:
    for form in ([str(ADSUM)], [sys.executable, "-m", "adsum"], [sys.executable, "-m"]):
        shown = " ".join((*form, program)).replace(sys.executable, "python").replace(str(ADSUM), "adsum")
        said = run(*form, program, "--nonsense")
        assert said.returncode == 2
        assert said.stderr.startswith("error: ")
        assert said.stderr.endswith(f"; see {shown} --help\n")


@pytest.mark.parametrize(
    ("command", "form"),
    [
        (("discovery", "list", "--no-such"), "adsum discovery list"),
        (("epp", "validate"), "adsum epp validate"),
        (("epp", "envoy-config", "--mode", "x"), "adsum epp envoy-config"),
        (("dispatcher", "status"), "adsum dispatcher status"),
    ],
)
def test_an_error_names_the_command_too(command: tuple[str, ...], form: str) -> None:
    said = run(ADSUM, *command)
    assert said.returncode == 2
    assert said.stderr.endswith(f"; see {form} --help\n")


_EXPECTED = "expected one of discovery, registry, epp, dispatcher, serve"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), f"a program is missing; {_EXPECTED}; see adsum --help"),
        (
            ("discover",),
            f"there is no program 'discover'; {_EXPECTED}; did you mean discovery? see adsum --help",
        ),
        (("watch",), f"there is no program 'watch'; {_EXPECTED}; see adsum --help"),
        (("x" * 100,), f"there is no program '{'x' * 40}...'; {_EXPECTED}; see adsum --help"),
        (("--verison",), "unrecognized arguments: --verison; see adsum --help"),
    ],
)
def test_what_is_no_program_is_wrong_input(arguments: tuple[str, ...], words: str) -> None:
    said = run(ADSUM, *arguments)
    assert (said.returncode, said.stdout, said.stderr) == (2, "", f"error: {words}\n")


def test_it_says_its_version() -> None:
    assert run(ADSUM, "--version").stdout == run(sys.executable, "-m", "epp", "--version").stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_command_loads_nothing_that_the_program_does_not(program: str) -> None:
    more = modules_after("adsum", program, "--help") - modules_after(program, "--help")
    assert {name for name in more if not name.startswith(("adsum", program))} <= {"adsum.quoting"}


def test_its_own_help_loads_no_program() -> None:
    loaded = modules_after("adsum", "--help")
    assert not {*PROGRAMS, "asyncio", "aiohttp", "shtab", "difflib"} & loaded


def test_a_program_that_an_image_goes_without_is_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "adsum").symlink_to(ROOT / "adsum")
    # without what is installed, and without $PYTHONPATH
    said = run(sys.executable, "-E", "-S", "-m", "adsum", "dispatcher", cwd=tmp_path)
    assert said.returncode == 1
    assert said.stderr.startswith("error: dispatcher is not installed; ")


async def test_sigterm_drains_a_program_behind_it() -> None:
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--secure-serving=false")
    worker = ("--endpoint", "127.0.0.1:9", "--host", "127.0.0.1")
    async with started(str(ADSUM), "epp", *worker, *ports) as process:
        await ready(process)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 90) == 0


@pytest.mark.parametrize("name", ["discovery.py", "epp.py", "discovery/__init__.py"])
def test_a_file_with_the_name_of_a_package_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    said = run(sys.executable, "-m", "adsum", "epp", "--help", cwd=tmp_path)
    assert said.returncode == 1
    assert said.stderr.startswith(f"error: {tmp_path / name} has the name of the package ")
    assert said.stderr.endswith("rename it, or start the program in another folder\n")


def test_a_script_with_the_name_of_a_package_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "discovery.py").write_text("import registry")
    said = run(sys.executable, "discovery.py", cwd=tmp_path)
    assert "discovery.py has the name of the package 'discovery' of adsum" in said.stderr
    (tmp_path / "registry.py").write_text("import discovery; print(discovery.open)")
    # the other file is still there
    assert run(sys.executable, "registry.py", cwd=tmp_path).returncode == 1
    (tmp_path / "discovery.py").unlink()
    assert run(sys.executable, "registry.py", cwd=tmp_path).returncode == 0


# what readline does at a TAB: it calls the function that `complete` registered, with the words so far
_TAB = """
source /dev/stdin
registered=$(complete -p adsum)
[[ $registered =~ -F\\ ([^ ]+) ]]
COMP_WORDS=({words})
COMP_CWORD=$(({count} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
${{BASH_REMATCH[1]}} adsum "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script() -> str:
    return _printed("bash")


def _printed(shell: str) -> str:
    said = run(ADSUM, "--print-completion", shell)
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ([""], {"discovery", "registry", "epp", "dispatcher", "serve"}),
        (["ep"], {"epp"}),
        (["--p"], {"--print-completion"}),
        (["--print-completion", ""], {"bash", "zsh", "fish"}),
        (["discovery", ""], {"list", "watch", "explain", "serve", "check", "eds"}),
        (["discovery", "watch", "default", "decode", "--m"], {"--metadata"}),
        (["registry", "--drain"], {"--drain-timeout"}),
        (["epp", "--grpc-"], {"--grpc-port", "--grpc-health-port", "--grpc-max-recv-msg-size"}),
        (["epp", "--transport", ""], {"http2", "grpc"}),
        (["epp", ""], {"envoy-config", "validate", "decisions", "explain"}),
        (["epp", "envoy-config", "--mode", ""], {"original-dst", "override-host"}),
        (["epp", "validate", "ARCHI"], {"ARCHITECTURE.md"}),
        (["epp", "--config-file", "ARCHI"], {"ARCHITECTURE.md"}),
        (["dispatcher", ""], {"submit", "status", "cancel", "dead-letters"}),
        (["dispatcher", "submit", "--res"], {"--results"}),
        (["dispatcher", "status", "--config", "pyproj"], {"pyproject.toml"}),
        (["epp", "--nonsense"], {""}),
    ],
)
def test_a_tab_in_bash(script: str, typed: list[str], offered: set[str]) -> None:
    words = ["adsum", *typed]
    asked = _TAB.format(words=shlex.join(words), count=len(words))
    said = run("bash", "--norc", "-c", asked, input=script, cwd=ROOT)
    assert (said.returncode, said.stderr) == (0, "")
    assert set(said.stdout.removesuffix("\n").split("\n")) == offered


def test_a_script_starts_no_process_of_ours(script: str) -> None:
    """A TAB costs no start of Python."""
    assert "python" not in script.lower()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_all_of_it_too(shell: str) -> None:
    printed = _printed(shell)
    assert {word for word in ("discovery", "dead-letters", "validate") if word in printed}


def test_a_shell_that_is_not_known_is_wrong_input() -> None:
    said = run(ADSUM, "--print-completion", "cmd")
    assert said.returncode == 2
    assert "'cmd'" in said.stderr
    assert "bash" in said.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    assert run("bash", "-c", f"{ADSUM} --print-completion bash | head -1").stderr == ""


_LOADED = "import sys, adsum.command_line; print(*sys.modules)"


def test_it_loads_nothing_that_takes_time() -> None:
    loaded = run(sys.executable, "-c", _LOADED, check=True)
    assert not {"discovery", "aiohttp", "asyncio", "anyio"} & set(loaded.stdout.split())


def test_a_file_that_cannot_be_read_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(OSError, match="No such file") as raised:
        missing.read_text()
    assert print_error(raised.value) == WRONG_INPUT
    said = f"error: {missing} cannot be read: No such file or directory; expected a file that this user can read\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("port 99999 is not one"), WRONG_INPUT, "port 99999 is not one"),
        (ConnectionRefusedError(111, "Connection refused"), FAILED, "Connection refused"),
        (ForbiddenError("list endpointslices is forbidden"), FAILED, "list endpointslices is forbidden"),
        (RuntimeError(), FAILED, "RuntimeError"),
    ],
)
def test_what_failed_is_said_without_numbers(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(error) == code
    assert capsys.readouterr().err == f"error: {words}\n"


def test_an_argument_that_cannot_be_read_is_told_in_its_reader_s_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = Parser(prog="it")
    parser.add_argument("--time", type=argument(parse_duration))
    assert parser.parse_args(["--time", "1m"]).time == 60
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--time", "soon"])
    assert "--time: 'soon' is not a duration; write a number with a unit" in capsys.readouterr().err


PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def test_the_page_lists_the_exit_codes() -> None:
    named = {value for name, value in vars(command_line).items() if name.isupper() and type(value) is int}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == named


async def test_a_refused_connection_has_no_number() -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        await asyncio.open_connection("127.0.0.1", free_port())
    assert os_reason(caught.value) == "Connection refused"


async def test_several_addresses_give_each_reason_once() -> None:
    port = free_port()
    error = OSError(
        f"Multiple exceptions: [Errno 111] Connect call failed ('::1', {port}), [Errno 111] Connect call failed"
    )
    assert os_reason(error) == "Connection refused"


def test_the_cause_counts() -> None:
    error = RuntimeError("it did not work")
    error.__cause__ = FileNotFoundError(2, "No such file or directory")
    assert os_reason(error) == "No such file or directory"
    assert os_reason(RuntimeError("plain")) == "plain"
    assert os_reason(RuntimeError()) == "RuntimeError"

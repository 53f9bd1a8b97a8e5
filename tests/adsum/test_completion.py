"""Completion in a real bash: the script is read as a user's shell reads it, and asked what a TAB would give."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ADSUM = Path(sys.executable).with_name("adsum")
ROOT = Path(__file__).parents[2]

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
    said = subprocess.run([ADSUM, "--print-completion", shell], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ([""], {"discovery", "registry", "epp", "dispatcher"}),
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
    said = subprocess.run(
        ["bash", "--norc", "-c", asked], input=script, capture_output=True, text=True, cwd=ROOT
    )
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
    said = subprocess.run([ADSUM, "--print-completion", "cmd"], capture_output=True, text=True)
    assert said.returncode == 2
    assert "'cmd'" in said.stderr
    assert "bash" in said.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    said = subprocess.run(
        ["bash", "-c", f"{ADSUM} --print-completion bash | head -1"], capture_output=True, text=True
    )
    assert said.stderr == ""

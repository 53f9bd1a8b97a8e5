"""The Dockerfile, read as a builder reads it: no builder is here."""

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its words, without comments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return [(word.upper(), rest.strip()) for word, rest in pairs]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, those of the stages that it is built from included."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = re.split(r"\s+", rest)
            current = found[name] = list(found.get(base, []))
        else:
            current.append((word, rest))
    return found


def copied() -> set[str]:
    """What the builder takes from the checkout."""
    sources = (rest.split()[:-1] for word, rest in instructions() if word == "COPY")
    return {source for several in sources for source in several if not source.startswith(("--", "/"))}


def test_it_has_all_four_programs_and_their_extras() -> None:
    assert set(PACKAGES) <= copied()
    (installed,) = [
        rest for word, rest in stages()["build"] if word == "RUN" and "install --no-cache" in rest
    ]
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", installed)
    assert set(extras.split(",")) == PROJECT["project"]["optional-dependencies"].keys() - {"demo", "serve"}
    assert "HATCH_BUILD_HOOK_ENABLE_MYPYC=1" in installed


def test_the_builder_is_given_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    patterns = [line for line in lines if line and not line.startswith("#")]
    allowed = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    assert patterns[0] == "*"
    assert allowed == copied()
    assert any(fnmatch.fnmatch("epp/__pycache__", pattern) for pattern in patterns if pattern != "*")


@pytest.mark.parametrize(("target", "entry"), [("adsum", ["adsum"]), ("epp", ["adsum", "epp"])])
def test_it_runs_the_command_and_not_as_root(target: str, entry: list[str]) -> None:
    words = dict(stages()[target])  # the last of each counts
    assert json.loads(words["ENTRYPOINT"]) == entry
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", words["USER"])
    program = [str(Path(sys.executable).with_name(entry[0])), *entry[1:]]
    said = subprocess.run([*program, "--help"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")


def test_without_a_target_it_is_the_image_of_all_programs() -> None:
    assert list(stages())[-1] == "adsum"

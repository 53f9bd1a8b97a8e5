"""What code takes, counted: the same number on every machine and under every load."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def python_steps(function: Callable[[], object]) -> int:
    """The lines of Python that a call runs, each as often as it runs them; what C code does counts as the line it is in.

    Not the bytecode instructions: Python 3.13.0 leaves out some of a function that it traces for the first time.
    """
    steps = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps

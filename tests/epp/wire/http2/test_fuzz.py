import logging

import pytest

from benchmarks import fuzz_wire


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_broken_frames_and_messages_break_nothing_else(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The long run is `python -m benchmarks.fuzz_wire`."""
    caplog.set_level(logging.CRITICAL)
    fuzz = fuzz_wire.run(10_000, seed)
    assert fuzz.frames_fed >= 10_000
    assert fuzz.slowest < 5.0

import pytest

from benchmarks import fuzz_rewriting


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_mutated_requests_and_answers_change_in_their_model_only(seed: int) -> None:
    """The long run is `python -m benchmarks.fuzz_rewriting`."""
    fuzz = fuzz_rewriting.run(5_000, seed)
    assert min(fuzz.outcomes["refused"], fuzz.outcomes["rewritten"], fuzz.outcomes["unchanged"]) > 500

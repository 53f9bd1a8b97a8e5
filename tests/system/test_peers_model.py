"""10^5 random events over three pickers that tell each other; `make test` takes three times 4,000."""

from tests.epp.peers.test_model import agree


def test_three_pickers_agree_after_a_hundred_thousand_events() -> None:
    agree(seed=100, events=100_000)

"""The walks of tests/kubernetes/test_state_machine.py and test_pods_state_machine.py, ten thousand steps of each."""

import logging

import pytest

from tests.kubernetes.fake.histories import walk
from tests.kubernetes.test_pods_state_machine import PodHistories
from tests.kubernetes.test_state_machine import SliceHistories


def test_ten_thousand_steps_of_pods_slices_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    assert walk(SliceHistories, histories=160) >= 10_000


def test_ten_thousand_steps_of_pods_pool_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="discovery")
    assert walk(PodHistories, histories=140) >= 10_000

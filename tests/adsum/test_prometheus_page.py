"""What is written on a metrics page, and histograms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.histogram import Histogram
from adsum.prometheus_page import read_labels


@pytest.mark.parametrize(
    ("inside", "labels"),
    [
        (b"", {}),
        (b'a="1",b="2"', {"a": "1", "b": "2"}),
        (b' a = "1" , b="2" ,', {"a": "1", "b": "2"}),
        (rb'a="\\ \" \n \x",b=""', {"a": '\\ " \n x', "b": ""}),
        ('a="ü"'.encode(), {"a": "ü"}),
        (b'a="\xff"', {"a": "\ufffd"}),
        (b'a="1",2="3",b="4"', {"a": "1"}),
        (b'a="1', {}),
        (b'a="1","quoted name"="2"', {"a": "1"}),
    ],
)
def test_labels_are_read_as_far_as_they_are_written_by_the_rules(inside: bytes, labels: object) -> None:
    assert read_labels(inside) == labels


def test_a_bucket_counts_what_is_at_most_its_bound_and_those_below() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1.0, 1.1, 2.5, 3.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert histogram.total == 8.1


def test_each_bucket_is_there_at_0() -> None:
    assert Histogram((0.1,)).buckets() == [("0.1", 0), ("+Inf", 0)]
    assert Histogram(()).buckets() == [("+Inf", 0)]


@given(st.lists(st.integers(-10, 10)), st.lists(st.integers(-10, 10), unique=True).map(sorted))
def test_it_counts_as_one_would_by_hand(values: list[int], bounds: list[int]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    by_hand = [(str(float(bound)), sum(value <= bound for value in values)) for bound in bounds]
    assert histogram.buckets() == [*by_hand, ("+Inf", len(values))]
    assert histogram.total == sum(values)

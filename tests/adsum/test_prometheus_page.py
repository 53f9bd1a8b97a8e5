import pytest

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

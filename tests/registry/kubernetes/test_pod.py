"""What a pod reads of itself: the files and variables of the downward API."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import RegistrationError
from registry.kubernetes.pod import parse_labels, read_pod


def test_variables_win_over_files_and_each_may_come_from_either(tmp_path: Path) -> None:
    for name, text in {"name": "file", "namespace": "prod\n", "labels": 'a="b"\n'}.items():
        (tmp_path / name).write_text(text)
    found = read_pod({"ADSUM_PODINFO": str(tmp_path), "POD_UID": "u1", "POD_NAME": "n1", "POD_IP": ""})
    assert (found.name, found.uid, found.namespace, found.address) == ("n1", "u1", "prod", None)
    assert dict(found.labels) == {"a": "b"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    with pytest.raises(RegistrationError, match="labels cannot be read"):
        read_pod({"ADSUM_PODINFO": str(tmp_path), "POD_UID": "u", "POD_NAME": "n", "POD_NAMESPACE": "p"})


def test_labels_as_the_downward_api_writes_them() -> None:
    assert parse_labels('a="1"\nb.io/c=""\n') == {"a": "1", "b.io/c": ""}
    assert parse_labels("") == {}


@given(
    st.dictionaries(
        st.from_regex(r"([a-z0-9]+(\.[a-z]+)*/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,61}", fullmatch=True),
        st.from_regex(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?", fullmatch=True),
    )
)
def test_every_label_that_a_pod_can_have_is_read(labels: dict[str, str]) -> None:
    assert parse_labels("\n".join(f'{key}="{value}"' for key, value in sorted(labels.items()))) == labels


@pytest.mark.parametrize("text", ["a=b", "a", '="b"', 'a="b" c="d"', 'a="b', '"a"="b"'])
def test_a_line_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(RegistrationError, match="is not key="):
        parse_labels(f'x="y"\n{text}\n')

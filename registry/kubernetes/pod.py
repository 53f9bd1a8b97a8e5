"""Reads this pod's name, UID, namespace, labels and IP from the downward API: environment variables, else files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from discovery.errors import RegistrationError
from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.source import ComponentKey

DEFAULT_PODINFO: Final = "/etc/podinfo"

_ENVIRONMENT_VARIABLES: Final = {"name": "POD_NAME", "uid": "POD_UID", "namespace": "POD_NAMESPACE"}
_LABEL_LINE: Final = re.compile(r'([^="]+)="([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod of this process. `address` is None without `POD_IP`: the downward API has `status.podIP` for environment
    variables, not for volumes.
    """

    name: str
    uid: str
    namespace: str
    address: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def check_labels(self, key: ComponentKey) -> None:
        """Raises RegistrationError unless the pod has the labels of `key`."""
        wanted = labels_of(key)
        wrong = {name: self.labels.get(name) for name in wanted if self.labels.get(name) != wanted[name]}
        if wrong:
            found = ", ".join(f"{name} is {value or 'missing'}" for name, value in wrong.items())
            raise RegistrationError(
                f"pod {self.name} does not have the labels of {key}: {found}. Add to the pod's template:\n"
                f"  metadata:\n    labels:\n{_label_lines(wanted, 6)}"
            )


def labels_of(key: ComponentKey) -> Mapping[str, str]:
    """The labels that Dynamo puts on the pods of a component and into the selector of its Service."""
    return {NAMESPACE_LABEL: key.namespace, COMPONENT_LABEL: key.component}


def read_pod(environment: Mapping[str, str]) -> OwnPod:
    """Read `POD_NAME`, `POD_UID` and `POD_NAMESPACE`, else the files `name`, `uid` and `namespace` in `$ADSUM_PODINFO`;
    `POD_IP`; and the file `labels` there, which has no variable. Blocking.

    Raises RegistrationError with the missing manifest lines.
    """
    folder = Path(environment.get("ADSUM_PODINFO") or DEFAULT_PODINFO)
    known = {
        word: environment.get(variable) or _read_file(folder / word)
        for word, variable in _ENVIRONMENT_VARIABLES.items()
    }
    labels = _read_file(folder / "labels")
    missing = [word for word, value in known.items() if not value]
    if missing or labels is None:
        raise RegistrationError(_missing_fields(folder, missing, labels is None))
    return OwnPod(
        name=known["name"] or "",
        uid=known["uid"] or "",
        namespace=known["namespace"] or "",
        address=environment.get("POD_IP") or None,
        labels=MappingProxyType(parse_labels(labels)),
    )


def parse_labels(text: str) -> dict[str, str]:
    """Parse the downward API's `labels` file, one `key="value"` a line. Raises RegistrationError for anything else."""
    labels: dict[str, str] = {}
    # bounded: the labels of our own Pod, as the kubelet writes them
    for line in filter(None, text.split("\n")):
        found = _LABEL_LINE.fullmatch(line)
        if found is None:
            raise RegistrationError(
                f'the pod\'s labels cannot be parsed: {line[:100]!r} is not key="value", the format in which the '
                "downward API writes metadata.labels into a file"
            )
        labels[found[1]] = found[2]
    return labels


def missing_address() -> RegistrationError:
    """The error of a pod that knows no address of its own, with the manifest lines to add."""
    return RegistrationError(
        "this pod's address is not known: POD_IP is not set and `address` was not given. "
        f"Add to the container's spec:\n{_ADDRESS_LINES}"
    )


_ADDRESS_LINES: Final = """\
  env:
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}"""


def _missing_fields(folder: Path, words: list[str], without_labels: bool) -> str:
    words = [*words, *(["labels"] if without_labels else [])]
    items = "\n".join(
        f"          - {{path: {word}, fieldRef: {{fieldPath: metadata.{word}}}}}" for word in words
    )
    return (
        f"this pod's own {', '.join(words)} cannot be read: missing in {folder}. "
        f"Add to the pod's spec:\n"
        f"  volumes:\n    - name: podinfo\n      downwardAPI:\n        items:\n{items}\n"
        f"  containers:\n    - volumeMounts:\n        - {{name: podinfo, mountPath: {folder}, readOnly: true}}\n"
        "Outside a pod, choose another registry: file:///path"
    )


def _read_file(path: Path) -> str | None:
    """The file's text; None if there is no such file. Raises RegistrationError if it exists but cannot be read."""
    try:
        return path.read_text().removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RegistrationError(f"{path} cannot be read: {error}") from error


def _label_lines(labels: Mapping[str, str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}{name}: {value}" for name, value in labels.items())

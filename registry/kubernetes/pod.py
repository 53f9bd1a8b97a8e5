"""Who this pod is, as the downward API says: environment variables, else files beside one another."""

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

_VARIABLES: Final = {"name": "POD_NAME", "uid": "POD_UID", "namespace": "POD_NAMESPACE"}
_LABEL_LINE: Final = re.compile(r'([^="]+)="([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class OwnPod:
    """One pod. `address` None: nobody said (the downward API has it as a variable only, `POD_IP`)."""

    name: str
    uid: str
    namespace: str
    address: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def check_labels(self, key: ComponentKey) -> None:
        """RegistrationError unless the pod is labelled as an instance of `key`."""
        wanted = labels_of(key)
        wrong = {name: self.labels.get(name) for name in wanted if self.labels.get(name) != wanted[name]}
        if wrong:
            found = ", ".join(f"{name} is {value or 'missing'}" for name, value in wrong.items())
            raise RegistrationError(
                f"pod {self.name} is not labelled as {key}: {found}. In the pod's template it must say:\n"
                f"  metadata:\n    labels:\n{_lines(wanted, 6)}"
            )


def labels_of(key: ComponentKey) -> Mapping[str, str]:
    """What the label convention asks of the pods of a component, and of the selector of its Service."""
    return {NAMESPACE_LABEL: key.namespace, COMPONENT_LABEL: key.component}


def read_pod(environment: Mapping[str, str]) -> OwnPod:
    """`POD_NAME`, `POD_UID`, `POD_NAMESPACE` and `POD_IP`, else (without the last) the files `name`, `uid`,
    `namespace` in `$ADSUM_PODINFO`; the labels from the file `labels` there. Blocking.

    Raises RegistrationError with the manifest lines that are missing.
    """
    folder = Path(environment.get("ADSUM_PODINFO") or DEFAULT_PODINFO)
    known = {word: environment.get(variable) or _read(folder / word) for word, variable in _VARIABLES.items()}
    labels = _read(folder / "labels")
    missing = [word for word, value in known.items() if not value]
    if missing or labels is None:
        raise RegistrationError(_missing(folder, missing, labels is None))
    return OwnPod(
        name=known["name"] or "",
        uid=known["uid"] or "",
        namespace=known["namespace"] or "",
        address=environment.get("POD_IP") or None,
        labels=MappingProxyType(parse_labels(labels)),
    )


def parse_labels(text: str) -> dict[str, str]:
    """The downward API's `labels` file: one `key="value"` a line. RegistrationError when it is something else."""
    labels: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        found = _LABEL_LINE.fullmatch(line)
        if found is None:
            raise RegistrationError(
                f'the pod\'s labels cannot be read: {line[:100]!r} is not key="value", as the downward API writes '
                "metadata.labels into a file"
            )
        labels[found[1]] = found[2]
    return labels


def missing_address() -> RegistrationError:
    """What to say when nobody told the pod its address."""
    return RegistrationError(
        "nobody said at which address this pod is reached: POD_IP is not set and `address` was not given. "
        f"In the container's spec it must say:\n{_ADDRESS_LINES}"
    )


_ADDRESS_LINES: Final = """\
  env:
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}"""


def _missing(folder: Path, words: list[str], without_labels: bool) -> str:
    words = [*words, *(["labels"] if without_labels else [])]
    items = "\n".join(
        f"          - {{path: {word}, fieldRef: {{fieldPath: metadata.{word}}}}}" for word in words
    )
    return (
        f"this pod does not know its own {', '.join(words)}: nothing in {folder} says so. "
        f"In the pod's spec it must say:\n"
        f"  volumes:\n    - name: podinfo\n      downwardAPI:\n        items:\n{items}\n"
        f"  containers:\n    - volumeMounts:\n        - {{name: podinfo, mountPath: {folder}, readOnly: true}}\n"
        "Outside a pod register elsewhere: file:///path"
    )


def _read(path: Path) -> str | None:
    """The file's text; None if there is none. RegistrationError when it is there and cannot be read."""
    try:
        return path.read_text().removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RegistrationError(f"{path} cannot be read: {error}") from error


def _lines(labels: Mapping[str, str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}{name}: {value}" for name, value in labels.items())

"""Takes a misspelt top-level key of a configuration for the key that was meant, so that what is inside is checked too (pure)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from adsum.config.problems import Problems
from epp.config.document import API_VERSION, KIND, ConfigDocument, read_section


@dataclass(frozen=True, slots=True)
class CorrectedKeys:
    """`given`: the document with the keys that were meant; `written`: how each of these is written in the file."""

    given: dict[str, Any]
    written: Mapping[str, str]

    def as_written(self, place: str) -> str:
        """The place in the file."""
        for meant, written in self.written.items():
            rest = place.removeprefix(meant)
            if rest != place and rest[:1] in ("", ".", "["):
                return written + rest
        return place


def correct_keys(given: dict[str, Any], problems: Problems) -> CorrectedKeys:
    """Add a problem for each misspelt key. A key stays as it is if it is like none, or if that one is there too."""
    known = [field.alias or name for name, field in ConfigDocument.model_fields.items()]
    written: dict[str, str] = {}
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(str(key)[:100], known, n=1)
        if near and near[0] not in given and near[0] not in written:
            written[near[0]] = str(key)
            problems.of(partial(_refuse, str(key)))
    corrected = {_meant(key, written): value for key, value in given.items()}
    return CorrectedKeys(corrected, written)


def _meant(key: str, written: Mapping[str, str]) -> str:
    return next((meant for meant, name in written.items() if name == key), key)


def _refuse(key: str) -> None:
    """Raises the error of a document that is sound but for this key."""
    read_section(ConfigDocument, {"apiVersion": API_VERSION, "kind": KIND, key: 0}, "")

"""What is said of a model server that does not say it itself: a file, its list of models, its port."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarl import URL

from discovery.instance import METADATA_LIMIT
from runtime.changing_file import ChangingFile


class DocumentFile:
    """A JSON object in a file, read again when the file changed. Blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Mapping[str, Any] = {}
        self._file = ChangingFile(path, _read_document)

    def refresh(self) -> None:
        """Read what is there now. ValueError says what is wrong with it; then `content` stays as it was."""
        try:
            self.content = self._file()
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from error


def _read_document(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        text = file.read(METADATA_LIMIT + 1)
    if len(text) > METADATA_LIMIT:
        raise ValueError(f"{path} is larger than {METADATA_LIMIT} bytes")
    try:
        content = _decode(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if isinstance(content, dict):
        return content
    raise ValueError(f"{path} holds a JSON {type(content).__name__}; a JSON object is expected")


def read_models(body: bytes) -> Mapping[str, Any]:
    """`{"model": {...}}` from an OpenAI-style list of models; ValueError if it is none.

    vLLM lists the base model under each of its served names, then LoRA adapters with their base as `parent`.
    """
    listed = _decode(body)
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list) or not all(_is_model(entry) for entry in entries):
        raise ValueError('not a list of models: expected {"data": [{"id": ...}, ...]}')
    bases = [entry for entry in entries if not entry.get("parent")]
    if not bases:
        return {}
    model: dict[str, Any] = {"name": bases[0]["id"]}
    if aliases := [entry["id"] for entry in bases[1:]]:
        model["aliases"] = aliases
    model["adapters"] = [entry["id"] for entry in entries if entry.get("parent")]
    if isinstance(longest := bases[0].get("max_model_len"), int):
        model["runtime_config"] = {"max_model_len": longest}
    return {"model": model}


def describe_transport(server: URL, engine: str | None) -> Mapping[str, Any]:
    """Where the server answers: its port for requests and for metrics. Never its host: that is the source's to say."""
    http: dict[str, Any] = {"port": server.port, "metrics_port": server.port}
    return {"transport": {"http": http | ({"engine": engine} if engine else {})}}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both; where both say something, `over` counts, object by object."""
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        both[key] = (
            merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return both


def _decode(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _is_model(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)

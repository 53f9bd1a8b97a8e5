"""Describes a model server that publishes no metadata: from a file, its `/v1/models` and its port."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarl import URL

from adsum.changing_files import ChangingFile
from discovery.instance import METADATA_LIMIT


class MetadataFile:
    """A JSON object in a file, which is read again when the file changes. Blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Mapping[str, Any] = {}
        self._file = ChangingFile(path, _read_document)

    def refresh(self) -> None:
        """Update `content`. Raises ValueError for an unreadable or invalid file; `content` then stays as it was."""
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
    raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected a JSON object")


def read_models(body: bytes) -> Mapping[str, Any]:
    """`{"model": {...}}` from the body of `/v1/models`; raises ValueError.

    vLLM lists the base model once for each `--served-model-name`, then LoRA adapters with their base as `parent`.
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
    """The server's port for requests and for metrics. Never its host: addresses come from the source of truth only, or
    a worker could direct requests to another host.
    """
    http: dict[str, Any] = {"port": server.port, "metrics_port": server.port}
    return {"transport": {"http": http | ({"engine": engine} if engine else {})}}


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A deep merge: objects are merged key by key, any other value of `override` replaces that of `base`."""
    result = dict(base)
    for key, value in override.items():
        lower = result.get(key)
        result[key] = (
            merge(lower, value) if isinstance(lower, Mapping) and isinstance(value, Mapping) else value
        )
    return result


def _decode(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _is_model(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)
